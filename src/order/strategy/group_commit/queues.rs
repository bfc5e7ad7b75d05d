//! [`Queues`]: what waits for a commit, and how many workers empty each queue. All sales share one queue. A sale that keeps the
//! others from being committed is set apart: it has a queue of its own until it is committed again. Pure: no purchases, no
//! I/O.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::Error;

/// After a batch of more items a worker may pause.
const LARGE: usize = 16;

/// Bounds of each queue.
#[derive(Clone, Copy, Debug)]
pub struct GroupCommitLimits {
    /// Orders in one transaction.
    pub batch: usize,
    /// Purchases waiting; one more is refused with [`Error::Overloaded`].
    pub queue: usize,
    /// Batches in flight at once.
    pub in_flight: u32,
    /// Longest wait in the queue, and the limit of one database step.
    pub timeout: Duration,
}

/// Which queue: `None` is that of all sales, `Some` that of a sale set apart.
pub(super) type Key = Option<i64>;

/// The queues.
pub(super) struct Queues<T> {
    limits: GroupCommitLimits,
    all: Mutex<All<T>>,
}

struct All<T> {
    queues: HashMap<Key, Queue<T>>,
    /// Sales with a queue of their own.
    apart: HashSet<i64>,
}

/// A queue; exists while a worker does.
struct Queue<T> {
    waiting: VecDeque<T>,
    workers: u32,
    /// Items in batches that are being committed.
    in_flight: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue {
            waiting: VecDeque::new(),
            workers: 0,
            in_flight: 0,
        }
    }
}

impl<T> Queue<T> {
    /// Whether one more batch is worth while: as many items wait as are in flight, and one at least.
    fn is_ready(&self) -> bool {
        self.waiting.len() >= self.in_flight.max(1)
    }

    /// Counts one more worker if there is work for it; says whether it did.
    fn add_worker_if_ready(&mut self, limits: GroupCommitLimits) -> bool {
        if self.workers < limits.in_flight && self.is_ready() {
            self.workers += 1;
            true
        } else {
            false
        }
    }
}

