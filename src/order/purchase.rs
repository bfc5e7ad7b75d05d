//! A purchase from its request to its certain end. What is common to all strategies is here: the
//! quick word to those who come too late, the task that outlives its
//! client, and the retries.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::task::TaskTracker;

use super::group::Groups;
use super::model::{Buyer, NewOrder};
use super::stats::Stats;
use super::steps;
use super::store::{OrderStore, Standing};
use super::strategy;
use super::stream::Stream;
use crate::error::Error;
use crate::id::Ids;
use crate::request::admission::InFlightPermit;
use crate::request::context::in_current_context;
use crate::request::trace;
use crate::voucher::sales::{Sale, Sales};
use ladder::Strategy;
use lock::{Locks, ProcessLocks};

/// How often a purchase is tried in all when it meets deadlocks or taken ids.
const ATTEMPTS: u32 = 4;

/// Longest pause before a try, milliseconds; the pause is random, so that rivals part.
const PAUSE_MS: u64 = 20;

/// Buyers of a sold-out sale that are remembered at most; 8 bytes each.
const BUYERS_REMEMBERED: u32 = 1_000_000;

/// A reading of a sale is so old at least before a purchase on the stream that meets the end has it read
/// anew: there the gate is empty before the database is, and every loser would ask again.
const STREAM_REREAD: Duration = Duration::from_millis(50);

/// An order that was bought.
#[derive(Clone, Copy, Debug)]
pub enum Bought {
    /// Committed.
    Ordered(i64),
    /// A place is held, and the order will be committed or refused under this id.
    Pending(i64),
}

/// What a strategy works with.
pub struct Tools {
    /// The SQL.
    pub store: OrderStore,
    /// Order ids.
    pub ids: Arc<Ids>,
    /// The queues of the group-commit rung.
    pub groups: Groups,
    /// The stream rung: admission, and what consumes it.
    pub stream: Stream,
    /// Locks shared by all nodes.
    pub locks: Locks,
    /// Locks within this process, by user.
    pub process_locks: ProcessLocks,
    /// Lease of the setnx lock.
    pub setnx_lease: Duration,
    /// Longest time one database step may take.
    pub database_timeout: Duration,
}

impl Tools {
    /// Refuses a buyer who has an order, or comes when nothing is left. A look, not a guarantee. The
    /// order is named first: a retry after a lost reply must learn of it even when the sale has sold
    /// out meanwhile.
    pub async fn look(&self, buyer: Buyer) -> Result<(), Error> {
        let standing = trace::step(self.store.standing(buyer), steps::looked).await?;
        standing.ok_or(Error::VoucherNotFound)?.require_chance()
    }

    /// An order for this buyer under a fresh id.
    pub async fn new_order(&self, buyer: Buyer, sale: &Sale) -> Result<NewOrder, Error> {
        Ok(NewOrder { id: self.ids.next().await?, buyer, unguarded: sale.strategy.is_unsafe() })
    }
}

impl Standing {
    /// Refuses who has ordered already, then who comes too late.
    pub fn require_chance(&self) -> Result<(), Error> {
        match self.order_id {
            Some(id) => Err(Error::AlreadyOrdered(Some(id))),
            None if self.stock < 1 => Err(Error::SoldOut),
            None => Ok(()),
        }
    }
}

/// Runs purchases. Cheap to clone.
#[derive(Clone)]
pub struct Purchasing(Arc<Inner>);

struct Inner {
    tools: Tools,
    sales: Arc<Sales>,
    lab: bool,
    tasks: TaskTracker,
    stats: Stats,
}

impl Purchasing {
    /// Purchases with these tools.
    pub fn new(tools: Tools, sales: Arc<Sales>, lab: bool) -> Self {
        let (tasks, stats) = (TaskTracker::new(), Stats::default());
        Purchasing(Arc::new(Inner { tools, sales, lab, tasks, stats }))
    }

    /// The orders, for looking them up.
    pub fn store(&self) -> &OrderStore {
        &self.0.tools.store
    }

    /// The stream, for looking up what it admitted.
    pub fn stream(&self) -> &Stream {
        &self.0.tools.stream
    }

    /// What purchases were told so far.
    pub fn stats(&self) -> &Stats {
        &self.0.stats
    }

    /// What strategies work with: each tool tells what it did.
    pub fn tools(&self) -> &Tools {
        &self.0.tools
    }

