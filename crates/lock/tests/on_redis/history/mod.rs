//! History tests: several processes use one lock at random while faults are injected, and record
//! calls, replies and validity; a [checker] then decides whether a mutex with expiry could have
//! produced that history. The checker itself is tested with histories written by hand and with that of
//! a lock that is taken away behind its back.
//!
//! Each history prints its seed: `LOCK_HISTORY_SEED=… cargo test` repeats the random choices, not the
//! timing.

mod checker;
mod checker_tests;
mod event;
pub mod lock_under_test;
mod slow;
mod worker;
mod workers;

use std::time::{Duration, Instant};

use rand::Rng;
use rustix::process::Signal;

use self::event::{EventKind, now};
use self::lock_under_test::{COMMAND, Kind, LEASE, NAME};
use self::workers::Workers;
use super::{eventually, nothing_left, query};
use testkit::proxy::{Mode, Proxy};
use testkit::redis_server::RedisServer;

/// How long faults are injected in one history.
const RUN: Duration = Duration::from_millis(1_600);

/// Injects `fault` repeatedly, each time after a random pause in ms, for the length of a run.
async fn repeat_fault(pause: std::ops::Range<u64>, mut fault: impl AsyncFnMut()) {
    let end = Instant::now() + RUN;
    while Instant::now() < end {
        let pause = rand::rng().random_range(pause.clone());
        tokio::time::sleep(Duration::from_millis(pause)).await;
        fault().await;
    }
}

/// Three owners that are never replaced and hold the lock most of the time: a request that arrives late is
/// likely to meet a later turn of the same owner.
fn few_owners(plan: &mut worker::Plan) {
    plan.tasks = 1;
    plan.long = 0.3;
    plan.new_owner = 0.0;
}

/// All connections hang for a command timeout and are cut, or the next reply is lost.
async fn hang_or_lose_reply(proxy: &Proxy, hang: bool) {
    if !hang {
        return proxy.set(Mode::LoseReply);
    }
    proxy.set(Mode::Hang);
    tokio::time::sleep(COMMAND).await;
    proxy.set(Mode::Cut);
    tokio::time::sleep(Duration::from_millis(10)).await;
    proxy.set(Mode::Forward);
}

/// Loses replies, and passes requests on late: after they were sent again, or, for releases, after the
/// client has given up waiting for the reply.
async fn disturb(proxy: &Proxy) {
    for _ in 0..2 {
        repeat_fault(0..40, async || disturb_once(proxy).await).await;
    }
    proxy.set(Mode::Forward);
}

