//! The session memory under a concurrency explorer: requests that find a session in memory or look it up, a logout on this
//! node or another, and the connection on which Redis reports it, which breaks. A request that begins after the logout was
//! answered here, or after [`TRUST`] where it was answered elsewhere, is not signed in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};

use super::{SessionMemory, TRUST};
use crate::session::token::Token;
use crate::session::user::CurrentUser;
use crate::sync::Mutex;
use crate::sync::explored::{explore, some_time};

/// A bug, to see that the explorer finds it.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// Planted fault: the number of ends is taken after the look-up, so an end in between goes unnoticed.
    CountsAfterTheLookup,
    /// The session is removed from memory before Redis deletes it.
    EndsBeforeRedis,
    /// A PING counts from its answer instead of from when it was sent.
    ConfirmsFromTheAnswer,
    /// A new connection takes the sessions of the last one for valid.
    KeepsOldSessions,
}

/// What Redis sends on the connection.
enum Sent {
    End,
    /// The answer to a PING of this moment.
    Pong(Instant),
}

struct World {
    memory: SessionMemory,
    token: Token,
    /// Whether Redis has the session.
    in_redis: AtomicBool,
    /// The clock, in ms after `begin`.
    clock: AtomicU64,
    begin: Instant,
    /// What is on its way to this node; `None` without a connection.
    connection: Mutex<Option<VecDeque<Sent>>>,
    /// When a request has to be refused: in ms after `begin`.
    over_at: AtomicU64,
}

impl World {
    fn new() -> Self {
        World {
            memory: SessionMemory::new(8),
            token: Token::random(),
            in_redis: AtomicBool::new(true),
            clock: AtomicU64::new(0),
            begin: Instant::now(),
            connection: Mutex::new(None),
            over_at: AtomicU64::new(u64::MAX),
        }
    }

    fn now(&self) -> Instant {
        self.begin + Duration::from_millis(self.clock.load(Ordering::SeqCst))
    }

    /// Redis deletes the session, and reports it.
    fn delete(&self) {
        let mut connection = self.connection.lock();
        self.in_redis.store(false, Ordering::SeqCst);
        if let Some(sent) = &mut *connection {
            sent.push_back(Sent::End);
        }
    }
}

/// What `SharedSessions::renew` does.
async fn is_signed_in(world: &World, now: Instant, bug: Bug) -> bool {
    if world.memory.get(&world.token, now).is_some() {
        return true;
    }
    let mut ends = world.memory.ends(&world.token);
    some_time(4).await;
    let is_there = world.in_redis.load(Ordering::SeqCst);
    some_time(4).await;
    if bug == Bug::CountsAfterTheLookup {
        ends = world.memory.ends(&world.token);
    }
    if is_there {
        let user = CurrentUser { id: 1, nick_name: String::new(), icon: String::new() };
        world.memory.keep(&world.token, Arc::new(user), ends, now);
    } else {
        world.memory.remove(&world.token);
    }
    is_there
}

/// What `SharedSessions::end` does.
async fn log_out_here(world: Arc<World>, bug: Bug) {
    some_time(12).await;
    if bug == Bug::EndsBeforeRedis {
        world.memory.end(&world.token);
    }
    yield_now().await;
    world.delete();
    yield_now().await;
    if bug != Bug::EndsBeforeRedis {
        world.memory.end(&world.token);
    }
    world.over_at.store(0, Ordering::SeqCst);
}

/// A logout on another node.
async fn log_out_elsewhere(world: Arc<World>) {
    some_time(24).await;
    world.delete();
    let trust = u64::try_from(TRUST.as_millis()).expect("a short time");
    let over_at = world.clock.load(Ordering::SeqCst) + trust;
    world.over_at.store(over_at, Ordering::SeqCst);
}

/// What `invalidations::receive` does, on two connections one after the other. The first breaks in silence, and what is on
/// its way then is lost.
async fn receive(world: Arc<World>, bug: Bug) {
    for _ in 0..2 {
        *world.connection.lock() = Some(VecDeque::new());
        yield_now().await;
        if bug != Bug::KeepsOldSessions {
            world.memory.end_all();
        }
        for _ in 0..2 {
            let asked_at = world.now();
            yield_now().await;
            if let Some(sent) = &mut *world.connection.lock() {
                sent.push_back(Sent::Pong(asked_at));
            }
            some_time(4).await;
            for _ in 0..thread_rng().gen_range(1..3) {
                let sent = world.connection.lock().as_mut().and_then(VecDeque::pop_front);
                match sent {
                    Some(Sent::End) => world.memory.end(&world.token),
                    Some(Sent::Pong(_)) if bug == Bug::ConfirmsFromTheAnswer => {
                        world.memory.confirm(world.now());
                    }
                    Some(Sent::Pong(asked_at)) => world.memory.confirm(asked_at),
                    None => {}
                }
            }
        }
        *world.connection.lock() = None;
        some_time(8).await;
    }
}

async fn pass_time(world: Arc<World>) {
    for _ in 0..12 {
        yield_now().await;
        world.clock.fetch_add(thread_rng().gen_range(0..400), Ordering::SeqCst);
    }
}

fn run(is_tracked: bool, bug: Bug) {
    block_on(async move {
        let world = Arc::new(World::new());
        let mut tasks = Vec::new();
        let requests = if is_tracked { 8 } else { 4 };
        if is_tracked {
            tasks.push(spawn(pass_time(world.clone())));
            tasks.push(spawn(receive(world.clone(), bug)));
            tasks.push(spawn(log_out_elsewhere(world.clone())));
        } else {
            tasks.push(spawn(log_out_here(world.clone(), bug)));
        }
        for _ in 0..if is_tracked { 1 } else { 3 } {
            let world = world.clone();
            tasks.push(spawn(async move {
                for _ in 0..requests {
                    some_time(6).await;
                    let over_at = world.over_at.load(Ordering::SeqCst);
                    let now = world.now();
                    let is_over = now.duration_since(world.begin).as_millis() >= over_at.into();
                    let is_signed_in = is_signed_in(&world, now, bug).await;
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
    explore(false, || run(false, Bug::None));
}

#[test]
fn nobody_is_signed_in_long_after_a_logout_elsewhere() {
    explore(false, || run(true, Bug::None));
}

#[test]
#[should_panic(expected = "signed in after the logout")]
fn a_lookup_from_before_the_logout_is_found() {
    explore(true, || run(false, Bug::CountsAfterTheLookup));
}

#[test]
#[should_panic(expected = "signed in after the logout")]
fn a_lookup_from_before_a_report_is_found() {
    explore(true, || run(true, Bug::CountsAfterTheLookup));
}

#[test]
#[should_panic(expected = "signed in after the logout")]
fn a_logout_that_forgets_before_redis_does_is_found() {
    explore(true, || run(false, Bug::EndsBeforeRedis));
}

#[test]
#[should_panic(expected = "signed in after the logout")]
fn a_late_answer_taken_for_a_new_one_is_found() {
    explore(true, || run(true, Bug::ConfirmsFromTheAnswer));
}

#[test]
#[should_panic(expected = "signed in after the logout")]
fn sessions_of_an_earlier_connection_are_found() {
    explore(true, || run(true, Bug::KeepsOldSessions));
}
