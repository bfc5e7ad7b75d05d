//! Replica acknowledgement: an acquire succeeds only when the required number of replicas have the
//! lock, which is released otherwise.

use std::time::{Duration, Instant};

use redisson_lock::{Error, LockConfig, Locks, Server};

use super::{connected, nothing_left, query};
use testkit::redis_cluster::RedisCluster;
use testkit::redis_sentinel::{MASTER, RedisSentinel, in_sync, replication_says};
use testkit::redis_server::{RedisServer, Role};

const NAME: &str = "lock:order:1";

/// A timeout that a live replica meets even on a busy machine.
const GENEROUS: Duration = Duration::from_secs(5);

async fn pair() -> (RedisServer, RedisServer) {
    let master = RedisServer::start().await;
    let replica = RedisServer::start_as(Role::ReplicaOf(master.port())).await;
    in_sync(&master, &replica).await;
    (master, replica)
}

fn config(count: u32, timeout: Duration) -> LockConfig {
    LockConfig::default()
        .with_replicas(count, timeout)
        .with_lease(Duration::from_secs(60))
}

async fn connect(master: &RedisServer, count: u32, timeout: Duration) -> Locks {
    connected(master.client(), config(count, timeout))
        .await
        .expect("connect")
}

#[tokio::test]
async fn an_acquired_lock_is_on_the_replica() {
    let (master, replica) = pair().await;
    let locks = connect(&master, 1, GENEROUS).await;
    let mut copy = replica.conn().await;
    for number in 0..50 {
        let name = format!("lock:order:{number}");
        let owner = locks.owner();
        let guard = locks.lock(&name).acquire_as(&owner).await.unwrap();
        let depth: Option<u32> = query(&mut copy, "HGET", &[&name, &owner.to_string()]).await;
        assert_eq!(depth, Some(1));
        let left: i64 = query(&mut copy, "PTTL", &[&name]).await;
        assert!((1..=60_000).contains(&left), "{left}");
        guard.release().await.unwrap();
    }
    nothing_left(&master, &[&locks]).await;
}

#[tokio::test]
async fn a_lock_that_too_few_replicas_have_is_released() {
    let (master, _replica) = pair().await;
    let timeout = Duration::from_millis(200);
    let locks = connect(&master, 2, timeout).await;
    let lock = locks.lock(NAME);
    let started = Instant::now();
    let error = lock.try_acquire().await.map(drop).unwrap_err();
    assert!(started.elapsed() >= timeout, "{:?}", started.elapsed());
    match error {
        Error::Unavailable { cause, .. } => {
            assert!(cause.to_string().contains("of 2 replicas"), "{cause}")
        }
        error => panic!("{error:?}"),
    }
    // Released before the error was returned, not a lease of 60 s later.
    assert_eq!(lock.is_locked().await, Ok(false));
    let setnx = locks.setnx(NAME, Duration::from_secs(60));
    fails_as!(setnx.try_acquire().await, Unavailable);
    assert_eq!(lock.is_locked().await, Ok(false));
    nothing_left(&master, &[&locks]).await;
}

#[tokio::test]
async fn a_failed_re_entry_leaves_the_first_hold() {
    let (master, replica) = pair().await;
    let locks = connect(&master, 1, Duration::from_secs(4)).await;
    let lock = locks.lock(NAME);
    let owner = locks.owner();
    let guard = lock.acquire_as(&owner).await.unwrap();
    replica.pause();
    fails_as!(lock.try_acquire_as(&owner).await, Unavailable);
    assert_eq!(lock.hold_count(&owner).await, Ok(1));
    replica.resume();
    let again = super::soon("the replica is back", lock.acquire_as(&owner))
        .await
        .unwrap();
    assert_eq!(lock.hold_count(&owner).await, Ok(2));
    again.release().await.unwrap();
    guard.release().await.unwrap();
    nothing_left(&master, &[&locks]).await;
}

