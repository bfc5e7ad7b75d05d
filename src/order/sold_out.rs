//! Who has an order of a sold-out sale: a late buyer without one is refused without a query, and one who has an order must
//! not hear "sold out". The buyers of a sale are read once, in pages, by a task of their own for which any number of
//! purchases wait; when the sale was sold out anew (orders were cancelled, and others bought), only those who bought since
//! are read, however many there are in all.
//!
//! Whoever is not known for certain goes on to the sale's strategy, which finds out exactly: a former buyer, and
//! everybody while a reading takes long.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use backon::{ConstantBuilder, Retryable};
use chrono::TimeDelta;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use super::buyer_set::BuyerSet;
use super::store::OrderStore;
use crate::error::Error;

/// How long a purchase waits for a reading.
const PATIENCE: Duration = Duration::from_secs(1);

/// Buyers in one query of a full reading: some milliseconds.
const PAGE: u32 = 5_000;

/// A page that fails is tried again a few times.
const PAGE_RETRIES: ConstantBuilder =
    ConstantBuilder::new().with_delay(Duration::from_millis(200)).with_max_times(4);

/// Those who bought since the last reading, at most; where there are more, all are read anew.
const RECENT: u32 = 100_000;

/// A set is read in full again when it is this old: it contains everybody who ever had an order, and rests on the
/// database's clock not having been stepped back and forth in between.
const FULL_EVERY: Duration = Duration::from_secs(600);

/// Buyers of all sales that are remembered at most, 128 MB; beyond it, those of sales that were not asked for lately are
/// forgotten, and then those of the sale that would be too much, for as long.
const MOST: usize = 16_000_000;
const LATELY: Duration = Duration::from_secs(60);

/// Sales remembered before those that were not asked for lately are dropped, for the first time; then whenever there are
/// twice as many as were left, so that a refusal does not pay for a look at all sales.
const SALES: usize = 1024;

/// A reading that is running.
type Reading = Shared<BoxFuture<'static, ()>>;

/// The buyers of sold-out sales. Cheap to clone.
#[derive(Clone)]
pub struct SoldOutBuyers(Arc<Inner>);

struct Inner {
    store: OrderStore,
    /// The longest that a transaction may take from its first statement to its end.
    longest_transaction: TimeDelta,
    tasks: TaskTracker,
    sales: Mutex<Sales>,
    /// Buyers of all sales together.
    total: Arc<AtomicUsize>,
}

struct Sales {
    by_id: HashMap<i64, Arc<SaleBuyers>>,
    /// The number at which those not asked for lately are dropped.
    sweep_at: usize,
}

#[derive(Default)]
struct SaleBuyers(Mutex<State>);

/// A sale's buyers, as long as they are counted in [`Inner::total`].
struct Counted {
    set: BuyerSet,
    total: Arc<AtomicUsize>,
}

impl Counted {
    fn new(set: BuyerSet, total: &Arc<AtomicUsize>) -> Self {
        total.fetch_add(set.len(), Relaxed);
        Counted { set, total: total.clone() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.total.fetch_sub(self.set.len(), Relaxed);
    }
}

#[derive(Default)]
struct State {
    set: Option<Arc<Counted>>,
    reading: Option<Reading>,
    used: Option<Instant>,
    /// There was no room for it.
    declined: Option<Instant>,
}

impl SoldOutBuyers {
    /// Buyers in this store; `timeout` is the time limit of a database step. Readings run in `tasks`.
    pub fn new(store: OrderStore, timeout: Duration, tasks: TaskTracker) -> Self {
        // Its statements, its commit, and as much again for clocks that are adjusted slowly.
        let longest = TimeDelta::from_std(4 * timeout).unwrap_or(TimeDelta::MAX);
        let sales = Mutex::new(Sales { by_id: HashMap::new(), sweep_at: SALES });
        let total = Arc::default();
        SoldOutBuyers(Arc::new(Inner { store, longest_transaction: longest, tasks, sales, total }))
    }

    /// Whether the user may have an order of this sale, of which nothing was left at `sold_out_since`. "No" is certain:
    /// no order of the user was committed before that.
    pub async fn may_include(&self, voucher_id: i64, user: i64, sold_out_since: Instant) -> bool {
        let sale = self.0.sale(voucher_id);
        // Nearly always: without a timer.
        if let Some(known) = sale.includes(user, sold_out_since) {
            return known;
        }
        let waiting = async {
            // A reading that is running may have begun too early; the next one has not.
            for _ in 0..2 {
                self.0.clone().join(voucher_id, &sale).await;
                if let Some(known) = sale.includes(user, sold_out_since) {
                    return known;
                }
            }
            true
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap_or(true)
    }
}

impl SaleBuyers {
    /// Whether the user is in the set, if that is as young as it must be; `Some(true)` too where there is no room for it.
    fn includes(&self, user: i64, since: Instant) -> Option<bool> {
        let mut state = self.0.lock();
        state.used = Some(Instant::now());
        if state.declined.is_some_and(|at| at.elapsed() < LATELY) {
            return Some(true);
        }
        let set = &state.set.as_ref().filter(|counted| counted.set.as_of >= since)?.set;
        Some(set.contains(user))
    }
}

impl Inner {
    fn sale(&self, voucher_id: i64) -> Arc<SaleBuyers> {
        self.sales.lock().get(voucher_id)
    }

