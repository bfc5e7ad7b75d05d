//! The session memory under a concurrency explorer: requests that find a session in memory or look it up, and a logout.
//! A request that begins after the logout was answered is not signed in.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shuttle::future::{block_on, spawn, yield_now};

use super::SessionMemory;
use crate::session::token::Token;
use crate::session::user::CurrentUser;
use crate::sync::explored::{explore, some_time};

/// A bug in the request, to see that the explorer finds it.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// The number of logouts is taken after the lookup; so what was looked up is kept whatever happened meanwhile.
    CountsAfterTheLookup,
    /// The session is removed from memory before Redis deletes it.
    EndsBeforeRedis,
}

struct World {
    memory: SessionMemory,
    token: Token,
    /// Whether Redis has the session.
    in_redis: AtomicBool,
    /// The logout was answered.
    is_over: AtomicBool,
}

/// What `SharedSessions::renew` does.
async fn is_signed_in(world: &World, bug: Bug) -> bool {
    let now = Instant::now();
    if world.memory.get(&world.token, now).is_some() {
        return true;
    }
    let mut logouts = world.memory.logouts(&world.token);
    some_time(4).await;
    let is_there = world.in_redis.load(Ordering::SeqCst);
    some_time(4).await;
    if bug == Bug::CountsAfterTheLookup {
        logouts = world.memory.logouts(&world.token);
    }
    if is_there {
        let user = CurrentUser { id: 1, nick_name: String::new(), icon: String::new() };
        let expires_at = now + Duration::from_secs(3600);
        world.memory.keep(world.token, Arc::new(user), logouts, expires_at);
    } else {
        world.memory.remove(&world.token);
    }
    is_there
}

/// What `SharedSessions::end` does.
async fn log_out(world: Arc<World>, bug: Bug) {
    some_time(12).await;
    if bug == Bug::EndsBeforeRedis {
        world.memory.end(&world.token);
    }
    yield_now().await;
    world.in_redis.store(false, Ordering::SeqCst);
    yield_now().await;
    if bug != Bug::EndsBeforeRedis {
        world.memory.end(&world.token);
    }
    world.is_over.store(true, Ordering::SeqCst);
}

fn run(bug: Bug) {
    block_on(async move {
        let world = Arc::new(World {
            memory: SessionMemory::new(8),
            token: Token::random(),
            in_redis: AtomicBool::new(true),
            is_over: AtomicBool::new(false),
        });
        let mut tasks = vec![spawn(log_out(world.clone(), bug))];
        for _ in 0..3 {
            let world = world.clone();
            tasks.push(spawn(async move {
                for _ in 0..4 {
                    some_time(6).await;
                    let is_over = world.is_over.load(Ordering::SeqCst);
                    let is_signed_in = is_signed_in(&world, bug).await;
                    assert!(!(is_over && is_signed_in), "signed in after the logout");
                }
            }));
        }
        for task in tasks {
            task.await.expect("it ran to its end");
        }
    });
}

#[test]
fn nobody_is_signed_in_after_a_logout() {
    explore(false, || run(Bug::None));
}

#[test]
#[should_panic(expected = "signed in after the logout")]
fn a_lookup_from_before_the_logout_is_found() {
    explore(true, || run(Bug::CountsAfterTheLookup));
}

#[test]
#[should_panic(expected = "signed in after the logout")]
fn a_logout_that_forgets_before_redis_does_is_found() {
    explore(true, || run(Bug::EndsBeforeRedis));
}
