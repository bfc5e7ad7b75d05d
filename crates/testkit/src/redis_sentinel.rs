//! A throw-away Redis master with a replica and three sentinels.

use std::time::Duration;

use redis::cmd;

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

/// The TLS ports of the two servers and the three sentinels, and what makes one listen on its port.
pub struct SentinelTls<'a> {
    /// Master, replica, sentinels.
    pub ports: [u16; 5],
    /// The arguments on the command line for one of the ports.
    pub arguments: &'a dyn Fn(u16) -> Vec<String>,
}

impl RedisSentinel {
    /// Starts them all. The sentinels consider a server down after a second without a reply.
    pub async fn start() -> Self {
        Self::form(None).await
    }

    /// As [`start`](Self::start); they use TLS among each other.
    pub async fn start_with_tls(tls: SentinelTls<'_>) -> Self {
        Self::form(Some(tls)).await
    }

    async fn form(tls: Option<SentinelTls<'_>>) -> Self {
        let arguments = |number: usize| {
            tls.as_ref().map_or_else(Vec::new, |tls| (tls.arguments)(tls.ports[number]))
        };
        let master = RedisServer::start_with_arguments(Role::Alone, arguments(0)).await;
        let port = tls.as_ref().map_or(master.port(), |tls| tls.ports[0]);
        let replica = RedisServer::start_with_arguments(Role::ReplicaOf(port), arguments(1)).await;
        in_sync(&master, &replica).await;
        let configuration = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds {MASTER} 1000\n\
             sentinel failover-timeout {MASTER} 3000\n",
            port
        );
        let start = |number| {
            let role = Role::Sentinel(configuration.clone());
            RedisServer::start_with_arguments(role, arguments(number))
        };
        let sentinels = futures_util::future::join_all([start(2), start(3), start(4)]).await;
        for sentinel in &sentinels {
            let raw = sentinel.conn().await;
            for (what, count) in [("SENTINELS", 2), ("REPLICAS", 1)] {
                eventually(&format!("a sentinel knows the {what}"), TIMEOUT, || {
                    let mut raw = raw.clone();
                    async move {
                        let mut known = cmd("SENTINEL");
                        let known: Vec<redis::Value> =
                            known.arg(what).arg(MASTER).query_async(&mut raw).await.expect(what);
                        known.len() == count
                    }
                })
                .await;
            }
        }
        Self { servers: vec![master, replica], sentinels }
    }

    /// The addresses of the sentinels.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::url).collect()
    }
}

/// Waits until both report that the replica follows its master. The master does so later, and counts
/// the replica's acknowledgements only from then on.
pub async fn in_sync(master: &RedisServer, replica: &RedisServer) {
    for (server, word) in [(replica, "master_link_status:up"), (master, "state=online")] {
        let raw = server.conn().await;
        eventually("the replica is in sync", TIMEOUT, || {
            let mut raw = raw.clone();
            async move {
                let text: String =
                    cmd("INFO").arg("replication").query_async(&mut raw).await.expect("INFO");
                text.contains(word)
            }
        })
        .await;
    }
}
