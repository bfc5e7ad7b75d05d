//! Sales and their in-process cache: a sale's window, its strategy, and whether it is sold out. A process reads a sale at most
//! once in [`FRESH_FOR`], however many ask, and several sales in one query. Of the stock only one thing is remembered: that
//! there was none. So refusing the many late buyers costs no query.
//!
//! A sale that a Java node of the final stage published does not say how it sells: its `issued` is NULL. It is recognised
//! by its stock counter in Redis, by which that node's script admits buyers. Such a sale is sold on the strategy `stream`,
//! which admits by the same counter.
//!
//! A sale's window is judged by the **database's** clock: each load brings that clock's reading, and the time since is measured
//! by a monotonic clock. A node whose wall clock is off by an hour opens and closes a sale together with all others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use futures_util::future::join_all;
use redis::AsyncCommands;

use super::recounts::Recounts;
use super::store::{SaleRow, VoucherStore};
use crate::connection::coalescer::Coalescer;
use crate::connection::fresh_cache::FreshCache;
use crate::connection::redis::RoutedConnection;
use crate::error::{Cause, Error};
use crate::keys::Keys;
use strategies::Strategy;

/// How long a reading is valid, from the moment the database was asked. A voucher taken off the shelf
/// is refused, and stock that another process added is sold, at most this much later: within a second, with time for a
/// query to spare.
pub const FRESH_FOR: Duration = Duration::from_millis(800);

/// Sales that are remembered: more than are open at once.
const CAPACITY: usize = 16_384;

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
    /// The database's clock.
    fn now(&self) -> DateTime<Utc> {
        self.database_time + self.read_at.elapsed()
    }

    /// For how long the sale is still on.
    pub fn ends_in(&self) -> Duration {
        (self.end - self.now()).to_std().unwrap_or_default()
    }

    /// Refuses unless the sale is on, by the database's clock.
    pub fn require_open(&self) -> Result<(), Error> {
        let now = self.now();
        if !self.on_shelf {
            return Err(Error::VoucherNotFound);
        }
        if now < self.begin {
            return Err(Error::SaleNotBegun);
        }
        if now >= self.end {
            return Err(Error::SaleEnded);
        }
        Ok(())
    }
}

impl Sale {
    /// How long ago the database was asked.
    pub fn age(&self) -> Duration {
        self.asked_at.elapsed()
    }

    /// `is_java`: a Java node published it, and sells it by a counter.
    fn read(row: &SaleRow, is_java: bool, asked_at: Instant) -> Result<Self, Error> {
        let voucher_id = row.voucher_id;
        let stored = if is_java {
            Ok(Strategy::Stream)
        } else {
            row.strategy.parse()
        };
        let strategy = stored.map_err(|_| {
            tracing::error!(
                voucher_id,
                strategy = row.strategy,
                "this version knows no such strategy"
            );
            Error::Unavailable(Cause::StrategyUnknown)
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
            asked_at,
        })
    }
}

/// Sales that are read in one query at most.
const READ_AT_ONCE: usize = 256;

type Reading = Result<Arc<Sale>, Error>;

/// The sales that this process has read lately.
pub struct SaleCache {
    timeout: Duration,
    sales: FreshCache<i64, Arc<Sale>, Error>,
    /// Reads sales that are due at the same moment in one query.
    reads: Coalescer<i64, Reading>,
    /// Sales that the strategy `stream` is to count again.
    pub recounts: Recounts,
}

impl SaleCache {
    /// Caches sales of this store; `timeout` bounds the wait for one. To be called within a tokio runtime.
    pub fn new(
        store: VoucherStore,
        redis: RoutedConnection,
        keys: Keys,
        timeout: Duration,
    ) -> Self {
        let read = move |ids| read(store.clone(), redis.clone(), keys.clone(), ids);
        Self::reading(read, timeout)
    }

