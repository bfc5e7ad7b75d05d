//! [`PurchaseService`]: runs a purchase from its request to a definite outcome. What all strategies have in common is
//! here: the cheap refusals, the retries, and what becomes of a purchase whose outcome is unknown.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::Retryable;
use futures_util::FutureExt;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::deadline::Deadline;
use super::model::{Buyer, NewOrder, Purchased};
use super::recent_buyers::RecentBuyers;
use super::retry::conflict_pauses;
use super::stats::PurchaseStats;
use super::store::OrderStore;
use super::strategy;
use super::strategy::context::{Purchase, PurchaseContext};
use crate::error::Error;
use crate::request::admission::InFlightPermit;
use crate::request::panic::Panic;
use crate::request::trace;
use crate::voucher::sales::{Sale, SaleCache};
use strategies::Strategy;

/// On the strategy `stream`, a purchase that finds nothing left has the sale read again only if the sale was read longer
/// ago than this: the stock counter in Redis is empty before the database's stock is, so otherwise every refused buyer
/// would cause a read.
const STREAM_REREAD: Duration = Duration::from_millis(50);

/// How many purchases with an unknown outcome are decided in the background at the same time. Further ones are left to
/// look-ups, which can say what became of an order once its id is old enough.
const UNDECIDED: usize = 64;

/// The pause between two tries to decide.
const DECIDE_EVERY: Duration = Duration::from_secs(1);

/// For how long these tries go on.
const DECIDE_WITHIN: Duration = Duration::from_secs(60);

/// Runs purchases. Cheap to clone.
#[derive(Clone)]
pub struct PurchaseService(Arc<Inner>);

struct Inner {
    context: PurchaseContext,
    sales: Arc<SaleCache>,
    /// Buyers who lately had an order, as far as this process knows. If they ask again when the sale is sold out, the reply
    /// has the order's id.
    buyers: RecentBuyers,
    tasks: TaskTracker,
    /// A permit for each purchase that is decided in the background.
    deciders: Arc<Semaphore>,
    stopping: CancellationToken,
    stats: PurchaseStats,
}

impl PurchaseService {
    /// Purchases with this context.
    pub fn new(context: PurchaseContext, sales: Arc<SaleCache>) -> Self {
        let tasks = TaskTracker::new();
        let stats = PurchaseStats::default();
        PurchaseService(Arc::new(Inner {
            context,
            sales,
            buyers: RecentBuyers::default(),
            tasks,
            deciders: Arc::new(Semaphore::new(UNDECIDED)),
            stopping: CancellationToken::new(),
            stats,
        }))
    }

    /// Counters of purchases by strategy and outcome.
    pub fn stats(&self) -> &PurchaseStats {
        &self.0.stats
    }

    /// What strategies work with: for look-ups and counters.
    pub fn context(&self) -> &PurchaseContext {
        &self.0.context
    }

    /// Buys one voucher.
    ///
    /// # Errors
    /// The refusals of the contract; [`Error::OutcomeUnknown`] where an order may exist; every other error means that
    /// this request made no order.
    pub async fn buy(&self, buyer: Buyer, permit: InFlightPermit) -> Result<Purchased, Error> {
        let started = Instant::now();
        let deadline = (started + self.0.context.commits_within).into();
        trace::mark("arrived", "");
        let (strategy, outcome) = match self.0.sales.get(buyer.voucher_id).await {
            Ok(sale) => (
                Some(sale.strategy),
                self.run(sale, buyer, permit, deadline).await,
            ),
            Err(error) => (None, Err(error)),
        };
        self.0.stats.count(strategy, &outcome, started.elapsed());
        outcome
    }

    async fn run(
        &self,
        sale: Arc<Sale>,
        buyer: Buyer,
        permit: InFlightPermit,
        deadline: Deadline,
    ) -> Result<Purchased, Error> {
        self.0.admit(buyer, &sale)?;
        // How the strategy answers a success.
        let purchased = if sale.strategy.is_deferred() {
            Purchased::Pending
        } else {
            Purchased::Committed
        };
        // A shutdown waits for this purchase, even if its client has hung up.
        let _counted = self.0.tasks.token();
        let _permit = permit;
        let work = self.0.buy_with_retries(buyer, &sale, deadline);
        let ended = AssertUnwindSafe(work).catch_unwind().await;
        let outcome = ended.unwrap_or_else(|panic| Err(unknown_after(panic)));
        if let Err(Error::OutcomeUnknown(Some(id))) = outcome
            && !sale.strategy.is_deferred()
        {
            self.0.decide_later(NewOrder {
                id,
                buyer,
                unguarded: sale.strategy.is_unguarded(),
            });
        }
        outcome.map(purchased)
    }

