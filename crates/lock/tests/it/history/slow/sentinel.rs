//! Histories of a lock on a master that Sentinel monitors: lost and late requests, and failovers.

use rustix::process::Signal;

use super::replication::{granted_after, grants_nothing, plan, still_held, stop_replication};
use crate::history::event::now;
use crate::history::lock_under_test::{Kind, Target};
use crate::history::worker::Plan;
use crate::history::workers::Workers;
use crate::history::{check, disturb, few_owners, recovered};
use crate::{eventually, query};
use testkit::proxy::Proxy;
use testkit::redis_sentinel::{MASTER, RedisSentinel, in_sync};
use testkit::redis_server::{RedisServer, Role};

/// Longer than a failover takes, until the old master is a replica.
const PAUSE: &str = "120000";

async fn start(sentinel: &RedisSentinel, change: impl Fn(&mut Plan)) -> Workers {
    let workers =
        Workers::start_with(Kind::Reentrant, Target::Sentinel(sentinel.urls()), change).await;
    workers.granted(20).await;
    workers
}

/// The connection of a request that comes late was given up long before; owners are never replaced.
#[tokio::test]
async fn replies_are_lost_and_requests_come_late() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let monitored = format!("sentinel monitor {MASTER} 127.0.0.1 {} 1\n", proxy.address.port());
    let sentinel = RedisServer::start_as(Role::Sentinel(monitored)).await;
    let target = Target::Sentinel(vec![sentinel.url()]);
    let workers = Workers::start_with(Kind::Reentrant, target, few_owners).await;
    disturb(&proxy).await;
    check(workers, &server, 20).await;
}

/// Waits until every sentinel names the second server as the master.
async fn switched(sentinel: &RedisSentinel) {
    let port = sentinel.servers[1].port().to_string();
    for any in &sentinel.sentinels {
        let mut raw = any.conn().await;
        eventually("the sentinels have switched", async || {
            let (_, found): (String, String) =
                query(&mut raw, "SENTINEL", &["GET-MASTER-ADDR-BY-NAME", MASTER]).await;
            found == port
        })
        .await;
    }
}

/// Waits until the old master has become a replica, which closes its connections.
async fn demoted(sentinel: &RedisSentinel) {
    eventually("the old master is a replica", async || {
        let client = sentinel.servers[0].client();
        let Ok(mut raw) = client.get_multiplexed_async_connection().await else { return false };
        let role: Result<Vec<redis::Value>, _> = redis::cmd("ROLE").query_async(&mut raw).await;
        let replica = redis::Value::BulkString(b"slave".to_vec());
        role.is_ok_and(|role| role.first() == Some(&replica))
    })
    .await;
    in_sync(&sentinel.servers[1], &sentinel.servers[0]).await;
}

/// Kills the master, and waits until its replica has taken over.
async fn fail_over(sentinel: &mut RedisSentinel) {
    sentinel.servers[0].kill();
    switched(sentinel).await;
}

/// Starts the killed master again, as the replica of its replacement.
async fn rejoin(sentinel: &mut RedisSentinel) {
    sentinel.servers[0].role = Role::ReplicaOf(sentinel.servers[1].port());
    sentinel.servers[0].restart().await;
    in_sync(&sentinel.servers[1], &sentinel.servers[0]).await;
}

/// The master's writers are paused until its replica has all, and until the master is a replica itself.
/// The holder keeps its lock.
#[tokio::test]
async fn a_graceful_failover_loses_nothing() {
    let sentinel = RedisSentinel::start().await;
    let workers = start(&sentinel, plan(0)).await;
    let holder = workers.keep_holding().await;
    let [master, replica] = sentinel.servers.as_slice() else { panic!("two servers") };
    let mut raw = master.conn().await;
    let _: () = query(&mut raw, "CLIENT", &["PAUSE", PAUSE, "WRITE"]).await;
    let mut copy = replica.conn().await;
    eventually("the replica has all", async || {
        let at = async |raw| -> Option<String> {
            let facts: String = query(raw, "INFO", &["replication"]).await;
            let offset = facts.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
            offset.map(str::to_owned)
        };
        at(&mut raw).await == at(&mut copy).await
    })
    .await;
    let mut any = sentinel.sentinels[0].conn().await;
    let _: () = query(&mut any, "SENTINEL", &["FAILOVER", MASTER]).await;
    switched(&sentinel).await;
    still_held(&workers, holder).await;
    // The sentinels' own connections are paused too.
    let port = replica.port().to_string();
    let _: () = query(&mut raw, "REPLICAOF", &["127.0.0.1", &port]).await;
    let _: () = query(&mut raw, "CLIENT", &["UNPAUSE"]).await;
    demoted(&sentinel).await;
    workers.let_go();
    granted_after(&workers, now()).await;
    check(workers, replica, 20).await;
}

/// The old master goes on answering for seconds. What it grants then no replica acknowledges.
#[tokio::test]
async fn a_replaced_master_grants_nothing_without_a_replica() {
    let sentinel = RedisSentinel::start().await;
    let mut workers = start(&sentinel, plan(1)).await;
    let failover = async {
        let mut any = sentinel.sentinels[0].conn().await;
        let _: () = query(&mut any, "SENTINEL", &["FAILOVER", MASTER]).await;
        switched(&sentinel).await;
        demoted(&sentinel).await;
    };
    workers.failover(failover).await;
    check(workers, &sentinel.servers[1], 20).await;
}

/// Its replica has every acquire that a client knows of.
#[tokio::test]
async fn a_killed_master_loses_no_acknowledged_acquire() {
    let mut sentinel = RedisSentinel::start().await;
    let mut workers = start(&sentinel, plan(1)).await;
    let holder = workers.keep_holding().await;
    workers.failover(fail_over(&mut sentinel)).await;
    still_held(&workers, holder).await;
    workers.let_go();
    rejoin(&mut sentinel).await;
    recovered(&workers).await;
    workers.finish(&[]).await.assert_holds(20).await;
}

/// The same while the replica gets nothing: then no acquire succeeds that it would not know of.
#[tokio::test]
async fn a_replica_that_lags_acknowledges_no_acquire() {
    let mut sentinel = RedisSentinel::start().await;
    let mut workers = start(&sentinel, plan(1)).await;
    stop_replication(&workers, &sentinel.servers[0], &sentinel.servers[1]).await;
    grants_nothing(&workers).await;
    workers.failover(fail_over(&mut sentinel)).await;
    rejoin(&mut sentinel).await;
    recovered(&workers).await;
    workers.finish(&[]).await.assert_holds(20).await;
}

/// Planted: nobody waits for the replica, so that the failover loses a lock that is held.
#[tokio::test]
async fn a_lagging_replica_is_detected_without_acknowledgement() {
    let mut sentinel = RedisSentinel::start().await;
    let mut workers = start(&sentinel, plan(0)).await;
    stop_replication(&workers, &sentinel.servers[0], &sentinel.servers[1]).await;
    granted_after(&workers, now()).await;
    let holder = workers.keep_holding().await;
    let (process, held) = (Workers::process_of(holder), now());
    // It does not notice the loss before it is resumed.
    workers.signal(process, Signal::STOP);
    workers.failover(fail_over(&mut sentinel)).await;
    granted_after(&workers, held).await;
    workers.signal(process, Signal::CONT);
    workers.let_go();
    workers.finish(&[]).await.assert_two_holders();
}
