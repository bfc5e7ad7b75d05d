//! The entries that the consumer has in memory, in one queue per sale, so that a sale whose row is locked delays no
//! other. A batch of a sale is committed at a time; after a failure that sale alone pauses, longer each time. No I/O may
//! come in here.
//!
//! A sale is *troubled* while its commits fail or take long. What is beyond its queue's bound then is not kept: it stays
//! pending in Redis, and is read again later. A sale that is not troubled has the consumer wait instead, as it would fill
//! its queue faster than it empties it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::entry::Entry;
use super::entry_id::EntryId;
use super::held::HeldCalls;
use crate::error::Error;

/// Batches committed at once, of sales that are not troubled, and of those that are. Each needs a database connection.
const AT_ONCE: [usize; 2] = [4, 2];

/// A commit that takes longer than this makes its sale troubled.
const SLOW: Duration = Duration::from_millis(200);

/// A small batch of a sale begins at least this long after the one before it: its buyers have their answers already, and a
/// larger batch costs less per order.
pub(super) const GATHER: Duration = Duration::from_millis(5);

/// Pauses of a sale after failures: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Batches that a troubled sale's queue holds, and all troubled sales' together.
const BATCHES_KEPT: [usize; 2] = [2, 16];

/// The queues.
pub(super) struct SaleQueues {
    /// Entries of one batch.
    batch: usize,
    sales: HashMap<i64, Queue>,
    /// Every entry that waits or is being committed.
    in_memory: HashSet<EntryId>,
    /// Hears which entries are not in memory any more.
    calls: Arc<HeldCalls>,
    /// Entries whose batch ended while pending ones were being read: that page may still show them.
    ended: Option<HashSet<EntryId>>,
    /// The lease's generation in which the entries were read.
    generation: u64,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    committing_since: Option<Instant>,
    /// A batch of fewer entries than are worth one begins then at the earliest.
    small_due: Option<Instant>,
    troubled: bool,
    failures: u32,
    paused_until: Option<Instant>,
    /// Entries were left pending because the queue was full.
    overflowed: bool,
}

struct Waiting {
    entry: Entry,
    redelivered: bool,
}

/// Entries of one sale that are to be committed together.
pub(super) struct Batch {
    /// The sale; 0 for entries that name none.
    pub voucher_id: i64,
    /// In the order of arrival.
    pub entries: Vec<Entry>,
    /// Some may have been delivered before.
    pub redelivered: bool,
    /// The lease's generation in which they were read.
    pub generation: u64,
    began: Instant,
}

/// How a batch ended.
#[derive(Default)]
pub(super) struct Outcome {
    /// These entries could not be committed, and nothing was done about them: they are to be tried again.
    pub retry: HashSet<EntryId>,
    /// Others are still pending, or may be: they are to be read again.
    pub read_pending: bool,
    /// Why the sale has to pause.
    pub error: Option<Error>,
}

impl Outcome {
    /// Takes note of a failure of Redis, after which only Redis can tell what is pending.
    pub fn failed_in_redis(&mut self, error: Error) {
        self.read_pending = true;
        self.error = Some(error);
    }
}

/// What [`SaleQueues::complete`] asks of the consumer.
#[derive(Debug, PartialEq)]
pub(super) struct Completed {
    /// Entries are pending under our name that are in no queue: they are to be read.
    pub read_pending: bool,
    /// How often in a row the sale has failed.
    pub failures: u32,
}

impl SaleQueues {
    /// Queues for batches of at most `batch` entries.
    pub fn new(batch: usize, calls: Arc<HeldCalls>) -> Self {
        SaleQueues {
            batch,
            sales: HashMap::new(),
            in_memory: HashSet::new(),
            calls,
            ended: None,
            generation: 0,
        }
    }

    /// Takes entries that Redis has just delivered; those that are in memory already are skipped, and so is what a troubled
    /// sale's queue has no room for.
    pub fn offer(&mut self, entries: Vec<Entry>, redelivered: bool, now: Instant) {
        for entry in entries {
            let ended = || self.ended.as_ref().is_some_and(|ended| ended.contains(&entry.id));
            if self.in_memory.contains(&entry.id) || redelivered && ended() {
                continue;
            }
            let sale = entry.order().map_or(0, |order| order.buyer.voucher_id);
            let queue = self.sales.entry(sale).or_default();
            let room = queue.waiting.len() < BATCHES_KEPT[0] * self.batch
                && self.in_memory.len() < BATCHES_KEPT[1] * self.batch;
            if queue.is_troubled(now) && !room {
                queue.overflowed = true;
                self.calls.left_memory(&[entry.id]);
                continue;
            }
            self.in_memory.insert(entry.id);
            queue.waiting.push_back(Waiting { entry, redelivered });
        }
    }

