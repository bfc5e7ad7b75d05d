//! Sales and their in-process cache: a sale's window, its strategy, and whether it is sold out.
//! The first two hardly ever change, so a process caches a reading of them for [`FRESH_FOR`]. Of
//! the stock only one thing is cached with them: that there was none. Stock that was there may be
//! gone by now; stock that was gone comes back only when some is added or an order is cancelled, and then
//! [`super::stock_events`] invalidates every process's entry. So refusing the many late buyers costs no query.
//!
//! A sale that a Java node of the final stage published says nothing of how it sells: its `issued` is NULL. It is known
//! by its stock counter in Redis, by which that node's script admits buyers, and it is sold on the strategy `stream`, which
//! admits by the same counter. Without a counter, the column's default says how it sells.
//!
//! A sale's window is judged by the **database's** clock: each load brings that clock's reading, and
//! the time since is measured by a monotonic clock. A node whose wall clock is off by an hour thus
//! opens and closes a sale together with all others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use redis::AsyncCommands;

use super::store::{SaleRow, VoucherStore};
use super::unit_pool::UnitPool;
use crate::connection::redis::RoutedConnection;
use crate::error::Error;
use crate::keys::Keys;
use crate::sync::RwLock;
use ladder::Strategy;

/// How long a reading is valid, from the moment the database was asked. A voucher taken off the shelf
/// is refused, and stock whose event was lost is sold, at most this much later: within a second, with
/// time for a query to spare.
pub const FRESH_FOR: Duration = Duration::from_millis(800);

/// Sales cached before those not fresh are dropped, for the first time; then whenever there are twice as many as were
/// fresh, so that a purchase does not pay for a look at all sales, however many are open.
const CAPACITY: usize = 1024;

/// A flash sale, as far as a purchase needs to know it.
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
    /// What this node knows of the sale's pool, on the strategy `unit-rows`. All readings of the sale share it.
    pub units: Arc<UnitPool>,
    /// Where nothing was left: when the first of the readings in a row that found nothing left was there. Whoever has an
    /// order had it committed before that.
    pub sold_out_since: Instant,
    asked_at: Instant,
}

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

    /// `is_java`: a Java node published it, and sells it by a counter.
    fn read(
        voucher_id: i64,
        row: &SaleRow,
        is_java: bool,
        asked_at: Instant,
    ) -> Result<Self, Error> {
        let stored = if is_java { Ok(Strategy::Stream) } else { row.strategy.parse() };
        let strategy = stored.map_err(|_| {
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
            units: Arc::default(),
            sold_out_since: Instant::now(),
            asked_at,
        })
    }
}

/// Caches the sales that this process has read lately.
pub struct SaleCache {
    store: VoucherStore,
    redis: RoutedConnection,
    keys: Keys,
    timeout: Duration,
    entries: RwLock<Entries>,
}

struct Entries {
    by_id: HashMap<i64, Arc<Entry>>,
    /// The number at which those not fresh are dropped.
    sweep_at: usize,
}

impl Default for Entries {
    fn default() -> Self {
        Entries { by_id: HashMap::new(), sweep_at: CAPACITY }
    }
}

#[derive(Default)]
struct Entry {
    value: RwLock<Value>,
    /// Single-flight: one task loads while the others wait for it, so a burst costs one query, not thousands.
    load: tokio::sync::Mutex<()>,
    units: Arc<UnitPool>,
}

#[derive(Default)]
struct Value {
    sale: Option<Arc<Sale>>,
    /// Rises with each invalidation: a reading that was being loaded then is not kept.
    version: u64,
}

impl SaleCache {
    /// Caches sales of this store; `timeout` bounds the wait for one.
    pub fn new(
        store: VoucherStore,
        redis: RoutedConnection,
        keys: Keys,
        timeout: Duration,
    ) -> Self {
        SaleCache { store, redis, keys, timeout, entries: RwLock::default() }
    }

    /// One sale, at most [`FRESH_FOR`] old.
    ///
    /// # Errors
    /// [`Error::VoucherNotFound`]; [`Error::Unavailable`] where the database did not answer in time (or Redis, for a
    /// sale that a Java node may have published), or the sale has a strategy that this version does not know.
    pub async fn get(&self, voucher_id: i64) -> Result<Arc<Sale>, Error> {
        if let Some(sale) = self.entries.read().by_id.get(&voucher_id).and_then(|of| of.fresh()) {
            return Ok(sale);
        }
        let entry = self.entry(voucher_id);
        // Bounds the wait for the others too, so that a hanging database is not waited for in turns.
        tokio::time::timeout(self.timeout, self.load(voucher_id, &entry))
            .await
            .unwrap_or(Err(Error::Unavailable("the database")))
    }

    /// Invalidates a sale whose stock has changed; see [`super::stock_events`].
    pub fn invalidate(&self, voucher_id: i64) {
        if let Some(entry) = self.entries.read().by_id.get(&voucher_id) {
            entry.invalidate_if(|_| true);
        }
    }

    /// Invalidates all sales: events may have been missed.
    pub fn invalidate_all(&self) {
        self.entries.read().by_id.values().for_each(|entry| entry.invalidate_if(|_| true));
    }

    /// A purchase found that nothing is left, which `sale` does not say yet: the next one reads anew.
    pub fn found_sold_out(&self, sale: &Arc<Sale>) {
        if !sale.sold_out
            && let Some(entry) = self.entries.read().by_id.get(&sale.voucher_id)
        {
            entry.invalidate_if(|cached| Arc::ptr_eq(cached, sale));
        }
    }