#[tokio::test]
async fn waiting_for_replicas_does_not_delay_other_commands() {
    let (master, replica) = pair().await;
    let locks = connect(&master, 1, Duration::from_secs(3)).await;
    let held = locks.lock("lock:order:2");
    let guard = held.acquire().await.unwrap();
    replica.pause();
    let waiting = {
        let lock = locks.lock(NAME);
        tokio::spawn(async move { lock.try_acquire().await.map(drop) })
    };
    let lock = locks.lock(NAME);
    super::eventually("the acquire waits", async || {
        lock.is_locked().await == Ok(true)
    })
    .await;
    let started = Instant::now();
    for _ in 0..20 {
        assert_eq!(held.is_locked().await, Ok(true));
    }
    guard.release().await.unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    assert!(!waiting.is_finished(), "it did not wait");
    fails_as!(waiting.await.unwrap(), Unavailable);
    replica.resume();
    nothing_left(&master, &[&locks]).await;
}

#[tokio::test]
async fn each_shard_of_a_cluster_has_its_own_replicas() {
    let cluster = RedisCluster::start_with_replicas(Duration::from_secs(60)).await;
    let connect = async |count, timeout| {
        let server = Server::cluster(cluster.urls()).unwrap();
        connected(server, config(count, timeout)).await.unwrap()
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
            read && redis::cmd("EXISTS")
                .arg(&name)
                .exec_async(&mut copy)
                .await
                .is_ok()
        })
        .await;
        fails_as!(too_few.lock(&name).try_acquire().await, Unavailable);
        let owner = enough.owner();
        let lock = enough.lock(&name);
        let mut guard = None;
        // A node that answers CLUSTER SLOTS late is unavailable for a moment.
        super::eventually("it was released, and is acknowledged", async || {
            match lock.try_acquire_as(&owner).await {
                Ok(acquired) => guard = acquired,
                Err(Error::Unavailable { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
            guard.is_some()
        })
        .await;
        let guard = guard.expect("it was acquired");
        let mut copy = cluster.nodes[shard + 3].conn().await;
        let _: () = query(&mut copy, "READONLY", &[]).await;
        let depth: Option<u32> = query(&mut copy, "HGET", &[&name, &owner.to_string()]).await;
        assert_eq!(depth, Some(1));
        guard.release().await.unwrap();
    }
}

/// The replaced master answers as a master for some eight seconds more. It is not asked about replicas of
/// the new one.
#[tokio::test]
async fn replicas_of_the_master_acknowledge_before_and_after_a_failover() {
    let sentinel = RedisSentinel::start().await;
    let [old, new] = sentinel.servers.as_slice() else {
        panic!("two servers")
    };
    // The new master has a replica from the start.
    let next = RedisServer::start_as(Role::ReplicaOf(new.port())).await;
    in_sync(new, &next).await;
    let login = redis::RedisConnectionInfo::default();
    let server = Server::sentinel(sentinel.urls(), MASTER, login).unwrap();
    let too_few = connected(server.clone(), config(2, Duration::from_millis(100))).await;
    let locks = connected(server, config(1, Duration::from_millis(300)))
        .await
        .unwrap();
    let lock = locks.lock(NAME);
    super::soon("it is acquired", lock.acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    fails_as!(too_few.unwrap().lock(NAME).try_acquire().await, Unavailable);
    assert_eq!(lock.is_locked().await, Ok(false));
    sentinel.ask_for_failover().await;
    let is_master = async |server: &RedisServer| replication_says(server, "role:master").await;
    super::eventually("the replica is a master", async || is_master(new).await).await;
    super::eventually("it is acquired on the new master", async || {
        let there = match lock.try_acquire().await {
            Ok(Some(guard)) => {
                let mut raw = new.conn().await;
                let there = query::<i64>(&mut raw, "EXISTS", &[NAME]).await == 1;
                // The old master may have lost it meanwhile.
                guard.release().await.is_ok() && there
            }
            _ => false,
        };
        assert!(is_master(old).await, "too late: it is a replica");
        there
    })
    .await;
}
