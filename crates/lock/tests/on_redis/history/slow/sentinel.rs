//! Histories of a lock on a master that Sentinel monitors: lost and late requests, and failovers.

use super::replication::{granted_after, short_holds, start, still_held};
use crate::history::event::now;
use crate::history::lock_under_test::Kind;
use crate::history::workers::Workers;
use crate::history::{check, disturb, few_owners, recovered};
use crate::{addresses, eventually, query};
use testkit::proxy::Proxy;
use testkit::redis_sentinel::{MASTER, RedisSentinel, in_sync};
use testkit::redis_server::{RedisServer, Role};

/// How long the master's writers are paused, in ms: longer than it takes until the old master is a replica.
const PAUSE: &str = "120000";

fn url(sentinels: &[RedisServer]) -> String {
    format!("redis-sentinel://{}/{MASTER}", addresses(sentinels))
}

/// The connection of a request that comes late was given up long before; owners are never replaced.
#[tokio::test]
async fn replies_are_lost_and_requests_come_late() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let monitored = format!(
        "sentinel monitor {MASTER} 127.0.0.1 {} 1\n",
        proxy.address.port()
    );
    let sentinel = RedisServer::start_as(Role::Sentinel(monitored)).await;
    let url = url(std::slice::from_ref(&sentinel));
    let workers = Workers::start(Kind::Reentrant, &url, few_owners).await;
    disturb(&proxy).await;
    check(workers, &[server]).await;
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

/// The master's writers are paused until its replica has all, and until the master is a replica itself.
/// The holder keeps its lock.
#[tokio::test]
async fn a_graceful_failover_loses_nothing() {
    let sentinel = RedisSentinel::start().await;
    let workers = start(&url(&sentinel.sentinels), short_holds).await;
    let holder = workers.keep_holding().await;
    let [master, replica] = sentinel.servers.as_slice() else {
        panic!("two servers")
    };
    let mut raw = master.conn().await;
    let _: () = query(&mut raw, "CLIENT", &["PAUSE", PAUSE, "WRITE"]).await;
    let mut copy = replica.conn().await;
    eventually("the replica has all", async || {
        let replication_offset = async |raw| -> Option<String> {
            let facts: String = query(raw, "INFO", &["replication"]).await;
            let offset = facts
                .lines()
                .find_map(|line| line.strip_prefix("master_repl_offset:"));
            offset.map(str::to_owned)
        };
        replication_offset(&mut raw).await == replication_offset(&mut copy).await
    })
    .await;
    sentinel.ask_for_failover().await;
    switched(&sentinel).await;
    still_held(&workers, holder).await;
    // The sentinels' own connections are paused too.
    let port = replica.port().to_string();
    let _: () = query(&mut raw, "REPLICAOF", &["127.0.0.1", &port]).await;
    let _: () = query(&mut raw, "CLIENT", &["UNPAUSE"]).await;
    in_sync(replica, master).await;
    workers.let_go();
    granted_after(&workers, now()).await;
    check(workers, &sentinel.servers[1..]).await;
}

/// As on a cluster: before and after the failover there is one owner at a time.
#[tokio::test]
async fn a_master_is_killed() {
    let mut sentinel = RedisSentinel::start().await;
    let mut workers = start(&url(&sentinel.sentinels), |_| {}).await;
    workers
        .wipe_and_cut(async {
            sentinel.servers[0].kill();
            switched(&sentinel).await;
        })
        .await;
    recovered(&workers).await;
    workers.finish(&[]).await.assert_holds();
}