    /// Pending entries are being read, until [`SaleQueues::page_ended`].
    pub fn page_began(&mut self) {
        self.ended = Some(HashSet::new());
    }

    /// They were read and offered, or the reading failed.
    pub fn page_ended(&mut self) {
        self.ended = None;
    }

    /// The next batch to be committed, of the sale that has waited longest.
    pub fn next_batch(&mut self, now: Instant) -> Option<Batch> {
        let mut running = [0, 0];
        for queue in self.sales.values().filter(|queue| queue.committing_since.is_some()) {
            running[usize::from(queue.is_troubled(now))] += 1;
        }
        let ready = self.sales.iter_mut().filter(|(_, queue)| {
            let class = usize::from(queue.is_troubled(now));
            queue.is_ready(now, self.batch) && running[class] < AT_ONCE[class]
        });
        let first = |queue: &Queue| queue.waiting.front().map(|waiting| waiting.entry.id);
        let (sale, queue) = ready.min_by_key(|(_, queue)| first(queue))?;
        // Together, in the order of arrival, so that an entry that fails again and again keeps none waiting.
        let count = queue.waiting.len().min(self.batch);
        let redelivered = queue.waiting.iter().take(count).any(|waiting| waiting.redelivered);
        let entries = queue.waiting.drain(..count).map(|waiting| waiting.entry).collect();
        queue.committing_since = Some(now);
        queue.small_due = Some(now + GATHER);
        let (voucher_id, generation) = (*sale, self.generation);
        Some(Batch { voucher_id, entries, redelivered, generation, began: now })
    }

    /// Takes note of how a batch ended.
    pub fn complete(&mut self, batch: Batch, outcome: &Outcome, now: Instant) -> Completed {
        let Some(queue) = self.sales.get_mut(&batch.voucher_id) else {
            return Completed { read_pending: true, failures: 0 };
        };
        queue.committing_since = None;
        let mut read_pending = outcome.read_pending;
        if outcome.error.is_none() {
            queue.failures = 0;
            queue.paused_until = None;
            queue.troubled = now - batch.began > SLOW;
        } else {
            let pause = PAUSES.0 * 2_u32.saturating_pow(queue.failures.min(8));
            queue.failures += 1;
            queue.paused_until = Some(now + pause.min(PAUSES.1));
            queue.troubled = true;
        }
        let mut ended = Vec::with_capacity(batch.entries.len());
        for entry in batch.entries.into_iter().rev() {
            if !outcome.retry.contains(&entry.id) {
                self.in_memory.remove(&entry.id);
                ended.push(entry.id);
            } else if batch.generation == self.generation {
                queue.waiting.push_front(Waiting { entry, redelivered: true });
            } else {
                self.in_memory.remove(&entry.id);
                read_pending = true;
            }
        }
        self.calls.left_memory(&ended);
        if let Some(of_page) = &mut self.ended {
            of_page.extend(ended);
        }
        if queue.overflowed && outcome.error.is_none() && queue.waiting.is_empty() {
            queue.overflowed = false;
            read_pending = true;
        }
        let failures = queue.failures;
        if queue.is_idle() {
            self.sales.remove(&batch.voucher_id);
        }
        Completed { read_pending, failures }
    }

    /// Begins a new generation of the lease: forgets what waits, which another consumer may have taken over. What is
    /// being committed is not tried again.
    pub fn begin_generation(&mut self, generation: u64) {
        self.generation = generation;
        self.calls.clear();
        let in_memory = &mut self.in_memory;
        for queue in self.sales.values_mut() {
            for gone in queue.waiting.drain(..) {
                in_memory.remove(&gone.entry.id);
            }
            queue.overflowed = false;
        }
        self.sales.retain(|_, queue| !queue.is_idle());
    }

    /// Whether there is room for what Redis may deliver.
    pub fn has_room(&self, now: Instant) -> bool {
        let full = |queue: &Queue| !queue.is_troubled(now) && queue.waiting.len() >= self.batch;
        !self.sales.values().any(full)
    }

    /// Whether there is room for entries of any sale, troubled or not, so that none stays pending in Redis, to be read again.
    pub fn has_room_for_all(&self) -> bool {
        !self.sales.values().any(|queue| queue.overflowed || queue.waiting.len() >= self.batch)
    }