async fn disturb_once(proxy: &Proxy) {
    let number = rand::rng().random_range(0..20);
    match number {
        0..6 => hang_or_lose_reply(proxy, number == 0).await,
        6..10 => proxy.set(Mode::DelayRequest),
        _ => {
            let late = Duration::from_millis(rand::rng().random_range(200..500));
            proxy.set(Mode::DelayRequests("redisson_unlock_latch", late));
            tokio::time::sleep(Duration::from_millis(20)).await;
            proxy.set(Mode::Forward);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// After the faults: waits until every process has acquired the lock again.
async fn recovered(workers: &Workers) {
    let over = now();
    eventually("every process has acquired the lock again", async || {
        let history = workers.so_far();
        (0..3).all(|process: u64| {
            history
                .granted_after(over)
                .any(|event| event.guard >> 32 == process)
        })
    })
    .await;
}

/// Ends the history after many grants, waits until nothing is left on the servers, and runs the checker.
async fn check(workers: Workers, servers: &[RedisServer]) {
    recovered(&workers).await;
    workers.granted().await;
    let workers = workers.finish(&[]).await;
    for server in servers {
        nothing_left(server, &[]).await;
    }
    workers.assert_holds();
}

/// A server, and workers that use the reentrant lock on it.
async fn reentrant() -> (RedisServer, Workers) {
    let server = RedisServer::start().await;
    let workers = Workers::start(Kind::Reentrant, &server.url(), |_| {}).await;
    (server, workers)
}

/// A server, and workers that reach it through a proxy only.
async fn behind_proxy(
    kind: Kind,
    change: impl Fn(&mut worker::Plan),
) -> (RedisServer, Proxy, Workers) {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let url = format!("redis://{}/", proxy.address);
    let workers = Workers::start(kind, &url, change).await;
    (server, proxy, workers)
}

#[tokio::test]
async fn no_violation_without_faults() {
    let (server, workers) = reentrant().await;
    tokio::time::sleep(RUN).await;
    check(workers, &[server]).await;
}

/// An exclusive kind, while replies are lost and connections hang.
async fn check_with_network_faults(kind: Kind) {
    let (server, proxy, workers) = behind_proxy(kind, |_| {}).await;
    repeat_fault(0..40, async || {
        let hang = rand::rng().random_range(0..20) == 0;
        hang_or_lose_reply(&proxy, hang).await;
    })
    .await;
    proxy.set(Mode::Forward);
    check(workers, &[server]).await;
}

#[tokio::test]
async fn the_reentrant_lock_with_network_faults() {
    check_with_network_faults(Kind::Reentrant).await;
}

#[tokio::test]
async fn the_fenced_lock_with_network_faults() {
    check_with_network_faults(Kind::Fenced).await;
}

#[tokio::test]
async fn the_fair_lock_with_network_faults() {
    check_with_network_faults(Kind::Fair).await;
}

#[tokio::test]
async fn the_write_lock_with_network_faults() {
    check_with_network_faults(Kind::Write).await;
}

/// A request arrives after the client has sent it again, perhaps in a later turn of the same owner:
/// owners are never replaced.
#[tokio::test]
async fn requests_arrive_late_and_twice() {
    let (server, proxy, workers) = behind_proxy(Kind::Reentrant, |plan| plan.new_owner = 0.0).await;
    repeat_fault(5..60, async || proxy.set(Mode::DelayRequest)).await;
    proxy.set(Mode::Forward);
    check(workers, &[server]).await;
}

#[tokio::test]
async fn connections_hang_or_drop_replies() {
    let (server, proxy, workers) = behind_proxy(Kind::Reentrant, |_| {}).await;
    repeat_fault(20..300, async || {
        let silence = rand::rng().random_range(10..900);
        let then_cut = rand::rng().random_bool(0.5);
        let drop_replies = rand::rng().random_bool(0.5);
        proxy.set(if drop_replies {
            Mode::DropReplies
        } else {
            Mode::Hang
        });
        tokio::time::sleep(Duration::from_millis(silence)).await;
        if then_cut {
            proxy.set(Mode::Cut);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        proxy.set(Mode::Forward);
    })
    .await;
    check(workers, &[server]).await;
}

#[tokio::test]
async fn the_server_pauses_kills_clients_and_flushes_scripts() {
    let (server, workers) = reentrant().await;
    let mut raw = server.conn().await;
    repeat_fault(5..80, async || {
        let fault = rand::rng().random_range(0..4);
        let kind = if rand::rng().random_bool(0.5) {
            "WRITE"
        } else {
            "ALL"
        };
        let pause = rand::rng().random_range(1..800).to_string();
        let kill = |client_type| ["KILL", "TYPE", client_type, "SKIPME", "yes"];
        match fault {
            0 => drop(query::<String>(&mut raw, "CLIENT", &["PAUSE", &pause, kind]).await),
            1 => drop(query::<i64>(&mut raw, "CLIENT", &kill("normal")).await),
            2 => drop(query::<i64>(&mut raw, "CLIENT", &kill("pubsub")).await),
            _ => drop(query::<String>(&mut raw, "SCRIPT", &["FLUSH"]).await),
        }
    })
    .await;
    check(workers, &[server]).await;
}

#[tokio::test]
async fn the_server_restarts_without_its_data() {
    let (mut server, mut workers) = reentrant().await;
    for _ in 0..4 {
        tokio::time::sleep(RUN / 8).await;
        workers.wipe_and_cut(server.restart()).await;
    }
    check(workers, &[server]).await;
}

#[tokio::test]
async fn the_lock_is_force_unlocked() {
    let (server, mut workers) = reentrant().await;
    let locks = super::locks(&server, super::LEASE).await;
    let lock = locks.lock(NAME);
    repeat_fault(20..200, async || {
        workers
            .wipe(async { assert!(lock.force_unlock().await.is_ok()) })
            .await;
    })
    .await;
    check(workers, &[server]).await;
}

/// Waiters cannot subscribe and releases cannot publish: slow, but never two holders at once.
#[tokio::test]
async fn an_acl_denies_the_channel() {
    let (server, workers) = reentrant().await;
    let mut raw = server.conn().await;
    for _ in 0..2 {
        let denied = ["SETUSER", "default", "resetchannels"];
        drop(query::<String>(&mut raw, "ACL", &denied).await);
        tokio::time::sleep(RUN / 4).await;
        let allowed = ["SETUSER", "default", "allchannels"];
        drop(query::<String>(&mut raw, "ACL", &allowed).await);
        tokio::time::sleep(RUN / 4).await;
    }
    check(workers, &[server]).await;
}

/// Stops holders (SIGSTOP) for longer than their lease, at random moments.
async fn pause_holders(workers: &Workers) {
    for stopped in 0..3 {
        let before = held_guard(workers, stopped as u64).await;
        workers.signal(stopped, Signal::STOP);
        tokio::time::sleep(LEASE + COMMAND).await;
        let resumed = now();
        workers.signal(stopped, Signal::CONT);
        // The first event of that hold after the pause must not be a claim of validity.
        eventually("it records an event", async || {
            let events = workers.so_far().events;
            events
                .iter()
                .any(|event| event.guard >> 32 == stopped as u64 && event.at > resumed)
        })
        .await;
        let events = workers.so_far().events;
        let mut later_events = events
            .iter()
            .filter(|event| event.guard == before && event.at > resumed);
        if let Some(first) = later_events.next() {
            let valid = matches!(first.kind, EventKind::Valid { .. });
            assert!(!valid, "after the pause: {first:?}");
        }
    }
}

/// A lock cannot prevent a write by a holder paused past its lease. A resource can, as the example
/// `fenced_resource` does: the token of whoever acquires the lock meanwhile is higher.
#[tokio::test]
async fn tokens_rise_past_paused_holders() {
    let server = RedisServer::start().await;
    let workers = Workers::start(Kind::Fenced, &server.url(), |plan| plan.long = 0.5).await;
    pause_holders(&workers).await;
    check(workers, &[server]).await;
}

/// Waits until `process` holds the lock according to its history; returns the guard's number.
async fn held_guard(workers: &Workers, process: u64) -> u64 {
    let mut guard = None;
    eventually("it holds the lock", async || {
        let events = workers.so_far().events;
        let last = events.iter().rfind(|event| event.guard >> 32 == process);
        guard = last
            .filter(|event| matches!(event.kind, EventKind::Valid { .. }))
            .map(|e| e.guard);
        guard.is_some()
    })
    .await;
    guard.expect("set by the condition")
}

#[tokio::test]
async fn a_holder_is_killed() {
    let (_server, mut workers) = reentrant().await;
    held_guard(&workers, 0).await;
    workers.kill(0).await;
    let died = now();
    eventually("the others go on", async || {
        workers.so_far().granted_after(died).count() > 20
    })
    .await;
    workers.finish(&[0]).await.assert_holds();
}

/// A planted violation: the lock is taken away from its holders, and the checker is not told.
#[tokio::test]
async fn two_holders_are_detected() {
    let (server, workers) = reentrant().await;
    let locks = super::locks(&server, super::LEASE).await;
    eventually("two hold the lock at once", async || {
        locks.lock(NAME).force_unlock().await.unwrap();
        workers.two_holders() > 0
    })
    .await;
    workers.finish(&[]).await.assert_two_holders();
}