    /// Buys one voucher. A purchase that has begun runs to its end even when this future is dropped,
    /// because the client hung up; it keeps its `place` until then (on group-commit, the queue counts it).
    pub async fn buy(&self, buyer: Buyer, place: InFlightPermit) -> Result<Bought, Error> {
        let started = Instant::now();
        trace::mark("arrived", "");
        let sale = self.0.sales.get(buyer.voucher_id).await?;
        let strategy = sale.strategy;
        let outcome = self.buy_of(sale, buyer, place).await;
        self.0.stats.count(strategy, &outcome, started.elapsed());
        outcome
    }

    async fn buy_of(
        &self,
        sale: Arc<Sale>,
        buyer: Buyer,
        place: InFlightPermit,
    ) -> Result<Bought, Error> {
        self.0.admit(buyer, &sale).await?;
        let queues = sale.strategy == Strategy::GroupCommit;
        let bought = if sale.strategy.is_deferred() { Bought::Pending } else { Bought::Ordered };
        let inner = self.0.clone();
        let purchase = async move {
            let _place = place;
            inner.try_until_settled(buyer, &sale).await
        };
        if queues {
            // The queue keeps the purchase, whoever waits for it: a task more would only cost.
            return purchase.await.map(bought);
        }
        let task = self.0.tasks.spawn(in_current_context(purchase));
        let outcome = task.await;
        outcome
            .unwrap_or_else(|fault| Err(Error::Internal(format!("purchase task: {fault}"))))
            .map(bought)
    }

    /// Waits until no purchase is in flight. New ones can still begin: to be called when no request
    /// can come in any more.
    pub async fn finished(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.0.tools.groups.finished().await;
        self.0.tools.stream.shutdown().await;
    }

    /// Ends what the locks have running in the background.
    pub async fn shutdown_locks(&self) {
        self.0.tools.locks.shutdown().await;
    }
}

impl Inner {
    /// Refuses, at no cost, whoever comes before or after the sale, or when nothing is left.
    async fn admit(&self, buyer: Buyer, sale: &Sale) -> Result<(), Error> {
        sale.window.require_open()?;
        if sale.strategy.is_unsafe() {
            // These rungs go all the way every time, so that what is seen is theirs.
            return if self.lab { Ok(()) } else { Err(Error::LabOnly(sale.strategy.name())) };
        }
        if !sale.sold_out {
            return Ok(());
        }
        // Who has an order is not told that he came too late: the strategy finds out which it is.
        let read = async || {
            let buyers = self.tools.store.buyers(buyer.voucher_id, BUYERS_REMEMBERED).await?;
            Ok::<_, Error>(buyers.map(Arc::from))
        };
        match sale.buyers.get_or_try_init(read).await? {
            Some(buyers) if buyers.binary_search(&buyer.user_id).is_ok() => Ok(()),
            _ => Err(Error::SoldOut),
        }
    }

    async fn try_until_settled(&self, buyer: Buyer, sale: &Arc<Sale>) -> Result<i64, Error> {
        let started = Instant::now();
        let mut attempt = 1;
        loop {
            let outcome = strategy::buy(&self.tools, buyer, sale).await;
            let again = attempt < ATTEMPTS && started.elapsed() < self.tools.database_timeout;
            match outcome {
                Err(Error::Conflict) if again => {}
                Err(Error::DuplicateId) if again => {
                    tracing::warn!("order id already taken: the counter was lost; leasing anew");
                    self.tools.ids.abandon_lease();
                }
                // The unique index knows that there is an order; the buyer is told which.
                Err(Error::AlreadyOrdered(None)) => {
                    let standing = self.tools.store.standing(buyer).await.ok().flatten();
                    let id = standing.and_then(|standing| standing.order_id);
                    return Err(Error::AlreadyOrdered(id));
                }
                Err(Error::SoldOut) => {
                    if sale.strategy != Strategy::Stream || sale.age() > STREAM_REREAD {
                        self.sales.sold_out(sale);
                    }
                    return Err(Error::SoldOut);
                }
                settled => return settled,
            }
            attempt += 1;
            let pause = rand::random_range(1..=PAUSE_MS);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<'a, F: Future>(_: fn(&'a Purchasing, Buyer, InFlightPermit) -> F) -> usize {
        size_of::<F>()
    }

    /// Each purchase's future is boxed and moved: what makes it larger slows down even those who come too late.
    #[test]
    fn a_purchase_is_small_enough_to_be_moved() {
        let bytes = size(Purchasing::buy);
        assert!(
            bytes < 4096,
            "{bytes} bytes: is a future held twice, as an `async fn` holds its arguments?"
        );
    }
}
