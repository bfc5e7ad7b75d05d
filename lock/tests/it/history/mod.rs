//! Histories: several processes use one lock at random while a fault runs, and write down what
//! they asked, were told and claimed; a [checker] then decides whether a mutex with expiry could
//! have done that. The checker is shown to reject what no mutex does, written by hand and taken of
//! locks that are really broken.
//!
//! Each history is seeded and prints its seed: `LOCK_HISTORY_SEED=… cargo test` repeats the choices
//! (not the timing).

mod checker;
mod event;
mod fleet;
mod planted;
mod register;
pub mod subject;
mod worker;

use std::time::{Duration, Instant};

use rand::Rng;
use redis::aio::MultiplexedConnection;
use rustix::process::Signal;

use self::event::{What, now};
use self::fleet::{Fleet, Report};
use self::register::Audit;
use self::subject::{COMMAND, Kind, LEASE, NAME};
use super::{ask, eventually};
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::RedisServer;

/// How long the faults of one history go on.
const RUN: Duration = Duration::from_millis(1_600);

/// Do something again and again, after random pauses, for the length of a run.
async fn now_and_then(pause: std::ops::Range<u64>, mut fault: impl AsyncFnMut()) {
    let end = Instant::now() + RUN;
    while Instant::now() < end {
        let pause = rand::rng().random_range(pause.clone());
        tokio::time::sleep(Duration::from_millis(pause)).await;
        fault().await;
    }
}

/// Faults are over: the processes have to get the lock again, all of them.
async fn recovers(fleet: &Fleet) {
    let over = now();
    eventually("every process holds the lock again", async || {
        let events = fleet.so_far().events;
        let again = |process: u64| {
            events.iter().any(|event| {
                event.guard >> 32 == process
                    && event.at > over
                    && matches!(event.what, What::Granted { .. })
            })
        };
        (0..3).all(again)
    })
    .await;
}

/// No key is left but the counter of fences.
async fn no_key_left(raw: &mut MultiplexedConnection) {
    eventually("no key, no subscription left", async || {
        let keys: Vec<String> = ask(raw, "KEYS", &["*"]).await;
        let channels: Vec<String> = ask(raw, "PUBSUB", &["CHANNELS"]).await;
        keys.iter().all(|key| key.starts_with("redisson_lock_token:")) && channels.is_empty()
    })
    .await;
}

/// End the history, look that nothing is left, and judge.
async fn judge(fleet: Fleet, server: &RedisServer, at_least: usize) -> Report {
    recovers(&fleet).await;
    let report = fleet.finish(&[]).await;
    no_key_left(&mut server.conn().await).await;
    report.assert_holds(at_least);
    report
}

#[tokio::test]
async fn without_faults() {
    let server = RedisServer::start().await;
    let fleet = Fleet::start(Kind::Reentrant, &server.address()).await;
    tokio::time::sleep(RUN).await;
    judge(fleet, &server, 20).await;
}

/// The others of the family that let one owner in, all faults of the proxy in one.
async fn on_a_bad_line(kind: Kind) {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let fleet = Fleet::start(kind, &proxy.address.to_string()).await;
    now_and_then(0..40, async || {
        let fault = rand::rng().random_range(0..20);
        proxy.set(if fault == 0 { Mode::Hang } else { Mode::LoseReply });
        if fault == 0 {
            tokio::time::sleep(COMMAND).await;
            proxy.set(Mode::Cut);
            tokio::time::sleep(Duration::from_millis(10)).await;
            proxy.set(Mode::Forward);
        }
    })
    .await;
    proxy.set(Mode::Forward);
    judge(fleet, &server, 20).await;
}

#[tokio::test]
async fn the_fenced_lock_on_a_bad_line() {
    on_a_bad_line(Kind::Fenced).await;
}

#[tokio::test]
async fn the_fair_lock_on_a_bad_line() {
    on_a_bad_line(Kind::Fair).await;
}

#[tokio::test]
async fn the_write_lock_on_a_bad_line() {
    on_a_bad_line(Kind::Write).await;
}

#[tokio::test]
async fn replies_are_lost() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let fleet = Fleet::start(Kind::Reentrant, &proxy.address.to_string()).await;
    now_and_then(0..20, async || proxy.set(Mode::LoseReply)).await;
    proxy.set(Mode::Forward);
    judge(fleet, &server, 20).await;
}

