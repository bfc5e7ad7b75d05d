//! [`Queues`]: what waits for a commit, by sale, and how many workers empty each queue. It knows nothing of purchases, nor
//! of the database, so that a concurrency explorer can run it.

use std::collections::{HashMap, VecDeque};

use crate::error::Error;
use crate::sync::Mutex;

/// Bounds of each queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueLimits {
    /// Items in one batch.
    pub batch: usize,
    /// Items waiting; one more is refused.
    pub queue: usize,
    /// Batches in flight at once.
    pub in_flight: u32,
    /// After a batch of more items a worker may pause.
    pub large: usize,
}

/// The queues of all sales.
pub(super) struct Queues<T> {
    limits: QueueLimits,
    by_sale: Mutex<HashMap<i64, Queue<T>>>,
}

/// One sale's queue; exists while a worker does.
struct Queue<T> {
    waiting: VecDeque<T>,
    workers: u32,
    /// Items in batches that are being committed.
    in_flight: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { waiting: VecDeque::new(), workers: 0, in_flight: 0 }
    }
}

impl<T> Queue<T> {
    /// Whether one more batch is worth while beside those in flight, if any.
    fn is_ready(&self) -> bool {
        self.waiting.len() >= self.in_flight.max(1)
    }
}

/// The lengths of the queues at one moment, over all sales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueDepth {
    /// Purchases that are in no batch yet.
    pub waiting: usize,
    /// Purchases in batches that are being committed.
    pub in_flight: usize,
    /// Batches that are being committed.
    pub batches: usize,
}

impl<T> Queues<T> {
    pub(super) fn new(limits: QueueLimits) -> Self {
        Queues { limits, by_sale: Mutex::new(HashMap::new()) }
    }

    /// Queues an item; says whether the caller has to start a worker, which calls [`Queues::next_batch`] until there is
    /// none.
    ///
    /// # Errors
    /// [`Error::Overloaded`] where the queue is full.
    pub(super) fn enqueue(&self, voucher_id: i64, item: T) -> Result<bool, Error> {
        let mut queues = self.by_sale.lock();
        let queue = queues.entry(voucher_id).or_default();
        if queue.waiting.len() >= self.limits.queue {
            return Err(Error::Overloaded);
        }
        queue.waiting.push_back(item);
        let starts = queue.workers < self.limits.in_flight && queue.is_ready();
        queue.workers += u32::from(starts);
        Ok(starts)
    }

    /// Whether a worker that has committed a batch of size `done` is to pause before it asks for the next one: after a large
    /// batch, while few wait. Until it asks, its batch counts as in flight, so that no other worker begins with those few.
    pub(super) fn pauses(&self, voucher_id: i64, done: usize) -> bool {
        let few = |queue: &Queue<T>| queue.waiting.len() < done / 2;
        done > self.limits.large && self.by_sale.lock().get(&voucher_id).is_some_and(few)
    }

    /// The next batch, first in first out, of a worker that has committed one of size `done`; `None` ends the worker.
    pub(super) fn next_batch(&self, voucher_id: i64, done: usize) -> Option<Vec<T>> {
        let mut queues = self.by_sale.lock();
        let queue = queues.get_mut(&voucher_id)?;
        queue.in_flight -= done;
        if queue.is_ready() {
            let count = queue.waiting.len().min(self.limits.batch);
            queue.in_flight += count;
            return Some(queue.waiting.drain(..count).collect());
        }
        queue.workers -= 1;
        if queue.workers == 0 {
            queues.remove(&voucher_id);
        }
        None
    }

    pub(super) fn depth(&self) -> QueueDepth {
        let mut depth = QueueDepth::default();
        for queue in self.by_sale.lock().values() {
            depth.waiting += queue.waiting.len();
            depth.in_flight += queue.in_flight;
            depth.batches += queue.workers as usize;
        }
        depth
    }
}

#[cfg(test)]
mod interleavings;
