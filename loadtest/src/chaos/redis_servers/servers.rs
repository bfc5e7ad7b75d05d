//! The servers and their proxies, whatever the layout.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use testkit::{
    process::TemporaryFolder,
    proxy::{Mode, Proxy},
    redis_server::{KEEPS_WRITES, RedisServer, Role},
    wait::until,
};

use crate::chaos::{instance::server, layout::RedisLayout, redis_data::command};
use workload::Error;

/// How long servers may take to agree or to copy each other, on a busy machine: where a master dies right after a failover
/// was forced, Sentinel waits for tens of seconds before the next one.
pub const LIMIT: Duration = Duration::from_secs(120);
/// After how many milliseconds without an answer a server is taken for dead by those that watch it.
pub const DOWN_AFTER_MS: u64 = 1_500;
/// How a Redis server is called in messages.
pub const WHAT: &str = "redis-server";

/// The servers.
#[derive(Debug)]
pub struct RedisServers {
    /// Which they are.
    pub layout: RedisLayout,
    /// Those that hold data. All run unless a fault has just ended one.
    pub nodes: Vec<RedisServer>,
    /// Those that watch the others, if the layout has any.
    pub sentinels: Vec<RedisServer>,
    /// What is in front of them.
    pub proxies: Arc<RedisProxies>,
}

/// The proxies in front of the servers.
#[derive(Debug, Default)]
pub struct RedisProxies {
    /// Of each data server.
    pub nodes: Vec<Proxy>,
    /// Of each node's cluster bus.
    pub(super) buses: Vec<Proxy>,
    /// Of the sentinels, apart for each instance.
    pub(super) sentinels: Vec<Vec<Proxy>>,
}

/// The address from which the `number`-th server connects to others: data servers first, then sentinels.
pub fn source(number: usize) -> IpAddr {
    let last = u8::try_from(number + 2).unwrap_or(u8::MAX);
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))
}

impl RedisServers {
    /// Cuts a data server off from all other servers, or connects it again. Its clients reach it all the while, and the
    /// first instance does not reach the sentinels.
    pub fn partition(&self, node: usize, cut: bool) {
        let mode = if cut { Mode::Cut } else { Mode::Forward };
        let RedisProxies { nodes, buses, sentinels } = &*self.proxies;
        for other in (0..self.nodes.len() + self.sentinels.len()).filter(|other| *other != node) {
            for proxy in nodes.get(node).into_iter().chain(buses.get(node)) {
                proxy.set_for(source(other), mode);
            }
        }
        for proxy in nodes.iter().chain(buses) {
            proxy.set_for(source(node), mode);
        }
        sentinels.iter().take(1).flatten().for_each(|proxy| proxy.set(mode));
    }

    /// The server that copies a master.
    pub fn replica_of(&self, master: usize) -> usize {
        (master + self.nodes.len() / 2) % self.nodes.len()
    }

    /// What each server says of itself and the others, for an error message.
    pub(super) async fn facts(&self) -> String {
        let mut all = String::new();
        for (number, node) in self.nodes.iter().enumerate() {
            for words in [["INFO", "replication"], ["CLUSTER", "NODES"]] {
                let said = command::<String>(node, &words).await;
                let said = said.unwrap_or_else(|error| error.to_string());
                all.push_str(&format!("\nserver {number}: {said}"));
            }
        }
        all
    }
}

/// Waits until `condition` holds, which is said in an error.
pub async fn wait_until(what: &str, condition: impl AsyncFnMut() -> bool) -> Result<(), Error> {
    if until(LIMIT, condition).await {
        return Ok(());
    }
    Err(Error::server(WHAT, format!("not within {LIMIT:?}: {what}")))
}

/// What a server says that it is: `master`, `slave`, `sentinel`.
pub async fn role(server: &RedisServer) -> Result<String, Error> {
    let role: Vec<redis::Value> = command(server, &["ROLE"]).await?;
    let first = role.into_iter().next().map(redis::from_redis_value);
    Ok(first.and_then(Result::ok).unwrap_or_default())
}

/// A data server, and the proxy in front of it.
pub async fn start_node(
    folder: &Arc<TemporaryFolder>,
    role: Role,
) -> Result<(RedisServer, Proxy), Error> {
    let arguments = KEEPS_WRITES.map(str::to_owned).to_vec();
    let node = RedisServer::start_in(folder.clone(), role, arguments).await;
    let node = node.map_err(server(WHAT))?;
    let proxy = Proxy::start(node.address()).await.map_err(server(WHAT))?;
    Ok((node, proxy))
}
