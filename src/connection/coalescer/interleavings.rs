//! The coalescer under a concurrency explorer: callers that ask one thing after the other, perhaps give up, and a
//! shutdown at any moment. Each gets its own reply, or none after the shutdown, and none waits for ever.

use shuttle::future::{block_on, spawn};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Coalescer, Waiting};
use crate::sync::explored::{explore, some_time, unless_dropped};

const MAX_BATCH: usize = 2;

/// A bug in the loop that sends, to see that the explorer finds it.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// Replies are handed to those who still wait, as if there had been no other request.
    SkipsWhoGaveUp,
    /// The queue outlives the loop: what is queued after the shutdown waits.
    KeepsTheQueue,
}

async fn send(requests: Vec<u32>) -> Vec<u32> {
    assert!((1..=MAX_BATCH).contains(&requests.len()), "a batch of {}", requests.len());
    some_time(6).await;
    requests.into_iter().map(|request| request * 10).collect()
}

/// `run`, with the bug.
async fn run_with(bug: Bug, mut queue: UnboundedReceiver<Waiting<u32, u32>>) {
    let mut waiting = Vec::new();
    while queue.recv_many(&mut waiting, MAX_BATCH).await > 0 {
        let (requests, mut receivers): (Vec<_>, Vec<_>) =
            waiting.drain(..).map(|Waiting { request, reply }| (request, reply)).unzip();
        let replies = send(requests).await;
        if bug == Bug::SkipsWhoGaveUp {
            receivers.retain(|receiver| !receiver.is_closed());
        }
        for (receiver, reply) in receivers.into_iter().zip(replies) {
            receiver.send(reply).ok();
        }
    }
}

fn start(bug: Bug) -> Coalescer<u32, u32> {
    if bug == Bug::None {
        let (coalescer, sending) = Coalescer::new(MAX_BATCH, send);
        spawn(coalescer.tasks.track_future(sending));
        coalescer.tasks.close();
        return coalescer;
    }
    let (queue, waiting) = mpsc::unbounded_channel();
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let stopped = stop.clone();
    spawn(tasks.track_future(async move {
        if bug == Bug::KeepsTheQueue {
            stopped.cancelled().await;
            std::mem::forget(waiting);
        } else {
            stopped.run_until_cancelled(run_with(bug, waiting)).await;
        }
    }));
    tasks.close();
    Coalescer { queue, waiting: Default::default(), tasks, stop }
}

fn run(stops: bool, bug: Bug) {
    block_on(async move {
        let coalescer = start(bug);
        let callers: Vec<_> = (1..=4_u32)
            .map(|caller| {
                let coalescer = coalescer.clone();
                spawn(async move {
                    for number in 0..2 {
                        some_time(6).await;
                        let request = 10 * caller + number;
                        let asking = coalescer.request(request);
                        let reply = unless_dropped(asking, caller == 1 && number == 0).await;
                        match reply {
                            Some(Some(reply)) => assert_eq!(reply, request * 10, "its own reply"),
                            Some(None) => assert!(stops, "no reply to {request}"),
                            None => {}
                        }
                    }
                })
            })
            .collect();
        if stops {
            some_time(20).await;
            coalescer.shutdown().await;
        }
        for caller in callers {
            caller.await.expect("it ran to its end");
        }
        coalescer.shutdown().await;
    });
}

#[test]
fn each_caller_gets_its_own_reply() {
    explore(false, || run(false, Bug::None));
}

#[test]
fn a_shutdown_leaves_no_caller_waiting() {
    explore(false, || run(true, Bug::None));
}

#[test]
#[should_panic(expected = "its own reply")]
fn replies_that_are_moved_up_are_found() {
    explore(true, || run(false, Bug::SkipsWhoGaveUp));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_queue_that_outlives_its_loop_is_found() {
    explore(true, || run(true, Bug::KeepsTheQueue));
}
