//! [`GroupCommit`]: queues of purchases, one shared by all sales, and the workers that empty them. docs/GROUP-COMMIT.md
//! says when a batch starts, and why.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::batch::{BatchAnswer, BatchContext, BatchEnd, GroupCommitStats, QueuedPurchase};
use super::queues::{Key, QueueDepth, Queues};
use crate::error::Error;
use crate::id::IdGenerator;
use crate::order::batch::BatchCommitter;
use crate::order::deadline::Deadline;
use crate::order::model::Buyer;
use crate::order::store::Kind;
use crate::order::store::OrderStore;
use crate::voucher::sales::Sale;

pub use super::queues::GroupCommitLimits;

/// Purchases that may wait in a queue.
pub const QUEUE: usize = 4096;

/// How long a worker pauses after a large batch, whose buyers are about to come back; the timer's resolution adds up to
/// a millisecond.
const PAUSE: Duration = Duration::from_micros(500);

/// The queues of this process. Cheap to clone.
#[derive(Clone)]
pub struct GroupCommit(Arc<Inner>);

struct Inner {
    batches: BatchContext,
    queues: Queues<QueuedPurchase>,
}

impl GroupCommit {
    /// Commits to this store, under ids of `ids`.
    pub fn new(store: OrderStore, ids: Arc<IdGenerator>, limits: GroupCommitLimits) -> Self {
        let batches = BatchContext {
            committer: BatchCommitter::new(store, Kind::Purchases),
            ids,
            timeout: limits.timeout,
            tasks: TaskTracker::new(),
            stats: Arc::default(),
        };
        GroupCommit(Arc::new(Inner {
            batches,
            queues: Queues::new(limits),
        }))
    }

    /// Queues a purchase; its answer has the id of the committed order. Once queued it is carried out to its end, even
    /// if this future is dropped.
    ///
    /// Errors in the answer: [`Error::Overloaded`] where the queue is full, [`Error::OutcomeUnknown`] where the batch
    /// panicked, and the refusals of a purchase.
    pub async fn order(&self, buyer: Buyer, sale: &Sale, deadline: Deadline) -> BatchAnswer {
        let (answer, answered) = oneshot::channel();
        let window = sale.window;
        let since = Instant::now();
        let purchase = QueuedPurchase {
            buyer,
            window,
            since,
            deadline,
            answer,
        };
        match self.0.queues.enqueue(buyer.voucher_id, purchase) {
            Ok(Some(key)) => self.start_worker(key),
            Ok(None) => {}
            Err(error) => return error.into(),
        }
        // Without an answer, the batch has panicked: it is unknown whether it has committed.
        answered
            .await
            .unwrap_or_else(|_| Error::OutcomeUnknown(None).into())
    }

    fn start_worker(&self, key: Key) {
        self.0.batches.tasks.spawn(self.clone().work(key));
    }

    /// Commits batch after batch until the queue is empty.
    async fn work(self, key: Key) {
        let mut last_batch_size = 0;
        while let Some(batch) = self.0.queues.next_batch(key, last_batch_size) {
            last_batch_size = batch.len();
            // A task of its own, so that a panic ends one batch and not the queue.
            let run = self
                .0
                .batches
                .tasks
                .spawn(super::batch::run(self.0.batches.clone(), batch));
            match run.await {
                Ok(BatchEnd {
                    reached_commit,
                    blocked,
                }) => {
                    for (sale, purchases) in blocked {
                        if self.0.queues.set_apart(sale, purchases) {
                            self.start_worker(Some(sale));
                        }
                    }
                    if reached_commit && let Some(sale) = key {
                        self.0.queues.rejoin(sale);
                    }
                }
                Err(error) => tracing::error!(%error, "a batch ended without answering"),
            }
            if self.0.queues.should_pause(key, last_batch_size) {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// The lengths of the queues at this moment.
    pub fn depth(&self) -> QueueDepth {
        self.0.queues.depth()
    }

    /// Counters of what was committed.
    pub fn stats(&self) -> &GroupCommitStats {
        &self.0.batches.stats
    }

    /// Waits until nothing is queued or being committed. To be called when no purchase can come in
    /// any more.
    pub async fn finished(&self) {
        self.0.batches.tasks.close();
        self.0.batches.tasks.wait().await;
    }
}