/// A request that arrives after the client has sent it again. Each turn has an owner of its own
/// here: nothing on the wire tells a late release from a new one of the same owner.
#[tokio::test]
async fn requests_arrive_late_and_twice() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let fleet = Fleet::start_with(Kind::Reentrant, &proxy.address.to_string(), |plan| {
        plan.fresh_owners = true
    })
    .await;
    now_and_then(5..60, async || proxy.set(Mode::DelayRequest)).await;
    proxy.set(Mode::Forward);
    judge(fleet, &server, 20).await;
}

#[tokio::test]
async fn connections_go_half_open() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let fleet = Fleet::start(Kind::Reentrant, &proxy.address.to_string()).await;
    now_and_then(20..300, async || {
        let (silence, then_cut, deaf) = {
            let mut random = rand::rng();
            (random.random_range(10..900), random.random_bool(0.5), random.random_bool(0.5))
        };
        proxy.set(if deaf { Mode::Deaf } else { Mode::Hang });
        tokio::time::sleep(Duration::from_millis(silence)).await;
        if then_cut {
            proxy.set(Mode::Cut);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        proxy.set(Mode::Forward);
    })
    .await;
    judge(fleet, &server, 20).await;
}

#[tokio::test]
async fn the_server_pauses_kills_and_forgets_scripts() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let fleet = Fleet::start(Kind::Reentrant, &server.address()).await;
    now_and_then(5..80, async || {
        let which = rand::rng().random_range(0..4);
        let (pause, kind) = {
            let mut random = rand::rng();
            let kind = if random.random_bool(0.5) { "WRITE" } else { "ALL" };
            (random.random_range(1..800).to_string(), kind)
        };
        let kill = |of| ["KILL", "TYPE", of, "SKIPME", "yes"];
        match which {
            0 => drop(ask::<String>(&mut raw, "CLIENT", &["PAUSE", &pause, kind]).await),
            1 => drop(ask::<i64>(&mut raw, "CLIENT", &kill("normal")).await),
            2 => drop(ask::<i64>(&mut raw, "CLIENT", &kill("pubsub")).await),
            _ => drop(ask::<String>(&mut raw, "SCRIPT", &["FLUSH"]).await),
        }
    })
    .await;
    judge(fleet, &server, 20).await;
}

#[tokio::test]
async fn the_server_restarts_without_its_data() {
    let mut server = RedisServer::start().await;
    let mut fleet = Fleet::start(Kind::Reentrant, &server.address()).await;
    for _ in 0..4 {
        tokio::time::sleep(RUN / 8).await;
        fleet.wipe_and_cut(server.restart()).await;
    }
    judge(fleet, &server, 20).await;
}

/// A failover may forget the last writes, so that nothing is asked of the holds it meets but that
/// they end. Before and after it, and above all on the new master, it is one owner at a time.
#[tokio::test]
async fn a_cluster_fails_over() {
    let mut cluster = RedisCluster::start_with_replicas(Duration::from_secs(1)).await;
    let slot = cluster.slot(NAME).await;
    let master = cluster.owner(0, slot).await.expect("somebody serves it");
    let urls = cluster.urls();
    let habits = |plan: &mut worker::Plan| plan.redis = urls.clone();
    let mut fleet = Fleet::start_with(Kind::Reentrant, "", habits).await;
    tokio::time::sleep(RUN / 4).await;
    let asked = (master + 1) % 3;
    let failover = async {
        cluster.nodes[master].kill();
        eventually("the replica takes over", async || {
            cluster.owner(asked, slot).await == Some(master + 3)
        })
        .await;
    };
    fleet.wipe_and_cut(failover).await;
    recovers(&fleet).await;
    tokio::time::sleep(RUN / 4).await;
    fleet.finish(&[]).await.assert_holds(20);
}

#[tokio::test]
async fn somebody_unlocks_by_force() {
    let server = RedisServer::start().await;
    let locks = super::locks(&server).await;
    let mut fleet = Fleet::start(Kind::Reentrant, &server.address()).await;
    let lock = locks.reentrant(NAME).unwrap();
    now_and_then(20..200, async || {
        let unlock = async || assert!(lock.force_unlock().await.is_ok());
        fleet.wipe(unlock()).await;
    })
    .await;
    judge(fleet, &server, 20).await;
}

/// Waiters cannot hear, and releases cannot tell: slow, but never two at once.
#[tokio::test]
async fn the_channel_is_denied() {
    let server = RedisServer::start().await;
    let mut raw = server.conn().await;
    let fleet = Fleet::start(Kind::Reentrant, &server.address()).await;
    for _ in 0..2 {
        let denied = ["SETUSER", "default", "resetchannels"];
        drop(ask::<String>(&mut raw, "ACL", &denied).await);
        tokio::time::sleep(RUN / 4).await;
        let allowed = ["SETUSER", "default", "allchannels"];
        drop(ask::<String>(&mut raw, "ACL", &allowed).await);
        tokio::time::sleep(RUN / 4).await;
    }
    judge(fleet, &server, 20).await;
}

