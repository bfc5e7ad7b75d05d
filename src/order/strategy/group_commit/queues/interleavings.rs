//! The queues of group commit under a concurrency explorer: buyers that queue one purchase after the other, perhaps hang
//! up, and workers that commit batches; the first batch finds the sale locked, which is set apart then. Each purchase is
//! committed once, whether its buyer waits or not.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use shuttle::future::{block_on, spawn};
use tokio::sync::oneshot;

use super::{Key, QueueDepth, QueueLimits, Queues};
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
    blocked: AtomicBool,
}

/// What `GroupCommit::order` does; says whether the purchase was queued.
async fn order(world: Arc<World>, bug: Bug) -> bool {
    let (answer, answered) = oneshot::channel();
    let Ok(starts) = world.queues.enqueue(SALE, answer) else { return false };
    if let Some(key) = starts {
        start(&world, key, bug);
    }
    answered.await.expect("the purchase was lost");
    true
}

fn start(world: &Arc<World>, key: Key, bug: Bug) {
    let work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work(world.clone(), key, bug));
    spawn(work);
}

/// What `GroupCommit::work` does.
async fn work(world: Arc<World>, key: Key, bug: Bug) {
    let mut done = 0;
    loop {
        if bug == Bug::EndsInTwoSteps && world.queues.depth().waiting == 0 {
            some_time(4).await;
            let queues = &mut world.queues.all.lock().queues;
            let queue = queues.get_mut(&key).expect("it has a worker");
            queue.in_flight -= done;
            queue.workers -= 1;
            if queue.workers == 0 {
                queues.remove(&key);
            }
            return;
        }
        let Some(batch) = world.queues.next_batch(key, done) else { return };
        done = if bug == Bug::ForgetsTheBatch { 0 } else { batch.len() };
        assert!((1..=LIMITS.batch).contains(&batch.len()), "a batch of {}", batch.len());
        let others = world.in_flight.fetch_add(1, Ordering::SeqCst);
        assert!(others < 2 * LIMITS.in_flight, "{others} others in flight, in two queues");
        some_time(6).await;
        world.in_flight.fetch_sub(1, Ordering::SeqCst);
        // The first batch finds the sale locked.
        if key.is_none() && !world.blocked.swap(true, Ordering::SeqCst) {
            if world.queues.set_apart(SALE, batch) {
                start(&world, Some(SALE), bug);
            }
            continue;
        }
        if key.is_some() {
            world.queues.rejoin(SALE);
        }
        world.committed.fetch_add(batch.len(), Ordering::SeqCst);
        for answer in batch {
            // Fails where the buyer hung up.
            answer.send(()).ok();
        }
        if world.queues.pauses(key, done) {
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
            blocked: AtomicBool::new(false),
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
        assert_eq!(queues.next_batch(None, 0).map(|batch| batch.len()), Some(8));
        assert!(queues.next_batch(None, 0).is_none(), "the second worker ends");
        assert!(!queues.pauses(None, 4), "the batch is not large");
        for waiting in 0..4 {
            assert!(queues.pauses(None, 8), "only {waiting} wait");
            let starts = queues.enqueue(SALE, ()).expect("the queue has room");
            assert!(starts.is_none(), "another worker begins");
        }
        assert!(!queues.pauses(None, 8), "half as many wait");
        assert_eq!(queues.next_batch(None, 8).map(|batch| batch.len()), Some(4));
    });
}
