//! One batch of group commit, from the queue to every buyer's answer. All are answered after the commit, by what was
//! committed ([`crate::order::batch`]).
//!
//! - An order that cannot be inserted fails alone: each order of its batch then gets a transaction of its own, beside the
//!   queue.
//! - Sales whose rows are locked, by a transaction of another kind, delay the others once, all together: the batch is
//!   committed without them.

use std::collections::HashMap;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::error::{Cause, Error};
use crate::histogram::Histogram;
use crate::id::IdGenerator;
use crate::order::batch::{BatchCommitter, BatchError, Outcomes};
use crate::order::deadline::{Deadline, until};
use crate::order::model::{Buyer, NewOrder};
use crate::voucher::sales::Window;

/// Transactions at once where each order gets its own.
const SINGLES_AT_ONCE: usize = 8;

/// Bounds of a batch's size.
const SIZES: [u64; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// Counters for `/metrics`; all only rise.
#[derive(Debug)]
pub struct GroupCommitStats {
    /// Orders committed by each batch, without batches that committed none.
    pub sizes: Histogram,
    /// Batches that were split into single transactions because of one order.
    pub splits: AtomicU64,
}

impl Default for GroupCommitStats {
    fn default() -> Self {
        GroupCommitStats {
            sizes: Histogram::of_sizes(&SIZES),
            splits: AtomicU64::new(0),
        }
    }
}

/// What a batch works with.
#[derive(Clone)]
pub struct BatchContext {
    pub(super) committer: BatchCommitter,
    pub(super) ids: Arc<IdGenerator>,
    /// Longest wait in the queue.
    pub(super) timeout: Duration,
    pub(super) tasks: TaskTracker,
    pub(super) stats: Arc<GroupCommitStats>,
}

type Answer = oneshot::Sender<BatchAnswer>;

/// What became of a purchase.
pub struct BatchAnswer {
    /// The id of the committed order.
    pub outcome: Result<i64, Error>,
    /// How many orders its batch committed; 0 where it was in none.
    pub committed: usize,
}

impl From<Error> for BatchAnswer {
    fn from(error: Error) -> Self {
        BatchAnswer {
            outcome: Err(error),
            committed: 0,
        }
    }
}

/// A purchase that waits for its commit.
pub struct QueuedPurchase {
    pub(super) buyer: Buyer,
    /// The sale may close while it waits.
    pub(super) window: Window,
    pub(super) since: Instant,
    /// If its commit has not begun by then, it is not committed.
    pub(super) deadline: Deadline,
    pub(super) answer: Answer,
}

impl QueuedPurchase {
    /// Answers; a failed send means that the client hung up, which is no error.
    fn answer(self, outcome: Result<i64, Error>, committed: usize) {
        self.answer.send(BatchAnswer { outcome, committed }).ok();
    }
}

/// One order of the batch, with all requests that wait for the answer.
struct BatchedBuyer {
    first: QueuedPurchase,
    /// Further requests of the same user for the same voucher.
    repeated: Vec<QueuedPurchase>,
}

impl BatchedBuyer {
    fn answer(self, outcome: Result<i64, Error>, committed: usize) {
        for repeated in self.repeated {
            // The first request made the order; the others are second orders.
            let outcome = outcome
                .clone()
                .and_then(|id| Err(Error::AlreadyOrdered(Some(id))));
            repeated.answer(outcome, committed);
        }
        self.first.answer(outcome, committed);
    }
}

/// How a batch ended, apart from the answers.
#[derive(Default)]
pub(super) struct BatchEnd {
    /// Whether it came to its commit: no row of a sale was in the way.
    pub reached_commit: bool,
    /// Sales whose row could not be changed, and their purchases, which are not answered.
    pub blocked: Vec<(i64, Vec<QueuedPurchase>)>,
}

/// Commits a batch of purchases, in the order of their arrival, and answers them all, except those of sales that keep the
/// others from being committed.
pub(super) async fn run(context: BatchContext, queued: Vec<QueuedPurchase>) -> BatchEnd {
    let mut buyers = join_repeated_requests(queued, context.timeout);
    let mut ended = BatchEnd::default();
    // The earliest deadline: that of the buyer who came first.
    let Some(deadline) = buyers.iter().map(|buyer| buyer.first.deadline).min() else {
        return ended;
    };
    let mut orders = match context.orders(&buyers, deadline).await {
        Ok(orders) => orders,
        Err(error) => {
            answer_all(buyers, &error);
            return ended;
        }
    };
    loop {
        match context.commit(&orders, deadline).await {
            Ok(outcomes) => {
                ended.reached_commit = true;
                let committed = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
                for (buyer, outcome) in buyers.into_iter().zip(outcomes) {
                    buyer.answer(outcome, committed);
                }
            }
            Err(BatchError::Sales(sales, error)) if is_of_several_sales(&orders) => {
                tracing::warn!(voucher_ids = ?sales, %error, "sales are committed apart from the others");
                for sale in &sales {
                    let blocked = buyers
                        .extract_if(.., |buyer| buyer.first.buyer.voucher_id == *sale)
                        .flat_map(|buyer| iter::once(buyer.first).chain(buyer.repeated));
                    ended.blocked.push((*sale, blocked.collect()));
                }
                orders.retain(|order| !sales.contains(&order.buyer.voucher_id));
                if !orders.is_empty() {
                    continue;
                }
            }
            Err(BatchError::All(error) | BatchError::Sales(_, error)) => {
                answer_all(buyers, &error);
            }
            Err(BatchError::Order(error)) if buyers.len() == 1 => answer_all(buyers, &error),
            Err(BatchError::Order(error)) => {
                tracing::warn!(orders = orders.len(), %error, "a batch is split");
                context.stats.splits.fetch_add(1, Relaxed);
                let tasks = context.tasks.clone();
                tasks.spawn(commit_singly(context, buyers, orders));
            }
        }
        return ended;
    }
}

fn is_of_several_sales(orders: &[NewOrder]) -> bool {
    let sale = |order: &NewOrder| order.buyer.voucher_id;
    orders.iter().any(|order| sale(order) != sale(&orders[0]))
}

fn answer_all(buyers: Vec<BatchedBuyer>, error: &Error) {
    for buyer in buyers {
        buyer.answer(Err(error.clone()), 0);
    }
}

/// Refuses purchases that waited too long or past the end of the sale, and joins requests of the same buyer.
fn join_repeated_requests(queued: Vec<QueuedPurchase>, limit: Duration) -> Vec<BatchedBuyer> {
    let mut buyers: Vec<BatchedBuyer> = Vec::with_capacity(queued.len());
    let mut positions: HashMap<Buyer, usize> = HashMap::with_capacity(queued.len());
    for purchase in queued {
        let admitted = if purchase.since.elapsed() > limit {
            Err(Error::Unavailable(Cause::Database))
        } else {
            purchase.window.require_open()
        };
        if let Err(refusal) = admitted {
            purchase.answer(Err(refusal), 0);
        } else if let Some(&position) = positions.get(&purchase.buyer) {
            buyers[position].repeated.push(purchase);
        } else {
            positions.insert(purchase.buyer, buyers.len());
            buyers.push(BatchedBuyer {
                first: purchase,
                repeated: Vec::new(),
            });
        }
    }
    buyers
}

/// Gives each order a transaction of its own, a few at a time.
async fn commit_singly(context: BatchContext, buyers: Vec<BatchedBuyer>, orders: Vec<NewOrder>) {
    let context = &context;
    stream::iter(buyers.into_iter().zip(orders))
        .for_each_concurrent(SINGLES_AT_ONCE, |(buyer, order)| async move {
            let committing = context.committer.commit_one(order, buyer.first.deadline);
            let outcome = committing.await;
            let committed = usize::from(outcome.is_ok());
            context.count(committed);
            buyer.answer(outcome, committed);
        })
        .await;
}

impl BatchContext {
    /// An order with a fresh id for each buyer.
    async fn orders(
        &self,
        buyers: &[BatchedBuyer],
        deadline: Deadline,
    ) -> Result<Vec<NewOrder>, Error> {
        let mut ids = vec![0; buyers.len()];
        until(deadline, self.ids.fill(&mut ids)).await??;
        let orders = ids.into_iter().zip(buyers).map(|(id, buyer)| NewOrder {
            id,
            buyer: buyer.first.buyer,
            unguarded: false,
        });
        Ok(orders.collect())
    }

    async fn commit(
        &self,
        orders: &[NewOrder],
        deadline: Deadline,
    ) -> Result<Outcomes, BatchError> {
        let outcomes = self.committer.commit(orders, deadline).await?;
        self.count(outcomes.iter().filter(|outcome| outcome.is_ok()).count());
        Ok(outcomes)
    }

    fn count(&self, committed: usize) {
        if committed > 0 {
            self.stats.sizes.add(committed as u64);
        }
    }
}
