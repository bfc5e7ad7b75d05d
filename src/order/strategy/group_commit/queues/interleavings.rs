//! The queues of group commit under a concurrency explorer: buyers that queue one purchase after the other, perhaps hang
//! up, and workers that commit batches. Each purchase is committed once, whether its buyer waits or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use shuttle::future::{block_on, spawn};
use tokio::sync::oneshot;

use super::{QueueDepth, QueueLimits, Queues};
use crate::sync::explored::{explore, once, some_time, unless_dropped};

const SALE: i64 = 9;
const LIMITS: QueueLimits = QueueLimits { batch: 2, queue: 4, in_flight: 2, large: 1 };
const BUYERS: usize = 4;

/// A bug in the worker, to see that the explorer finds it.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// A worker sees that nothing waits, and says a moment later that it ends.
    EndsInTwoSteps,
    /// A worker's batch counts as in flight for good.
    ForgetsTheBatch,
}

struct World {
    queues: Queues<oneshot::Sender<()>>,
    in_flight: AtomicU32,
    committed: AtomicUsize,
}

/// What `GroupCommit::order` does; says whether the purchase was queued.
async fn order(world: Arc<World>, bug: Bug) -> bool {
    let (answer, answered) = oneshot::channel();
    let Ok(starts) = world.queues.enqueue(SALE, answer) else { return false };
    if starts {
        spawn(work(world.clone(), bug));
    }
    answered.await.expect("the purchase was lost");
    true
}

/// What `GroupCommit::work` does.
async fn work(world: Arc<World>, bug: Bug) {
    let mut done = 0;
    loop {
        if bug == Bug::EndsInTwoSteps && world.queues.depth().waiting == 0 {
            some_time(4).await;
            let mut queues = world.queues.by_sale.lock();
            let queue = queues.get_mut(&SALE).expect("it has a worker");
            queue.in_flight -= done;
            queue.workers -= 1;
            if queue.workers == 0 {
                queues.remove(&SALE);
            }
            return;
        }
        let Some(batch) = world.queues.next_batch(SALE, done) else { return };
        done = if bug == Bug::ForgetsTheBatch { 0 } else { batch.len() };
        assert!((1..=LIMITS.batch).contains(&batch.len()), "a batch of {}", batch.len());
        let others = world.in_flight.fetch_add(1, Ordering::SeqCst);
        assert!(others < LIMITS.in_flight, "{others} others in flight");
        some_time(6).await;
        world.in_flight.fetch_sub(1, Ordering::SeqCst);
        world.committed.fetch_add(batch.len(), Ordering::SeqCst);
        for answer in batch {
            // Fails where the buyer hung up.
            answer.send(()).ok();
        }
        if world.queues.pauses(SALE, done) {
            some_time(4).await;
        }
    }
}

fn run(bug: Bug) {
    block_on(async move {
        let world = Arc::new(World {
            queues: Queues::new(LIMITS),
            in_flight: AtomicU32::new(0),
            committed: AtomicUsize::new(0),
        });
        let buyers: Vec<_> = (0..BUYERS)
            .map(|number| {
                let world = world.clone();
                spawn(async move {
                    let mut queued = 0;
                    for _ in 0..2 {
                        some_time(8).await;
                        // Dropped after its first poll, it is queued all the same.
                        let hangs_up = number == 0;
                        let outcome = unless_dropped(order(world.clone(), bug), hangs_up).await;
                        queued += usize::from(outcome != Some(false));
                    }
                    queued
                })
            })
            .collect();
        let mut queued = 0;
        for buyer in buyers {
            queued += buyer.await.expect("it ran to its end");
        }
        // What the buyer queued who hung up.
        while world.queues.depth() != QueueDepth::default() {
            some_time(4).await;
        }
        // Nobody waits for what was queued by the buyer who hung up: only the count tells that it is missing.
        assert_eq!(world.committed.load(Ordering::SeqCst), queued, "the purchase was lost");
    });
}

#[test]
fn every_purchase_is_committed_once() {
    explore(false, || run(Bug::None));
}

#[test]
#[should_panic(expected = "the purchase was lost")]
fn a_worker_that_ends_in_two_steps_is_found() {
    explore(true, || run(Bug::EndsInTwoSteps));
}

#[test]
#[should_panic(expected = "the purchase was lost")]
fn a_batch_that_stays_in_flight_is_found() {
    explore(true, || run(Bug::ForgetsTheBatch));
}

#[test]
fn a_worker_pauses_after_a_large_batch_while_few_wait() {
    once(|| {
        let queues = Queues::new(QueueLimits { batch: 8, queue: 8, in_flight: 2, large: 4 });
        (0..8).for_each(|_| drop(queues.enqueue(SALE, ())));
        assert_eq!(queues.next_batch(SALE, 0).map(|batch| batch.len()), Some(8));
        assert!(queues.next_batch(SALE, 0).is_none(), "the second worker ends");
        assert!(!queues.pauses(SALE, 4), "the batch is not large");
        for waiting in 0..4 {
            assert!(queues.pauses(SALE, 8), "only {waiting} wait");
            let starts = queues.enqueue(SALE, ()).expect("the queue has room");
            assert!(!starts, "another worker begins");
        }
        assert!(!queues.pauses(SALE, 8), "half as many wait");
        assert_eq!(queues.next_batch(SALE, 8).map(|batch| batch.len()), Some(4));
    });
}