/// Holders that are stopped in the middle of a hold, past their lease: three, and more until what
/// has become of the register is enough.
async fn sleepy(
    kind: Kind,
    show_fences: bool,
    enough: impl Fn(Audit) -> bool,
) -> (Fleet, RedisServer) {
    let server = RedisServer::start().await;
    let habits = |plan: &mut worker::Plan| (plan.long, plan.show_fences) = (0.5, show_fences);
    let fleet = Fleet::start_with(kind, &server.address(), habits).await;
    for round in 0..15 {
        if round >= 3 && enough(fleet.audit().await) {
            break;
        }
        let stopped = round % 3;
        let before = holding(&fleet, stopped as u64).await;
        fleet.signal(stopped, Signal::STOP);
        tokio::time::sleep(LEASE + COMMAND).await;
        let awake = now();
        fleet.signal(stopped, Signal::CONT);
        // Whatever it says first of that hold, it does not claim the lock any more.
        eventually("it says something", async || {
            let events = fleet.so_far().events;
            events.iter().any(|event| event.guard >> 32 == stopped as u64 && event.at > awake)
        })
        .await;
        let events = fleet.so_far().events;
        let mut of_it = events.iter().filter(|event| event.guard == before && event.at > awake);
        if let Some(first) = of_it.next() {
            let claims = matches!(first.what, What::Claims { .. });
            assert!(!claims, "after the sleep: {first:?}");
        }
    }
    (fleet, server)
}

#[tokio::test]
async fn holders_sleep_past_their_lease() {
    let (fleet, server) = sleepy(Kind::Reentrant, true, |_| true).await;
    judge(fleet, &server, 20).await;
}

/// What no lock can prevent, a resource that knows fences does: the late holders come, and are
/// refused.
#[tokio::test]
async fn late_holders_are_refused_by_their_fences() {
    let (fleet, server) = sleepy(Kind::Fenced, true, |seen| seen.refused > 0).await;
    let refused = judge(fleet, &server, 20).await.register.refused;
    assert!(refused > 0, "nobody came late: nothing was proven");
}

/// The same without fences: the lock keeps its word, and the late holders overwrite all the same.
#[tokio::test]
async fn late_holders_do_harm_without_fences() {
    let (fleet, _server) = sleepy(Kind::Fenced, false, |seen| seen.value < seen.writes).await;
    let report = fleet.finish(&[]).await;
    assert_eq!(report.violations(), Vec::<String>::new());
    assert!(report.register.value < report.register.writes, "{:?}", report.register);
}

/// The guard that `process` holds at this moment, as far as its history says.
async fn holding(fleet: &Fleet, process: u64) -> u64 {
    let mut guard = None;
    eventually("it holds the lock", async || {
        let events = fleet.so_far().events;
        let last = events.iter().rfind(|event| event.guard >> 32 == process);
        guard = last.filter(|event| matches!(event.what, What::Claims { .. })).map(|e| e.guard);
        guard.is_some()
    })
    .await;
    guard.expect("just seen")
}

#[tokio::test]
async fn a_holder_dies() {
    let server = RedisServer::start().await;
    let mut fleet = Fleet::start(Kind::Reentrant, &server.address()).await;
    holding(&fleet, 0).await;
    fleet.kill(0).await;
    let died = now();
    eventually("the others go on", async || {
        let events = fleet.so_far().events;
        let on = events.iter().filter(|event| event.at > died);
        on.filter(|event| matches!(event.what, What::Granted { .. })).count() > 20
    })
    .await;
    let report = fleet.finish(&[0]).await;
    report.assert_holds(20);
}

/// What the checker is for: these locks are broken, and it has to notice.
#[tokio::test]
async fn broken_locks_are_found_out() {
    for kind in [Kind::LookThenSet, Kind::ReleaseUnseen] {
        let server = RedisServer::start().await;
        let fleet = Fleet::start(kind, &server.address()).await;
        let found = async || !fleet.so_far().events.is_empty();
        eventually("it has begun", found).await;
        tokio::time::sleep(RUN / 2).await;
        let report = fleet.finish(&[]).await;
        let found = report.violations();
        let two = found.iter().filter(|line| line.starts_with("two holders")).count();
        println!("{kind:?}: {two} of {} violations are two holders", found.len());
        assert!(two > 0, "{kind:?} was taken for a mutex");
    }
}
