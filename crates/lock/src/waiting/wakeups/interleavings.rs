//! The wake-up registry under a concurrency explorer (shuttle): thousands of interleavings of waiters
//! that wait, are dropped half-way and release, of a subscriber that subscribes and receives, and of
//! a connection that breaks ([`exploring`](crate::waiting::exploring)). The waiter does what `acquirer`
//! does.

use std::pin::pin;
use std::sync::Arc;

use shuttle::check_random;
use shuttle::future::block_on;

use super::{Wakeup, Wakeups};
use crate::commands::lock::UNLOCK_MESSAGE;
use crate::waiting::exploring::{self, Held, World};

/// A bug in the waiter, to see that the explorer finds it.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// A wake-up is marked used when it arrives, not after the next try.
    MarksUsedTooEarly,
    /// The lock is tried before the next message is awaited, so that a resubscription between the two
    /// is missed.
    AwaitsTooLate,
}

/// What `Acquirer::wait` does.
async fn wait(world: Arc<World>, bug: Bug) -> Held {
    if let Some(held) = world.attempt(1).await {
        return held;
    }
    let subscription = world.wakeups.join(&world.channel);
    subscription.confirmed().await;
    let mut wakeup = Wakeup::none();
    loop {
        let mut message = pin!(subscription.message());
        if bug != Bug::AwaitsTooLate {
            message.as_mut().enable();
        }
        let held = world.attempt(1).await;
        wakeup.mark_used();
        if let Some(held) = held {
            return held;
        }
        if bug == Bug::AwaitsTooLate {
            message.set(subscription.message());
        }
        message.await;
        wakeup = subscription.wakeup();
        if bug == Bug::MarksUsedTooEarly {
            wakeup.mark_used();
        }
    }
}

fn explore(waiters: [usize; 2], connection_breaks: bool, bug: Bug) {
    exploring::explore(1, waiters, connection_breaks, bug != Bug::None, move |world| {
        wait(world, bug)
    });
}

#[test]
fn every_waiter_acquires() {
    explore([3, 0], false, Bug::None);
}

#[test]
fn a_dropped_waiter_loses_no_wakeup() {
    explore([2, 2], false, Bug::None);
}

#[test]
fn a_broken_connection_loses_no_waiter() {
    explore([1, 0], true, Bug::None);
    explore([2, 1], true, Bug::None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn marking_a_wakeup_used_too_early_is_found() {
    explore([2, 2], false, Bug::MarksUsedTooEarly);
}

#[test]
#[should_panic(expected = "deadlock")]
fn awaiting_too_late_is_found() {
    explore([1, 0], true, Bug::AwaitsTooLate);
}

/// A waiter whose deadline passes just as it is woken does not try; the next waiter has to.
#[test]
fn an_unused_wakeup_is_passed_on() {
    check_random(
        || {
            let wakeups: Arc<Wakeups> = Arc::default();
            let channel: Arc<str> = "channel".into();
            let (first, second) = (wakeups.join(&channel), wakeups.join(&channel));
            for used in [true, false] {
                wakeups.deliver(&channel, UNLOCK_MESSAGE.as_bytes());
                block_on(first.message());
                let mut wakeup = first.wakeup();
                if used {
                    wakeup.mark_used();
                }
                drop(wakeup);
                assert_eq!(pin!(second.message()).enable(), !used);
            }
        },
        1,
    );
}
