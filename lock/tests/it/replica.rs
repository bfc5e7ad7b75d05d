//! Replica acknowledgement: a lock is only said to be taken when so many replicas have it, and
//! given back otherwise.

use std::time::{Duration, Instant};

use redisson_lock::{Error, LockConfig, Locks, Replicas, Server};

use super::{ask, nothing_left};
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_sentinel::{MASTER, RedisSentinel, in_step};
use crate::support::redis_server::{RedisServer, Role};

const NAME: &str = "lock:order:1";

/// Time enough for a replica that answers, on a busy machine.
const GENEROUS: Duration = Duration::from_secs(5);

async fn pair() -> (RedisServer, RedisServer) {
    let master = RedisServer::start().await;
    let replica = RedisServer::start_as(Role::ReplicaOf(master.port())).await;
    in_step(&master, &replica).await;
    (master, replica)
}

fn config(count: u32, timeout: Duration) -> LockConfig {
    let replicas = Replicas::new(count, timeout);
    LockConfig::default().with_replicas(replicas).with_lease(Duration::from_secs(60))
}

async fn connect(master: &RedisServer, count: u32, timeout: Duration) -> Locks {
    Locks::connect(master.client(), config(count, timeout)).await.expect("connect")
}

#[tokio::test]
async fn what_is_taken_is_on_the_replica() {
    let (master, replica) = pair().await;
    let locks = connect(&master, 1, GENEROUS).await;
    let mut copy = replica.conn().await;
    for number in 0..50 {
        let name = format!("lock:order:{number}");
        let me = locks.owner();
        let guard = locks.reentrant(&name).unwrap().acquire(&me).await.unwrap();
        let depth: Option<u32> = ask(&mut copy, "HGET", &[&name, &me.to_string()]).await;
        assert_eq!(depth, Some(1));
        let left: i64 = ask(&mut copy, "PTTL", &[&name]).await;
        assert!((1..=60_000).contains(&left), "{left}");
        guard.release().await.unwrap();
    }
    nothing_left(&master, &[&locks]).await;
}

#[tokio::test]
async fn what_too_few_replicas_have_is_given_back() {
    let (master, _replica) = pair().await;
    let timeout = Duration::from_millis(200);
    let locks = connect(&master, 2, timeout).await;
    let lock = locks.reentrant(NAME).unwrap();
    let started = Instant::now();
    let error = lock.try_acquire(&locks.owner()).await.map(drop).unwrap_err();
    assert!(started.elapsed() >= timeout, "{:?}", started.elapsed());
    match error {
        Error::Unavailable { cause, .. } => assert!(cause.contains("of 2 replicas"), "{cause}"),
        error => panic!("{error:?}"),
    }
    // Given back before the error was said, not a lease of 60 s later.
    assert_eq!(lock.is_locked().await, Ok(false));
    let simple = locks.setnx(NAME, Duration::from_secs(60));
    let error = simple.try_acquire().await.map(drop).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_eq!(lock.is_locked().await, Ok(false));
    nothing_left(&master, &[&locks]).await;
}

#[tokio::test]
async fn a_refused_re_entry_leaves_the_first_hold() {
    let (master, replica) = pair().await;
    let locks = connect(&master, 1, Duration::from_secs(4)).await;
    let lock = locks.reentrant(NAME).unwrap();
    let me = locks.owner();
    let guard = lock.acquire(&me).await.unwrap();
    replica.pause();
    let error = lock.acquire(&me).await.map(drop).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_eq!(lock.hold_count(&me).await, Ok(1));
    replica.resume();
    let again = super::soon("the replica is back", async {
        loop {
            if let Ok(guard) = lock.acquire(&me).await {
                break guard;
            }
        }
    })
    .await;
    assert_eq!(lock.hold_count(&me).await, Ok(2));
    again.release().await.unwrap();
    guard.release().await.unwrap();
    nothing_left(&master, &[&locks]).await;
}

#[tokio::test]
async fn waiting_for_replicas_holds_up_no_other_command() {
    let (master, replica) = pair().await;
    let locks = connect(&master, 1, Duration::from_secs(3)).await;
    let held = locks.reentrant("lock:order:2").unwrap();
    let guard = held.acquire(&locks.owner()).await.unwrap();
    replica.pause();
    let waiting = {
        let (locks, lock) = (locks.clone(), locks.reentrant(NAME).unwrap());
        tokio::spawn(async move { lock.try_acquire(&locks.owner()).await.map(drop) })
    };
    let lock = locks.reentrant(NAME).unwrap();
    super::eventually("the acquire waits", async || lock.is_locked().await == Ok(true)).await;
    let started = Instant::now();
    for _ in 0..20 {
        assert_eq!(held.is_locked().await, Ok(true));
    }
    guard.release().await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert!(!waiting.is_finished(), "it did not wait");
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    replica.resume();
    nothing_left(&master, &[&locks]).await;
}

#[tokio::test]
async fn each_shard_of_a_cluster_has_its_own_replicas() {
    let cluster = RedisCluster::start_with_replicas(Duration::from_secs(60)).await;
    let connect = async |count, timeout| {
        let server = Server::cluster(cluster.urls()).unwrap();
        Locks::connect(server, config(count, timeout)).await.unwrap()
    };
    let enough = connect(1, GENEROUS).await;
    let too_few = connect(2, Duration::from_millis(100)).await;
    for number in 0..20 {
        let name = format!("lock:order:{number}");
        let slot = cluster.slot(&name).await;
        let shard = cluster.owner(0, slot).await.unwrap();
        super::eventually("its replica knows the shard, and answers", async || {
            let mut copy = cluster.nodes[shard + 3].conn().await;
            let read = redis::cmd("READONLY").exec_async(&mut copy).await.is_ok();
            read && redis::cmd("EXISTS").arg(&name).exec_async(&mut copy).await.is_ok()
        })
        .await;
        let error = too_few.reentrant(&name).unwrap().try_acquire(&too_few.owner()).await;
        let error = error.map(drop).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        let me = enough.owner();
        let lock = enough.reentrant(&name).unwrap();
        let mut guard = None;
        // A node that is slow to say which slots it serves is no node for a moment.
        super::eventually("it was given back, and is acknowledged", async || {
            match lock.try_acquire(&me).await {
                Ok(taken) => guard = taken,
                Err(Error::Unavailable { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
            guard.is_some()
        })
        .await;
        let guard = guard.expect("it was taken");
        let mut copy = cluster.nodes[shard + 3].conn().await;
        let _: () = ask(&mut copy, "READONLY", &[]).await;
        let depth: Option<u32> = ask(&mut copy, "HGET", &[&name, &me.to_string()]).await;
        assert_eq!(depth, Some(1));
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_master_kept_by_sentinel_has_replicas_too() {
    let sentinel = RedisSentinel::start().await;
    let login = redis::RedisConnectionInfo::default();
    let server = Server::sentinel(sentinel.urls(), MASTER, login).unwrap();
    let locks = Locks::connect(server.clone(), config(1, GENEROUS)).await.unwrap();
    let lock = locks.reentrant(NAME).unwrap();
    lock.acquire(&locks.owner()).await.unwrap().release().await.unwrap();
    let timeout = Duration::from_millis(100);
    let locks = Locks::connect(server, config(2, timeout)).await.unwrap();
    let error = locks.reentrant(NAME).unwrap().try_acquire(&locks.owner()).await;
    assert!(matches!(error.map(drop), Err(Error::Unavailable { .. })));
    assert_eq!(lock.is_locked().await, Ok(false));
}