    /// The lease's generation in which the entries were read.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether nothing waits or is being committed.
    pub fn is_empty(&self) -> bool {
        self.in_memory.is_empty()
    }

    /// When a pause ends, or a running commit becomes a slow one.
    pub fn next_change(&self, now: Instant) -> Option<Instant> {
        let changes = self.sales.values().filter_map(|queue| match queue.committing_since {
            Some(since) => Some(since + SLOW + Duration::from_millis(1)),
            None if queue.waiting.is_empty() => None,
            None => queue.paused_until.max(queue.small_due),
        });
        changes.filter(|at| *at > now).min()
    }
}

impl Queue {
    fn is_troubled(&self, now: Instant) -> bool {
        self.troubled
            || self
                .committing_since
                .is_some_and(|since| now.saturating_duration_since(since) > SLOW)
    }

    fn is_ready(&self, now: Instant, batch: usize) -> bool {
        let is_past = |at: Option<Instant>| at.is_none_or(|at| at <= now);
        self.committing_since.is_none()
            && !self.waiting.is_empty()
            && is_past(self.paused_until)
            && (self.waiting.len() >= batch / 4 || is_past(self.small_due))
    }

    /// Whether there is nothing to remember of it.
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.committing_since.is_none() && !self.overflowed
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry_id::tests::id;
    use super::*;

    fn entries(sale: i64, ids: std::ops::Range<u64>) -> Vec<Entry> {
        let entry = |number: u64| {
            let text = number.to_string();
            Entry::new(id(number, 0), &text, &text, &sale.to_string())
        };
        ids.map(entry).collect()
    }

    fn done() -> Outcome {
        Outcome::default()
    }

    /// None of the batch could be committed.
    fn failed(batch: &Batch) -> Outcome {
        let retry = batch.entries.iter().map(|entry| entry.id).collect();
        Outcome { retry, read_pending: false, error: Some(Error::Conflict) }
    }

    fn take(queues: &mut SaleQueues, now: Instant) -> (i64, usize, bool) {
        let batch = queues.next_batch(now).unwrap();
        (batch.voucher_id, batch.entries.len(), batch.redelivered)
    }

    #[test]
    fn each_sale_has_one_batch_at_a_time_and_a_failed_one_pauses_alone() {
        let (mut queues, now) = (SaleQueues::new(2, Arc::default()), Instant::now());
        queues.offer(entries(7, 1..4), false, now);
        queues.offer(entries(8, 4..5), false, now);
        let first = queues.next_batch(now).unwrap();
        assert_eq!((first.voucher_id, first.entries.len()), (7, 2));
        assert_eq!(take(&mut queues, now), (8, 1, false));
        assert!(queues.next_batch(now).is_none(), "sale 7 is being committed");
        let outcome = failed(&first);
        assert_eq!(queues.complete(first, &outcome, now).failures, 1);
        assert!(queues.next_batch(now).is_none(), "sale 7 pauses");
        queues.offer(entries(9, 5..6), false, now);
        assert_eq!(take(&mut queues, now), (9, 1, false));
        let later = queues.next_change(now).unwrap();
        assert_eq!(later, now + PAUSES.0);
        // What failed is first, as redelivered.
        assert_eq!(take(&mut queues, later), (7, 2, true));
    }

    #[test]
    fn a_small_batch_waits_a_moment_after_the_one_before_it_and_a_large_one_does_not() {
        let (mut queues, now) = (SaleQueues::new(16, Arc::default()), Instant::now());
        queues.offer(entries(7, 1..2), false, now);
        let batch = queues.next_batch(now).expect("the first one begins at once");
        queues.offer(entries(7, 2..4), false, now);
        queues.complete(batch, &done(), now);
        assert!(queues.next_batch(now).is_none() && queues.next_change(now) == Some(now + GATHER));
        queues.offer(entries(7, 4..6), false, now);
        assert_eq!(take(&mut queues, now), (7, 4, false), "a quarter of a batch");
        let (mut queues, later) = (SaleQueues::new(16, Arc::default()), now + GATHER);
        queues.offer(entries(7, 1..2), false, now);
        let batch = queues.next_batch(now).unwrap();
        queues.offer(entries(7, 2..4), false, now);
        queues.complete(batch, &done(), now);
        assert_eq!(take(&mut queues, later), (7, 2, false));
    }

