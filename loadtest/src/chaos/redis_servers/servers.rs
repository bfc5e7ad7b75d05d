//! The servers and their proxies, whatever the layout.

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use testkit::{
    process::TemporaryFolder,
    proxy::{Mode, Proxy},
    redis_server::{RedisServer, Role},
};

use crate::chaos::{
    layout::RedisLayout,
    redis_data::{KEEPS_WRITES, command},
};
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
    pub(super) layout: RedisLayout,
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

impl RedisProxies {
    /// Changes what those of the data servers do to their clients.
    pub fn set(&self, mode: Mode) {
        self.nodes.iter().for_each(|proxy| proxy.set(mode));
    }

    fn partition(&self, node: usize, others: impl Iterator<Item = IpAddr>, cut: bool) {
        let mode = if cut { Mode::Cut } else { Mode::Forward };
        for other in others.filter(|other| *other != source(node)) {
            for proxy in self.nodes.get(node).iter().chain(&self.buses.get(node)) {
                proxy.set_for(other, mode);
            }
        }
        for proxy in self.nodes.iter().chain(&self.buses) {
            proxy.set_for(source(node), mode);
        }
        self.sentinels.iter().take(1).flatten().for_each(|proxy| proxy.set(mode));
    }
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
        let others = (0..self.nodes.len() + self.sentinels.len()).map(source);
        self.proxies.partition(node, others, cut);
    }

    /// The server that copies a master.
    pub fn replica_of(&self, master: usize) -> usize {
        (master + self.nodes.len() / 2) % self.nodes.len()
    }

    /// What the replica of `master` has not got, if anything; empty where it is in sync.
    pub(super) async fn lag(&self, master: usize, replica: usize) -> String {
        let facts = async |node: usize| -> String {
            command(&self.nodes[node], &["INFO", "replication"]).await.unwrap_or_default()
        };
        let (of_master, of_replica) = (facts(master).await, facts(replica).await);
        let field = |facts: &str, name: &str| {
            let line = facts.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        let in_sync = field(&of_master, "role:") == "master"
            && of_master.contains("state=online")
            && field(&of_replica, "role:") == "slave"
            && field(&of_replica, "master_link_status:") == "up";
        if in_sync {
            return String::new();
        }
        let role = |facts: &str| field(facts, "role:");
        let link = field(&of_replica, "master_link_status:");
        format!(
            "server {master} is {:?}, server {replica} is {:?} with its master's link {link:?}",
            role(&of_master),
            role(&of_replica)
        )
    }
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
    let mut server = RedisServer::start_in(folder.clone(), role).await.map_err(failed)?;
    let proxy = Proxy::start(server.address()).await.map_err(failed)?;
    server.arguments = KEEPS_WRITES.map(str::to_owned).to_vec();
    Ok((server, proxy))
}

/// An error of a server that was started.
pub fn failed(error: io::Error) -> Error {
    Error::server(WHAT, error.to_string())
}