    /// Caches what `read` returns for these ids, in their order.
    fn reading<T>(read: impl Fn(Vec<i64>) -> T + Send + Sync + 'static, timeout: Duration) -> Self
    where
        T: Future<Output = Vec<Reading>> + Send + 'static,
    {
        let reads = Coalescer::start(READ_AT_ONCE, read);
        let sales = FreshCache::new(FRESH_FOR, CAPACITY);
        SaleCache {
            timeout,
            sales,
            reads,
            recounts: Recounts::default(),
        }
    }

    /// One sale, at most [`FRESH_FOR`] old.
    ///
    /// # Errors
    /// [`Error::VoucherNotFound`]; [`Error::Unavailable`] where the database did not answer in time (or Redis, for a
    /// sale that a Java node may have published), or the sale's row cannot be read, or has a strategy that this version does
    /// not know.
    pub async fn get(&self, voucher_id: i64) -> Result<Arc<Sale>, Error> {
        // The usual case, which needs no timer.
        if let Some(sale) = self.sales.fresh(&voucher_id) {
            return Ok(sale);
        }
        let read = async || {
            let read = self.reads.request(voucher_id).await;
            read.unwrap_or(Err(Error::Unavailable(Cause::Database)))
        };
        let reading = self.sales.get(voucher_id, read);
        // Also bounds the wait for another caller's read: else callers would wait for a hanging database one after the other.
        tokio::time::timeout(self.timeout, reading)
            .await
            .unwrap_or(Err(Error::Unavailable(Cause::Database)))
    }

    /// Stock was added or returned: the next purchase reads the sale anew, and the stream counts it again.
    pub fn stock_changed(&self, voucher_id: i64) {
        self.sales.invalidate(&voucher_id);
        self.recounts.ask(voucher_id, None);
    }

    /// A purchase found that nothing is left. If `sale` does not say so yet, the next purchase reads it anew.
    pub fn found_sold_out(&self, sale: &Arc<Sale>) {
        if !sale.sold_out {
            self.sales
                .invalidate_if(&sale.voucher_id, |kept| Arc::ptr_eq(kept, sale));
        }
    }

    /// Stops reading. To be called after the last purchase.
    pub async fn shutdown(&self) {
        self.reads.shutdown().await;
    }
}

/// Reads these sales, in their order.
async fn read(
    store: VoucherStore,
    redis: RoutedConnection,
    keys: Keys,
    ids: Vec<i64>,
) -> Vec<Reading> {
    let asked_at = Instant::now();
    let rows = match store.sales(&ids).await {
        Ok(rows) => rows,
        Err(error) => return ids.iter().map(|_| Err(error.clone())).collect(),
    };
    let rows = &rows;
    let redis = &redis;
    let keys = &keys;
    let sale = |id: i64| async move {
        let found = rows.iter().find(|(row_id, _)| *row_id == id);
        let (_, row) = found.ok_or(Error::VoucherNotFound)?;
        let row = row
            .as_ref()
            .ok_or(Error::Unavailable(Cause::SaleUnreadable))?;
        let is_java = row.issued.is_none() && redis.clone().exists(keys.stock(id)).await?;
        Ok(Arc::new(Sale::read(row, is_java, asked_at)?))
    };
    join_all(ids.iter().map(|id| sale(*id))).await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;
    use chrono::TimeDelta;

    /// A sale with these times, on a database whose clock says `now`.
    fn sale(
        voucher_id: i64,
        begin_time: DateTime<Utc>,
        end_time: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Sale {
        let row = SaleRow {
            voucher_id,
            status: 1,
            begin_time,
            end_time,
            strategy: "reentrant-lock".to_owned(),
            issued: Some(1),
            now: now.naive_utc(),
            stock: 1,
        };
        Sale::read(&row, false, Instant::now()).unwrap()
    }

    /// Sales that count how often the database is asked.
    fn counted_sales() -> (Arc<SaleCache>, Arc<AtomicU32>) {
        let reads = Arc::new(AtomicU32::new(0));
        let counter = reads.clone();
        let read = move |ids: Vec<i64>| {
            counter.fetch_add(1, Relaxed);
            let now = Utc::now();
            let read = |id: &i64| Ok(Arc::new(sale(*id, now, now, now)));
            std::future::ready(ids.iter().map(read).collect())
        };
        let limit = Duration::from_secs(1);
        let sales = SaleCache::reading(read, limit);
        (Arc::new(sales), reads)
    }

    #[tokio::test(start_paused = true)]
    async fn a_sale_is_read_once_a_second_or_a_little_more_often_however_many_ask() {
        let (sales, reads) = counted_sales();
        for _ in 0..1000 {
            for asked in join_all((0..5).map(|_| sales.get(1))).await {
                asked.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let reads = reads.load(Relaxed);
        assert!((10..=20).contains(&reads), "{reads} reads in 10 s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_sale_is_read_anew_when_its_stock_changed_or_is_found_to_be_empty() {
        let (sales, reads) = counted_sales();
        let first = sales.get(1).await.unwrap();
        sales.found_sold_out(&first);
        let second = sales.get(1).await.unwrap();
        // A purchase that is slower than others tells nothing new.
        sales.found_sold_out(&first);
        sales.get(1).await.unwrap();
        assert_eq!(reads.load(Relaxed), 2);
        sales.stock_changed(1);
        let third = sales.get(1).await.unwrap();
        assert_eq!(reads.load(Relaxed), 3);
        assert!(!Arc::ptr_eq(&second, &third));
        assert!(sales.recounts.take().contains_key(&1), "a count is due");
    }

    #[test]
    fn the_window_is_judged_by_the_databases_clock_not_the_nodes() {
        for hours in [-1000, 0, 1000] {
            let now = Utc::now() + TimeDelta::hours(hours);
            let hour = TimeDelta::hours(1);
            let require_open = |begin, end| sale(1, begin, end, now).window.require_open();
            assert!(require_open(now - hour, now + hour).is_ok());
            let early = require_open(now + TimeDelta::seconds(5), now + hour);
            assert!(matches!(early, Err(Error::SaleNotBegun)));
            assert!(matches!(
                require_open(now - hour, now),
                Err(Error::SaleEnded)
            ));
        }
    }
}