    #[test]
    fn an_entry_is_queued_once_until_its_batch_has_ended() {
        let (mut queues, now) = (SaleQueues::new(8, Arc::default()), Instant::now());
        queues.offer(entries(7, 1..3), false, now);
        queues.offer(entries(7, 1..3), true, now);
        let batch = queues.next_batch(now).unwrap();
        assert_eq!(batch.entries.len(), 2);
        queues.offer(entries(7, 1..3), true, now);
        assert!(queues.next_batch(now).is_none());
        queues.page_began();
        let completed = queues.complete(batch, &Outcome { read_pending: true, ..done() }, now);
        assert_eq!(completed, Completed { read_pending: true, failures: 0 });
        queues.offer(entries(7, 1..2), true, now);
        assert!(queues.is_empty(), "the page is older than the end of the batch");
        queues.page_ended();
        queues.offer(entries(7, 1..2), true, now);
        assert_eq!(take(&mut queues, now), (7, 1, true));
    }

    /// What was acknowledged, or may have been, is not tried again from memory: its buyer may know of the refusal.
    #[test]
    fn only_what_nothing_was_done_about_is_tried_again() {
        let (mut queues, now) = (SaleQueues::new(8, Arc::default()), Instant::now());
        queues.offer(entries(7, 1..4), false, now);
        let batch = queues.next_batch(now).unwrap();
        let retry = HashSet::from([id(2, 0)]);
        let outcome = Outcome { retry, read_pending: false, error: Some(Error::Conflict) };
        queues.complete(batch, &outcome, now);
        assert_eq!(take(&mut queues, now + PAUSES.0), (7, 1, true));
    }

    #[test]
    fn a_troubled_sale_overflows_and_another_one_has_the_consumer_wait() {
        let calls = Arc::new(HeldCalls::default());
        let (mut queues, now) = (SaleQueues::new(2, calls.clone()), Instant::now());
        queues.offer(entries(7, 1..3), false, now);
        let batch = queues.next_batch(now).unwrap();
        queues.offer(entries(7, 3..5), false, now);
        assert!(!queues.has_room(now), "it is committing, and will be ready soon");
        let slow = queues.next_change(now).unwrap();
        assert!(queues.has_room(slow), "it takes long, and the others shall not wait");
        calls.hold(vec![id(4, 0)]);
        calls.hold(vec![id(5, 0), id(6, 0), id(19, 0)]);
        queues.offer(entries(7, 5..20), false, slow);
        assert!(calls.has_in_memory(id(4, 0)) && !calls.has_in_memory(id(19, 0)));
        assert_eq!(queues.sales[&7].waiting.len(), 4);
        assert!(!queues.has_room_for_all());
        assert!(!queues.complete(batch, &done(), slow).read_pending, "4 wait");
        let batch = queues.next_batch(slow).unwrap();
        assert!(!queues.complete(batch, &done(), slow).read_pending);
        let batch = queues.next_batch(slow).unwrap();
        assert!(queues.complete(batch, &done(), slow).read_pending, "the rest is pending in Redis");
        assert!(queues.is_empty() && queues.sales.is_empty());
    }

    #[test]
    fn what_another_consumer_may_have_taken_over_is_not_tried_again() {
        let (mut queues, now) = (SaleQueues::new(2, Arc::default()), Instant::now());
        queues.offer(entries(7, 1..5), false, now);
        let batch = queues.next_batch(now).unwrap();
        queues.begin_generation(1);
        let outcome = failed(&batch);
        assert!(queues.complete(batch, &outcome, now).read_pending);
        assert!(queues.is_empty() && queues.next_batch(now + PAUSES.1).is_none());
    }

    #[test]
    fn troubled_sales_leave_room_for_the_others() {
        let (mut queues, now) = (SaleQueues::new(2, Arc::default()), Instant::now());
        for sale in 1..=9 {
            queues.offer(entries(sale, sale as u64..sale as u64 + 1), false, now);
        }
        let running: Vec<Batch> = std::iter::from_fn(|| queues.next_batch(now)).collect();
        assert_eq!(running.len(), AT_ONCE[0]);
        for batch in running {
            let outcome = failed(&batch);
            queues.complete(batch, &outcome, now);
        }
        let later = now + PAUSES.0;
        queues.offer(entries(10, 100..101), false, later);
        let running: Vec<i64> =
            std::iter::from_fn(|| queues.next_batch(later)).map(|batch| batch.voucher_id).collect();
        assert_eq!(running.iter().filter(|sale| **sale <= 4).count(), AT_ONCE[1]);
        assert_eq!(running.iter().filter(|sale| **sale > 4).count(), AT_ONCE[0]);
    }
}
