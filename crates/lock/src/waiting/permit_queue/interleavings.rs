//! The permit wait queue under a concurrency explorer (shuttle): several permits are released with one
//! message, which wakes only the head of the queue, while waiters are dropped half-way and a connection
//! breaks ([`exploring`](crate::waiting::exploring)). The waiter does what [`wait`](super::wait)
//! does without its timers.

use std::pin::pin;
use std::sync::Arc;

use crate::waiting::exploring::{Held, World, explore};

/// A bug in the waiter, to see that the explorer finds it.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// A new head awaits a message before it tries, as if one message were one permit.
    NewHeadAwaits,
}

async fn wait(world: Arc<World>, bug: Bug) -> Held {
    if let Some(permits) = world.attempt(1).await {
        return permits;
    }
    let subscription = world.wakeups.join(&world.channel);
    subscription.confirmed().await;
    let _head = subscription.queue_head().await;
    let mut tries = bug != Bug::NewHeadAwaits;
    loop {
        let mut message = pin!(subscription.message());
        message.as_mut().enable();
        if tries && let Some(permits) = world.attempt(1).await {
            return permits;
        }
        tries = true;
        message.await;
    }
}

/// Two permits that are released at once.
fn explore_two(waiters: [usize; 2], connection_breaks: bool, bug: Bug) {
    explore(2, waiters, connection_breaks, bug != Bug::None, move |world| wait(world, bug));
}

#[test]
fn every_waiter_gets_its_permit() {
    explore_two([3, 0], false, Bug::None);
}

#[test]
fn a_dropped_waiter_leaves_its_place_to_the_next() {
    explore_two([2, 2], false, Bug::None);
}

#[test]
fn a_broken_connection_loses_no_waiter() {
    explore_two([2, 1], true, Bug::None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_new_head_that_awaits_a_message_is_found() {
    explore_two([3, 0], false, Bug::NewHeadAwaits);
}