    /// Waits for the reading that is running, or else for a new one.
    fn join(self: Arc<Self>, voucher_id: i64, sale: &Arc<SaleBuyers>) -> Reading {
        let mut state = sale.0.lock();
        // Polled, for `peek` knows of an end only when somebody has waited for it.
        let running =
            state.reading.clone().filter(|reading| reading.clone().now_or_never().is_none());
        running.unwrap_or_else(|| {
            let (inner, of) = (self.clone(), sale.clone());
            let task = self.tasks.spawn(async move { inner.read(voucher_id, &of).await });
            let reading = task
                .map(move |done| {
                    let error = match done {
                        Ok(Ok(())) => return,
                        Ok(Err(error)) => error.to_string(),
                        Err(error) => error.to_string(),
                    };
                    tracing::warn!(voucher_id, error, "the buyers of a sold-out sale are not read");
                })
                .boxed()
                .shared();
            state.reading.insert(reading).clone()
        })
    }

    async fn read(&self, voucher_id: i64, sale: &SaleBuyers) -> Result<(), Error> {
        let is_recent = |known: &Arc<Counted>| known.set.full_as_of.elapsed() < FULL_EVERY;
        let before = sale.0.lock().set.clone().filter(is_recent);
        let as_of = Instant::now();
        let database_time = self.store.database_time().await?;
        let set = match before.filter(|known| known.set.database_time <= database_time) {
            Some(before) => {
                let recent = self.bought_since(voucher_id, &before.set).await;
                recent.map(|recent| before.set.with(recent, as_of, database_time))
            }
            None => None,
        };
        let set = match set {
            Some(set) => set,
            None => {
                // Not two of them at once: they may be large.
                sale.0.lock().set = None;
                BuyerSet::full(self.all(voucher_id).await?, as_of, database_time)
            }
        };
        let has_room = self.make_room(voucher_id, sale, set.len());
        let mut state = sale.0.lock();
        (state.set, state.declined) = match has_room {
            true => (Some(Arc::new(Counted::new(set, &self.total))), None),
            false => (None, Some(Instant::now())),
        };
        Ok(())
    }

    /// Those who bought since `before` was read; `None` where there are too many, or the query takes too long.
    async fn bought_since(&self, voucher_id: i64, before: &BuyerSet) -> Option<Vec<i64>> {
        let since = before.database_time.checked_sub_signed(self.longest_transaction)?;
        let recent = self.store.buyers_since(voucher_id, since, RECENT).await;
        recent.ok().filter(|recent| recent.len() < RECENT as usize)
    }

    async fn all(&self, voucher_id: i64) -> Result<Vec<i64>, Error> {
        let mut all: Vec<i64> = Vec::new();
        loop {
            let after = all.last().copied().unwrap_or(0);
            let page = || self.store.buyers_after(voucher_id, after, PAGE);
            // From here, not from the beginning: on a busy server every hundredth page may be late.
            let page = page.retry(PAGE_RETRIES).await?;
            all.extend(&page);
            if page.len() < PAGE as usize || all.len() > MOST {
                return Ok(all);
            }
        }
    }

    /// Whether so many buyers of this sale can be remembered, for which others may be forgotten.
    fn make_room(&self, voucher_id: i64, sale: &SaleBuyers, count: usize) -> bool {
        // Those of this sale that are remembered until then are replaced.
        let fits = || self.total.load(Relaxed).saturating_sub(sale.len()) + count <= MOST;
        if !fits() {
            let sales = self.sales.lock();
            let others = sales.by_id.iter().filter(|(id, _)| **id != voucher_id);
            others.filter(|(_, sale)| sale.is_unused()).for_each(|(_, sale)| sale.forget());
        }
        fits()
    }
}

impl Sales {
    fn get(&mut self, voucher_id: i64) -> Arc<SaleBuyers> {
        if let Some(sale) = self.by_id.get(&voucher_id) {
            return sale.clone();
        }
        if self.by_id.len() >= self.sweep_at {
            self.by_id.retain(|_, sale| !sale.is_unused());
            self.sweep_at = (2 * self.by_id.len()).max(SALES);
        }
        self.by_id.entry(voucher_id).or_default().clone()
    }
}

impl SaleBuyers {
    /// Whether no purchase has asked for it lately.
    fn is_unused(&self) -> bool {
        self.0.lock().used.is_none_or(|at| at.elapsed() >= LATELY)
    }

    fn len(&self) -> usize {
        self.0.lock().set.as_ref().map_or(0, |counted| counted.set.len())
    }

    fn forget(&self) {
        self.0.lock().set = None;
    }
}
