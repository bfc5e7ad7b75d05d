//! Group commit: purchases that arrive while a commit runs share the next one.
//!
//! Each sale has a queue in each process, and a worker for as long as there is anything in it. The
//! worker takes whatever is waiting, up to a bound, commits it in one transaction ([`batch`]), answers
//! everybody, and takes what has queued meanwhile. There is no timer: the first purchase of a
//! quiet sale is committed at once, alone, and the busier the sale the larger the batches. The idea is
//! as old as the log manager of a database (Gawlick and Kinkade, "Varieties of Concurrency Control in
//! IMS/VS Fast Path", 1985).
//!
//! A busy sale has a second worker, so that one batch is gathered and inserted while the other waits for
//! the disk. It begins only when as many are waiting as the other has under way: so the two settle at
//! batches of equal size, whatever the load, instead of a large and a tiny one in turn.
//!
//! A purchase in the queue has no client any more: if nobody waits for the answer, the order is
//! committed all the same.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::model::Buyer;
use super::store::OrderStore;
use crate::error::Error;
use crate::id::Ids;
use crate::voucher::sales::{Sale, Window};

pub mod batch;
mod stats;

pub use stats::Stats;

/// How much may gather.
#[derive(Clone, Copy, Debug)]
pub struct GroupLimits {
    /// Orders in one transaction.
    pub batch: usize,
    /// Purchases waiting for a sale; one more is told [`Error::Overloaded`].
    pub queue: usize,
    /// Batches of one sale under way at once.
    pub in_flight: u32,
    /// Longest wait in the queue, and the limit of one database step.
    pub timeout: Duration,
}

/// The queues of all sales of this process. Cheap to clone.
#[derive(Clone)]
pub struct Groups(Arc<Inner>);

struct Inner {
    tools: batch::Tools,
    limits: GroupLimits,
    queues: Mutex<HashMap<i64, Queue>>,
    tasks: TaskTracker,
}

/// One sale's queue; exists while a worker does.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    workers: u32,
    /// Purchases in the batches under way.
    under_way: usize,
}

impl Queue {
    /// Whether one more batch is worth while beside those under way, if any.
    fn is_ripe(&self) -> bool {
        self.waiting.len() >= self.under_way.max(1)
    }
}

/// What gathers at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Purchases that are in no batch yet.
    pub waiting: usize,
    /// Purchases in batches that are being committed.
    pub under_way: usize,
    /// Batches that are being committed.
    pub batches: usize,
}

/// A purchase that waits for its commit.
pub struct Waiting {
    user_id: i64,
    /// The sale may close while it waits.
    window: Window,
    since: Instant,
    answer: oneshot::Sender<Result<i64, Error>>,
}

impl Groups {
    /// Groups on this store, with these ids.
    pub fn new(store: OrderStore, ids: Arc<Ids>, limits: GroupLimits) -> Self {
        let tasks = TaskTracker::new();
        let stats = Arc::default();
        let tools =
            batch::Tools { store, ids, timeout: limits.timeout, tasks: tasks.clone(), stats };
        Groups(Arc::new(Inner { tools, limits, queues: Mutex::default(), tasks }))
    }

    /// Queues a purchase; returns the id of the committed order. Once queued it runs to its end, also
    /// when this future is dropped.
    pub async fn order(&self, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
        let (answer, answered) = oneshot::channel();
        let (user_id, window) = (buyer.user_id, sale.window);
        let waiting = Waiting { user_id, window, since: Instant::now(), answer };
        self.queue(buyer.voucher_id, waiting)?;
        // Without an answer the batch has panicked, and nobody knows how far it came.
        answered.await.unwrap_or(Err(Error::OutcomeUnknown(None)))
    }

    fn queue(&self, voucher_id: i64, waiting: Waiting) -> Result<(), Error> {
        let mut queues = self.0.queues();
        let queue = queues.entry(voucher_id).or_default();
        if queue.waiting.len() >= self.0.limits.queue {
            return Err(Error::Overloaded);
        }
        queue.waiting.push_back(waiting);
        if queue.workers < self.0.limits.in_flight && queue.is_ripe() {
            queue.workers += 1;
            self.0.tasks.spawn(self.clone().work(voucher_id));
        }
        Ok(())
    }

    /// Commits batch after batch until nobody waits.
    async fn work(self, voucher_id: i64) {
        let mut done = 0;
        while let Some(waiting) = self.0.take(voucher_id, done) {
            done = waiting.len();
            let tools = self.0.tools.clone();
            // A task of its own, so that a panic ends one batch and not the sale.
            let batch = self.0.tasks.spawn(batch::run(tools, voucher_id, waiting));
            if let Err(fault) = batch.await {
                tracing::error!(voucher_id, %fault, "a batch ended without answering");
            }
        }
    }

    /// What gathers at this moment, over all sales.
    pub fn depth(&self) -> Depth {
        let mut depth = Depth::default();
        for queue in self.0.queues().values() {
            depth.waiting += queue.waiting.len();
            depth.under_way += queue.under_way;
            depth.batches += queue.workers as usize;
        }
        depth
    }

    /// What was committed so far.
    pub fn stats(&self) -> &Stats {
        &self.0.tools.stats
    }

    /// Waits until nothing is queued or being committed. To be called when no purchase can come in
    /// any more.
    pub async fn finished(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

impl Inner {
    /// The next batch of a worker that has committed one of size `done`, first come first; `None` ends
    /// the worker.
    fn take(&self, voucher_id: i64, done: usize) -> Option<Vec<Waiting>> {
        let mut queues = self.queues();
        let queue = queues.get_mut(&voucher_id)?;
        queue.under_way -= done;
        if queue.is_ripe() {
            let count = queue.waiting.len().min(self.limits.batch);
            queue.under_way += count;
            return Some(queue.waiting.drain(..count).collect());
        }
        queue.workers -= 1;
        if queue.workers == 0 {
            queues.remove(&voucher_id);
        }
        None
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<i64, Queue>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
