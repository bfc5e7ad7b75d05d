//! What a purchase needs to know of a sale: its window and its strategy. They hardly ever change, so
//! a process remembers them for [`FRESH_FOR`]; the stock is never remembered.
//!
//! A sale's window is judged by the **database's** clock: each load brings that clock's reading, and
//! the time since is measured by a monotonic clock. A node whose wall clock is off by an hour thus
//! opens and closes a sale together with all others.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::store::{SaleRow, VoucherStore};
use super::strategy::Strategy;
use crate::error::Error;

/// How long a sale's definition is trusted without asking the database again. A voucher taken off the
/// shelf is refused at most this much later.
pub const FRESH_FOR: Duration = Duration::from_secs(1);

/// Sales remembered at most; beyond it, those not fresh are forgotten.
const REMEMBERED: usize = 1024;

/// A flash sale, as a purchase sees it.
#[derive(Debug)]
pub struct Sale {
    /// `tb_voucher.id`.
    pub voucher_id: i64,
    /// How it sells.
    pub strategy: Strategy,
    begin: DateTime<Utc>,
    end: DateTime<Utc>,
    on_shelf: bool,
    database_time: DateTime<Utc>,
    read_at: Instant,
}

impl Sale {
    /// Refuses unless the sale is on, by the database's clock.
    pub fn require_open(&self) -> Result<(), Error> {
        let now = self.database_time + self.read_at.elapsed();
        match () {
            () if !self.on_shelf => Err(Error::VoucherNotFound),
            () if now < self.begin => Err(Error::SaleNotBegun),
            () if now >= self.end => Err(Error::SaleEnded),
            () => Ok(()),
        }
    }

    fn read(voucher_id: i64, row: &SaleRow) -> Result<Self, Error> {
        let strategy = row.strategy.parse().map_err(|_| {
            tracing::error!(
                voucher_id,
                strategy = row.strategy,
                "this version knows no such strategy"
            );
            Error::Unavailable("this sale's strategy")
        })?;
        Ok(Sale {
            voucher_id,
            strategy,
            begin: row.begin_time,
            end: row.end_time,
            on_shelf: row.status == 1,
            database_time: row.now.and_utc(),
            // After the reply, so that this clock is behind the database's, never ahead of it: a sale
            // may close late by what one query took, but never opens early.
            read_at: Instant::now(),
        })
    }
}

/// The sales this process has looked at lately.
pub struct Sales {
    store: VoucherStore,
    timeout: Duration,
    slots: RwLock<HashMap<i64, Arc<Slot>>>,
}

#[derive(Default)]
struct Slot {
    sale: RwLock<Option<Arc<Sale>>>,
    /// Lets one task load while the others wait for it: a burst costs one query, not thousands.
    load: tokio::sync::Mutex<()>,
}

impl Sales {
    /// Sales of this store; `timeout` bounds the wait for one.
    pub fn new(store: VoucherStore, timeout: Duration) -> Self {
        Sales { store, timeout, slots: RwLock::default() }
    }

    /// One sale, at most [`FRESH_FOR`] old.
    pub async fn get(&self, voucher_id: i64) -> Result<Arc<Sale>, Error> {
        let slot = self.slot(voucher_id);
        if let Some(sale) = slot.fresh() {
            return Ok(sale);
        }
        // Bounds the wait for the others too, so that a hanging database is not waited for in turns.
        tokio::time::timeout(self.timeout, self.load(voucher_id, &slot))
            .await
            .unwrap_or(Err(Error::Unavailable("the database")))
    }

    async fn load(&self, voucher_id: i64, slot: &Slot) -> Result<Arc<Sale>, Error> {
        let _only_one = slot.load.lock().await;
        if let Some(sale) = slot.fresh() {
            return Ok(sale);
        }
        let Some(row) = self.store.sale(voucher_id).await? else {
            self.write().remove(&voucher_id);
            return Err(Error::VoucherNotFound);
        };
        let sale = Arc::new(Sale::read(voucher_id, &row)?);
        *slot.sale.write().unwrap_or_else(PoisonError::into_inner) = Some(sale.clone());
        Ok(sale)
    }

    fn slot(&self, voucher_id: i64) -> Arc<Slot> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(&voucher_id) {
            return slot.clone();
        }
        drop(slots);
        let mut slots = self.write();
        if slots.len() >= REMEMBERED {
            slots.retain(|_, slot| slot.fresh().is_some() || Arc::strong_count(slot) > 1);
        }
        slots.entry(voucher_id).or_default().clone()
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<i64, Arc<Slot>>> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn fresh(&self) -> Option<Arc<Sale>> {
        let sale = self.sale.read().unwrap_or_else(PoisonError::into_inner);
        sale.as_ref().filter(|sale| sale.read_at.elapsed() < FRESH_FOR).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;

    /// A sale from an hour before to an hour after `now`, on a database whose clock says `now`.
    fn sale(now: DateTime<Utc>, change: impl FnOnce(&mut SaleRow)) -> Sale {
        let mut row = SaleRow {
            status: 1,
            begin_time: now - TimeDelta::hours(1),
            end_time: now + TimeDelta::hours(1),
            strategy: "reentrant-lock".to_owned(),
            now: now.naive_utc(),
        };
        change(&mut row);
        Sale::read(1, &row).unwrap()
    }

    #[test]
    fn the_window_is_judged_by_the_databases_clock_however_wrong_the_nodes_is() {
        for hours in [-1000, 0, 1000] {
            let now = Utc::now() + TimeDelta::hours(hours);
            assert!(sale(now, |_| {}).require_open().is_ok());
            let early = sale(now, |row| row.begin_time = now + TimeDelta::seconds(5));
            assert!(matches!(early.require_open(), Err(Error::SaleNotBegun)));
            let late = sale(now, |row| row.end_time = now);
            assert!(matches!(late.require_open(), Err(Error::SaleEnded)));
        }
    }

    #[test]
    fn a_voucher_off_the_shelf_is_not_sold() {
        let off = sale(Utc::now(), |row| row.status = 2);
        assert!(matches!(off.require_open(), Err(Error::VoucherNotFound)));
    }
}