    /// Waits until no purchase is in flight. New ones can still begin: to be called when no request
    /// can come in any more.
    pub async fn finished(&self) {
        self.0.stopping.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.0.context.group_commit.finished().await;
        self.0.context.memory_queue.finished().await;
        self.0.context.stream.shutdown().await;
        self.0.sales.shutdown().await;
    }
}

impl Inner {
    /// Refuses, without a round trip, purchases before or after the sale, or when nothing is left.
    fn admit(&self, buyer: Buyer, sale: &Sale) -> Result<(), Error> {
        sale.window.require_open()?;
        if sale.strategy.is_unsafe() {
            // These strategies always run in full, so that what is seen is their own behaviour.
            return if self.context.lab {
                Ok(())
            } else {
                Err(Error::LabOnly(sale.strategy.name()))
            };
        }
        // A known buyer goes on to the strategy, which reads whether the order still exists: it may be cancelled by now.
        if sale.sold_out && !self.buyers.may_contain(buyer) {
            return Err(Error::SoldOut);
        }
        Ok(())
    }

    /// Starts to decide in the background what became of an order whose buyer was answered [`Error::OutcomeUnknown`].
    fn decide_later(&self, order: NewOrder) {
        let Ok(place) = self.deciders.clone().try_acquire_owned() else {
            return;
        };
        let store = self.context.store.clone();
        let stopping = self.stopping.clone();
        self.tasks.spawn(async move {
            let _place = place;
            let deciding = tokio::time::timeout(DECIDE_WITHIN, decide_until_known(&store, order));
            stopping.run_until_cancelled(deciding).await;
        });
    }

    async fn buy_with_retries(
        &self,
        buyer: Buyer,
        sale: &Arc<Sale>,
        deadline: Deadline,
    ) -> Result<i64, Error> {
        let PurchaseContext { store, ids, .. } = &self.context;
        let purchase = Purchase {
            context: &self.context,
            buyer,
            sale,
            deadline,
        };
        let outcome = (|| strategy::buy(purchase))
            .retry(conflict_pauses(store.time_limit()))
            .when(|error| matches!(error, Error::Conflict | Error::DuplicateId))
            .notify(|error, _| {
                if let Error::DuplicateId = error {
                    tracing::warn!("order id already taken: the counter was lost; leasing anew");
                    ids.abandon_lease();
                }
            })
            .await;
        if let Ok(_) | Err(Error::AlreadyOrdered(_)) = outcome {
            self.buyers.insert(buyer);
        }
        match outcome {
            // The unique index refused the order without saying which one the buyer has.
            Err(Error::AlreadyOrdered(None)) => {
                let status = store.buyer_status(buyer).await.ok().flatten();
                Err(Error::AlreadyOrdered(
                    status.and_then(|status| status.order_id),
                ))
            }
            Err(Error::SoldOut) => {
                if sale.strategy != Strategy::Stream || sale.age() > STREAM_REREAD {
                    self.sales.found_sold_out(sale);
                }
                Err(Error::SoldOut)
            }
            outcome => outcome,
        }
    }
}

/// Tries to write the order's refusal until the database answers: the row under the id then says what became of the order.
async fn decide_until_known(store: &OrderStore, order: NewOrder) {
    loop {
        tokio::time::sleep(DECIDE_EVERY).await;
        match store.refuse(&[order]).await {
            Ok(_) => break tracing::info!(order_id = order.id, "the outcome is known"),
            Err(error) => tracing::debug!(order_id = order.id, %error, "not decided yet"),
        }
    }
}

/// The outcome of a purchase that panicked: perhaps after its commit.
fn unknown_after(panic: Box<dyn Any + Send>) -> Error {
    tracing::error!(panic = %Panic::from(panic), "a purchase ended without an outcome");
    Error::OutcomeUnknown(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_of_a_purchase_that_panics_is_unknown() {
        let panic = std::panic::catch_unwind(|| panic!("after its commit")).unwrap_err();
        assert!(matches!(unknown_after(panic), Error::OutcomeUnknown(None)));
    }

    fn size<'a, F: Future>(_: fn(&'a PurchaseService, Buyer, InFlightPermit) -> F) -> usize {
        size_of::<F>()
    }

    fn size_of_task<'a, F: Future>(_: fn(&'a Inner, Buyer, &'a Arc<Sale>, Deadline) -> F) -> usize {
        size_of::<F>()
    }

    /// Each purchase's futures are boxed and moved: what makes them larger slows down even the refusals.
    #[test]
    fn a_purchase_is_small_enough_to_be_moved() {
        for bytes in [
            size(PurchaseService::buy),
            size_of_task(Inner::buy_with_retries),
        ] {
            assert!(
                bytes < 1024,
                "{bytes} bytes: is a future held twice, as an `async fn` holds its arguments?"
            );
        }
    }
}
