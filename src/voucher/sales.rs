//! What a purchase needs to know of a sale: its window, its strategy, and whether anything is left.
//! The first two hardly ever change, so a process remembers a reading of them for [`FRESH_FOR`]. Of
//! the stock only one thing is remembered with them: that there was none. Stock that was there may be
//! gone by now; stock that was gone comes back only when somebody adds some or an order is cancelled, and then
//! [`super::news`] tells every process to forget. So the many who come too late cost no query.
//!
//! A sale's window is judged by the **database's** clock: each load brings that clock's reading, and
//! the time since is measured by a monotonic clock. A node whose wall clock is off by an hour thus
//! opens and closes a sale together with all others.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio::sync::OnceCell;

use super::store::{SaleRow, VoucherStore};
use crate::error::Error;
use ladder::Strategy;

/// How long a reading is trusted, from the moment the database was asked. A voucher taken off the shelf
/// is refused, and stock whose news was lost is sold, at most this much later: within a second, with
/// time for a query to spare.
pub const FRESH_FOR: Duration = Duration::from_millis(800);

/// Sales remembered at most; beyond it, those not fresh are forgotten.
const REMEMBERED: usize = 1024;

/// A flash sale, as a purchase sees it.
#[derive(Debug)]
pub struct Sale {
    /// `tb_voucher.id`.
    pub voucher_id: i64,
    /// How it sells.
    pub strategy: Strategy,
    /// When it is on.
    pub window: Window,
    /// Whether nothing was left.
    pub sold_out: bool,
    /// Who had bought when nothing was left, filled in by whoever needs it: a note that lives as long
    /// as this reading and the readings after it that find nothing left either.
    pub buyers: OnceCell<Buyers>,
    asked_at: Instant,
}

/// Users in rising order; `None` where there are too many to remember.
pub type Buyers = Option<Arc<[i64]>>;

/// When a sale is on, by the database's clock.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    begin: DateTime<Utc>,
    end: DateTime<Utc>,
    on_shelf: bool,
    database_time: DateTime<Utc>,
    read_at: Instant,
}

impl Window {
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
}

impl Sale {
    /// How long ago the database was asked.
    pub fn age(&self) -> Duration {
        self.asked_at.elapsed()
    }

    fn read(voucher_id: i64, row: &SaleRow, asked_at: Instant) -> Result<Self, Error> {
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
            window: Window {
                begin: row.begin_time,
                end: row.end_time,
                on_shelf: row.status == 1,
                database_time: row.now.and_utc(),
                // After the reply, so that this clock is behind the database's, never ahead of it: a
                // sale may close late by what one query took, but never opens early.
                read_at: Instant::now(),
            },
            sold_out: row.stock < 1,
            buyers: OnceCell::new(),
            asked_at,
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
    known: RwLock<Known>,
    /// Lets one task load while the others wait for it: a burst costs one query, not thousands.
    load: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Known {
    sale: Option<Arc<Sale>>,
    /// Counts up whenever the sale is to be forgotten: a reading that was under way then is not kept.
    forgotten: u64,
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

    /// Forgets what was read of a sale: its stock has changed. [`super::news`] tells of it.
    pub fn forget(&self, voucher_id: i64) {
        if let Some(slot) = self.read().get(&voucher_id) {
            slot.forget(|_| true);
        }
    }

    /// Forgets all readings: news may have been missed.
    pub fn forget_all(&self) {
        self.read().values().for_each(|slot| slot.forget(|_| true));
    }

    /// A purchase learnt that nothing is left, which `sale` does not say yet: the next one reads anew.
    pub fn sold_out(&self, sale: &Arc<Sale>) {
        if !sale.sold_out
            && let Some(slot) = self.read().get(&sale.voucher_id)
        {
            slot.forget(|known| Arc::ptr_eq(known, sale));
        }
    }

    async fn load(&self, voucher_id: i64, slot: &Slot) -> Result<Arc<Sale>, Error> {
        let _only_one = slot.load.lock().await;
        if let Some(sale) = slot.fresh() {
            return Ok(sale);
        }
        let (before, forgotten) = slot.known();
        let asked_at = Instant::now();
        let Some(row) = self.store.sale(voucher_id).await? else {
            self.write().remove(&voucher_id);
            return Err(Error::VoucherNotFound);
        };
        let mut sale = Sale::read(voucher_id, &row, asked_at)?;
        if sale.sold_out
            && let Some(before) = before.filter(|before| before.sold_out)
        {
            sale.buyers = before.buyers.clone();
        }
        let sale = Arc::new(sale);
        slot.keep(&sale, forgotten);
        Ok(sale)
    }

    fn slot(&self, voucher_id: i64) -> Arc<Slot> {
        let slots = self.read();
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

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<i64, Arc<Slot>>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<i64, Arc<Slot>>> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn fresh(&self) -> Option<Arc<Sale>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.sale.as_ref().filter(|sale| sale.asked_at.elapsed() < FRESH_FOR).cloned()
    }

    /// What is known, fresh or not, and how often it was forgotten so far.
    fn known(&self) -> (Option<Arc<Sale>>, u64) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        (known.sale.clone(), known.forgotten)
    }

    /// Keeps a reading, unless one was to be forgotten since it began.
    fn keep(&self, sale: &Arc<Sale>, forgotten: u64) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.forgotten == forgotten {
            known.sale = Some(sale.clone());
        }
    }

    fn forget(&self, which: impl FnOnce(&Arc<Sale>) -> bool) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.sale.as_ref().is_none_or(which) {
            known.sale = None;
            known.forgotten += 1;
        }
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
            stock: 1,
        };
        change(&mut row);
        Sale::read(1, &row, Instant::now()).unwrap()
    }

    #[test]
    fn the_window_is_judged_by_the_databases_clock_however_wrong_the_nodes_is() {
        for hours in [-1000, 0, 1000] {
            let now = Utc::now() + TimeDelta::hours(hours);
            assert!(sale(now, |_| {}).window.require_open().is_ok());
            let early = sale(now, |row| row.begin_time = now + TimeDelta::seconds(5));
            assert!(matches!(early.window.require_open(), Err(Error::SaleNotBegun)));
            let late = sale(now, |row| row.end_time = now);
            assert!(matches!(late.window.require_open(), Err(Error::SaleEnded)));
        }
    }

    #[test]
    fn a_voucher_off_the_shelf_is_not_sold() {
        let off = sale(Utc::now(), |row| row.status = 2);
        assert!(matches!(off.window.require_open(), Err(Error::VoucherNotFound)));
    }

    #[test]
    fn a_reading_that_began_before_the_news_is_not_kept() {
        let slot = Slot::default();
        let none_left = Arc::new(sale(Utc::now(), |row| row.stock = 0));
        let (_, forgotten) = slot.known();
        slot.forget(|_| true);
        slot.keep(&none_left, forgotten);
        assert!(slot.fresh().is_none());
        let (_, forgotten) = slot.known();
        slot.keep(&none_left, forgotten);
        assert!(slot.fresh().is_some_and(|sale| sale.sold_out));
        // Of two purchases that learn of the end from one reading, the second forgets nothing newer.
        slot.forget(|known| Arc::ptr_eq(known, &Arc::new(sale(Utc::now(), |_| {}))));
        assert!(slot.fresh().is_some());
    }
}