/// The lengths of the queues at one moment, all together.
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
    pub(super) fn new(limits: GroupCommitLimits) -> Self {
        let all = All {
            queues: HashMap::new(),
            apart: HashSet::new(),
        };
        Queues {
            limits,
            all: Mutex::new(all),
        }
    }

    /// Queues an item of a sale. If it returns a key, the caller has to start a worker of that queue, which calls
    /// [`Queues::next_batch`] until there is none.
    ///
    /// # Errors
    /// [`Error::Overloaded`] where the queue is full.
    pub(super) fn enqueue(&self, voucher_id: i64, item: T) -> Result<Option<Key>, Error> {
        let mut all = self.all.lock();
        let key = all.apart.contains(&voucher_id).then_some(voucher_id);
        let queue = all.queues.entry(key).or_default();
        if queue.waiting.len() >= self.limits.queue {
            return Err(Error::Overloaded);
        }
        queue.waiting.push_back(item);
        if queue.add_worker_if_ready(self.limits) {
            Ok(Some(key))
        } else {
            Ok(None)
        }
    }

    /// Gives a sale a queue of its own, which begins with these items; says whether the caller has to start a worker.
    pub(super) fn set_apart(&self, voucher_id: i64, items: Vec<T>) -> bool {
        let mut all = self.all.lock();
        all.apart.insert(voucher_id);
        let queue = all.queues.entry(Some(voucher_id)).or_default();
        queue.waiting.extend(items);
        queue.add_worker_if_ready(self.limits)
    }

    /// A sale that was set apart was committed: further items go to the common queue again.
    pub(super) fn rejoin(&self, voucher_id: i64) {
        self.all.lock().apart.remove(&voucher_id);
    }

    /// Whether a worker that has committed a batch of size `done` is to pause before it asks for the next one: after a large
    /// batch, while few wait. Its batch stays counted as in flight meanwhile, so that no other worker starts for those few.
    pub(super) fn should_pause(&self, key: Key, done: usize) -> bool {
        if done <= LARGE {
            return false;
        }
        let all = self.all.lock();
        let Some(queue) = all.queues.get(&key) else {
            return false;
        };
        queue.waiting.len() < done / 2
    }

    /// The next batch, first in first out, for a worker that has committed one of size `done`; `None` ends the worker.
    pub(super) fn next_batch(&self, key: Key, done: usize) -> Option<Vec<T>> {
        let queues = &mut self.all.lock().queues;
        let queue = queues.get_mut(&key)?;
        queue.in_flight -= done;
        if queue.is_ready() {
            let count = queue.waiting.len().min(self.limits.batch);
            queue.in_flight += count;
            return Some(queue.waiting.drain(..count).collect());
        }
        queue.workers -= 1;
        if queue.workers == 0 {
            queues.remove(&key);
        }
        None
    }

    pub(super) fn depth(&self) -> QueueDepth {
        let mut depth = QueueDepth::default();
        for queue in self.all.lock().queues.values() {
            depth.waiting += queue.waiting.len();
            depth.in_flight += queue.in_flight;
            depth.batches += queue.workers as usize;
        }
        depth
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const LIMITS: GroupCommitLimits = GroupCommitLimits {
        batch: 2,
        queue: 4,
        in_flight: 2,
        timeout: Duration::ZERO,
    };

    /// A sale, and a number.
    type Item = (i64, u32);

    #[derive(Default)]
    struct World {
        /// The workers, each with the batch that it commits; that is empty before the worker has asked for its first.
        workers: Vec<(Key, Vec<Item>)>,
        committed: Vec<Item>,
    }

    impl World {
        /// A worker commits its batch, or finds sale 1 locked, and asks for the next.
        fn go_on(&mut self, queues: &Queues<Item>, at: usize, is_locked: bool) {
            let (key, batch) = self.workers.swap_remove(at);
            let done = batch.len();
            let (apart, committed): (Vec<_>, Vec<_>) = batch
                .into_iter()
                .partition(|(sale, _)| is_locked && key.is_none() && *sale == 1);
            if !apart.is_empty() && queues.set_apart(1, apart) {
                self.workers.push((Some(1), Vec::new()));
            }
            if let Some(sale) = key.filter(|_| done > 0) {
                queues.rejoin(sale);
            }
            self.committed.extend(committed);
            if let Some(batch) = queues.next_batch(key, done) {
                assert!(
                    (1..=LIMITS.batch).contains(&batch.len()),
                    "a batch of {}",
                    batch.len()
                );
                self.workers.push((key, batch));
            }
        }
    }

    #[test]
    fn every_purchase_is_committed_once_in_whatever_order_buyers_and_workers_come() {
        for seed in 0..2_000 {
            let mut random = StdRng::seed_from_u64(seed);
            let queues = Queues::new(LIMITS);
            let mut world = World::default();
            let mut queued = Vec::new();
            for number in 0..20 {
                let item = (random.random_range(0..2), number);
                if let Ok(starts) = queues.enqueue(item.0, item) {
                    queued.push(item);
                    world.workers.extend(starts.map(|key| (key, Vec::new())));
                }
                while !world.workers.is_empty() && random.random_bool(0.4) {
                    let index = random.random_range(0..world.workers.len());
                    world.go_on(&queues, index, random.random_bool(0.3));
                }
                for key in [None, Some(1)] {
                    let of_key = world.workers.iter().filter(|(queue, _)| *queue == key);
                    let workers = of_key.count();
                    assert!(workers <= LIMITS.in_flight as usize, "{workers} of {key:?}");
                }
            }
            while !world.workers.is_empty() {
                world.go_on(&queues, 0, false);
            }
            world.committed.sort_unstable_by_key(|(_, number)| *number);
            assert_eq!(world.committed, queued, "seed {seed}");
            assert_eq!(queues.depth(), QueueDepth::default(), "seed {seed}");
        }
    }

    #[test]
    fn what_is_set_apart_is_served_in_order_of_arrival() {
        let queues = Queues::new(LIMITS);
        assert!(queues.set_apart(1, vec![(1, 0), (1, 1)]), "no worker");
        assert_eq!(queues.next_batch(Some(1), 0), Some(vec![(1, 0), (1, 1)]));
        let starts = queues.enqueue(1, (1, 2)).expect("the queue has room");
        assert!(starts.is_none(), "a second worker");
        assert_eq!(queues.next_batch(Some(1), 2), Some(vec![(1, 2)]));
        assert_eq!(queues.next_batch(Some(1), 1), None);
    }

    #[test]
    fn a_worker_pauses_after_a_large_batch_while_few_wait() {
        let queues = Queues::new(GroupCommitLimits {
            batch: 32,
            queue: 32,
            ..LIMITS
        });
        (0..32).for_each(|_| drop(queues.enqueue(9, ())));
        assert_eq!(
            queues.next_batch(None, 0).map(|batch| batch.len()),
            Some(32)
        );
        assert!(
            queues.next_batch(None, 0).is_none(),
            "the second worker ends"
        );
        assert!(!queues.should_pause(None, LARGE), "the batch is not large");
        for waiting in 0..16 {
            assert!(queues.should_pause(None, 32), "only {waiting} wait");
            let starts = queues.enqueue(9, ()).expect("the queue has room");
            assert!(starts.is_none(), "another worker begins");
        }
        assert!(!queues.should_pause(None, 32), "half as many wait");
        assert_eq!(
            queues.next_batch(None, 32).map(|batch| batch.len()),
            Some(16)
        );
    }
}