    async fn load(&self, voucher_id: i64, entry: &Entry) -> Result<Arc<Sale>, Error> {
        let _single_flight = entry.load.lock().await;
        if let Some(sale) = entry.fresh() {
            return Ok(sale);
        }
        let (before, version) = entry.get();
        let asked_at = Instant::now();
        let Some(row) = self.store.sale(voucher_id).await? else {
            self.entries.write().by_id.remove(&voucher_id);
            return Err(Error::VoucherNotFound);
        };
        let is_java = row.issued.is_none() && self.has_counter(voucher_id).await?;
        let mut sale = Sale::read(voucher_id, &row, is_java, asked_at)?;
        sale.units = entry.units.clone();
        if sale.sold_out
            && let Some(before) = before.filter(|before| before.sold_out)
        {
            sale.sold_out_since = before.sold_out_since;
        }
        let sale = Arc::new(sale);
        entry.set(&sale, version);
        Ok(sale)
    }

    async fn has_counter(&self, voucher_id: i64) -> Result<bool, Error> {
        Ok(self.redis.clone().exists(self.keys.stock(voucher_id)).await?)
    }

    fn entry(&self, voucher_id: i64) -> Arc<Entry> {
        let entries = self.entries.read();
        if let Some(entry) = entries.by_id.get(&voucher_id) {
            return entry.clone();
        }
        drop(entries);
        self.entries.write().insert(voucher_id)
    }
}

impl Entries {
    fn insert(&mut self, voucher_id: i64) -> Arc<Entry> {
        if self.by_id.len() >= self.sweep_at {
            self.by_id.retain(|_, entry| entry.fresh().is_some() || Arc::strong_count(entry) > 1);
            self.sweep_at = (2 * self.by_id.len()).max(CAPACITY);
        }
        self.by_id.entry(voucher_id).or_default().clone()
    }
}

impl Entry {
    fn fresh(&self) -> Option<Arc<Sale>> {
        let value = self.value.read();
        value.sale.as_ref().filter(|sale| sale.asked_at.elapsed() < FRESH_FOR).cloned()
    }

    /// The reading, fresh or not, and the version to pass to [`Entry::set`].
    fn get(&self) -> (Option<Arc<Sale>>, u64) {
        let value = self.value.read();
        (value.sale.clone(), value.version)
    }

    /// Keeps a reading, unless the entry was invalidated since its load began.
    fn set(&self, sale: &Arc<Sale>, version: u64) {
        let mut value = self.value.write();
        if value.version == version {
            value.sale = Some(sale.clone());
        }
    }

    fn invalidate_if(&self, condition: impl FnOnce(&Arc<Sale>) -> bool) {
        let mut value = self.value.write();
        if value.sale.as_ref().is_none_or(condition) {
            value.sale = None;
            value.version += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::explored::once;
    use chrono::TimeDelta;

    /// A sale from an hour before to an hour after `now`, on a database whose clock says `now`.
    pub(super) fn sale(now: DateTime<Utc>, change: impl FnOnce(&mut SaleRow)) -> Sale {
        let mut row = SaleRow {
            status: 1,
            begin_time: now - TimeDelta::hours(1),
            end_time: now + TimeDelta::hours(1),
            strategy: "reentrant-lock".to_owned(),
            issued: Some(1),
            now: now.naive_utc(),
            stock: 1,
        };
        change(&mut row);
        Sale::read(1, &row, false, Instant::now()).unwrap()
    }

    #[test]
    fn the_window_is_judged_by_the_databases_clock_not_the_nodes() {
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
    fn many_open_sales_are_swept_seldom_and_forgotten_in_time() {
        once(|| {
            let mut entries = Entries::default();
            let mut sweeps = 0;
            // Entries in use stay, like fresh ones.
            let used: Vec<Arc<Entry>> = (0..10_000)
                .map(|voucher_id| {
                    let at = entries.sweep_at;
                    let entry = entries.insert(voucher_id);
                    sweeps += u32::from(entries.sweep_at != at);
                    entry
                })
                .collect();
            assert_eq!((entries.by_id.len(), sweeps), (10_000, 4), "at 1024, 2048, 4096 and 8192");
            drop(used);
            entries.sweep_at = 10_000;
            entries.insert(10_000);
            assert_eq!((entries.by_id.len(), entries.sweep_at), (1, CAPACITY));
        });
    }

    #[test]
    fn a_load_that_began_before_the_invalidation_is_not_kept() {
        once(|| {
            let entry = Entry::default();
            let none_left = Arc::new(sale(Utc::now(), |row| row.stock = 0));
            let (_, version) = entry.get();
            entry.invalidate_if(|_| true);
            entry.set(&none_left, version);
            assert!(entry.fresh().is_none());
            let (_, version) = entry.get();
            entry.set(&none_left, version);
            assert!(entry.fresh().is_some_and(|sale| sale.sold_out));
            // Of two purchases that found one reading outdated, the second does not invalidate a newer one.
            entry.invalidate_if(|cached| Arc::ptr_eq(cached, &Arc::new(sale(Utc::now(), |_| {}))));
            assert!(entry.fresh().is_some());
        });
    }
}

#[cfg(test)]
mod interleavings;
