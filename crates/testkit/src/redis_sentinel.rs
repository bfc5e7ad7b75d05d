//! A throw-away Redis master with a replica and three sentinels.

use std::time::Duration;

use redis::RedisResult;

use super::raw::{command, query};
use super::redis_server::{RedisServer, Role};
use super::wait::eventually;

/// The sentinels' name of the master.
pub const MASTER: &str = "mymaster";

/// Time limit for the servers to agree, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The servers, each of which may be killed, paused and restarted.
pub struct RedisSentinel {
    /// The two data servers. The first starts as the master.
    pub servers: Vec<RedisServer>,
    /// Three sentinels with a quorum of two.
    pub sentinels: Vec<RedisServer>,
}

impl RedisSentinel {
    /// Starts them all. The sentinels consider a server down after a second without a reply.
    pub async fn start() -> Self {
        Self::form(None, |_| Vec::new()).await
    }

    /// As [`start`](Self::start), but the servers use TLS among each other: master, replica and sentinels, on one of these
    /// ports each, with the command-line arguments that `arguments` returns for the port.
    pub async fn start_with_tls(ports: [u16; 5], arguments: impl Fn(u16) -> Vec<String>) -> Self {
        Self::form(Some(ports), arguments).await
    }

    async fn form(tls: Option<[u16; 5]>, arguments: impl Fn(u16) -> Vec<String>) -> Self {
        let arguments = |number: usize| tls.map_or_else(Vec::new, |ports| arguments(ports[number]));
        let master = RedisServer::start_with_arguments(Role::Alone, arguments(0)).await;
        let port = tls.map_or(master.port(), |ports| ports[0]);
        let replica = RedisServer::start_with_arguments(Role::ReplicaOf(port), arguments(1)).await;
        in_sync(&master, &replica).await;
        let configuration = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {MASTER} 1000\n\
             sentinel failover-timeout {MASTER} 3000\n"
        );
        let start = |number| {
            let role = Role::Sentinel(configuration.clone());
            RedisServer::start_with_arguments(role, arguments(number))
        };
        let sentinels = futures_util::future::join_all([start(2), start(3), start(4)]).await;
        for sentinel in &sentinels {
            let mut raw = sentinel.conn().await;
            for (what, count) in [("SENTINELS", 2), ("REPLICAS", 1)] {
                eventually(
                    &format!("a sentinel knows the {what}"),
                    TIMEOUT,
                    async || {
                        let listed: Vec<redis::Value> =
                            query(&mut raw, "SENTINEL", &[what, MASTER]).await;
                        listed.len() == count
                    },
                )
                .await;
            }
        }
        Self {
            servers: vec![master, replica],
            sentinels,
        }
    }

    /// Asks for a failover while the master is alive; returns when it has begun.
    pub async fn ask_for_failover(&self) {
        query(
            &mut self.sentinels[0].conn().await,
            "SENTINEL",
            &["FAILOVER", MASTER],
        )
        .await
    }

    /// The addresses of the sentinels.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::url).collect()
    }
}

/// Waits until the two are [`is_in_sync`].
pub async fn in_sync(master: &RedisServer, replica: &RedisServer) {
    eventually("the replica is in sync", TIMEOUT, async || {
        is_in_sync(master, replica).await
    })
    .await;
}

/// Whether both report that the replica follows its master. The master reports it later, and counts the
/// replica's acknowledgements only from then on.
pub async fn is_in_sync(master: &RedisServer, replica: &RedisServer) -> bool {
    replication_says(master, "state=online").await
        && replication_says(replica, "master_link_status:up").await
}

/// Whether a server says this of its replication, such as `role:master`.
pub async fn replication_says(server: &RedisServer, fact: &str) -> bool {
    let info = replication_info(server).await;
    info.is_ok_and(|info| info.contains(fact))
}

/// On a connection of its own: a server whose role changes closes those that it has.
async fn replication_info(server: &RedisServer) -> RedisResult<String> {
    let mut raw = server.client().get_multiplexed_async_connection().await?;
    command("INFO", &["replication"])
        .query_async(&mut raw)
        .await
}
