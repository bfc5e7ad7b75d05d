//! The Redis of a test cluster, in each layout: its servers, a proxy in front of each, and who is whose master.
//!
//! Servers connect to each other through the proxies too, each from an address of its own (`source`), so that clients or
//! servers can be cut off alone.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use testkit::{
    process::TemporaryFolder,
    proxy::{Mode, Proxy},
    redis_cluster::RedisCluster,
    redis_sentinel::MASTER,
    redis_server::{KEEPS_WRITES, RedisServer, Role},
    wait::until,
};

use super::{
    options::RedisLayout,
    redis_data::{self, RedisData, command},
};

mod cluster;
mod sentinel;

/// How long servers may take to agree or to copy each other, on a busy machine: where a master dies right after a failover
/// was forced, Sentinel waits for tens of seconds before the next one.
const LIMIT: Duration = Duration::from_secs(120);
/// After how many milliseconds without an answer a server is taken for dead by those that watch it.
const DOWN_AFTER_MS: u64 = 1_500;

/// The servers.
#[derive(Debug)]
pub struct RedisServers {
    pub layout: RedisLayout,
    /// The servers that hold data. All run unless a fault has just ended one. At the start the second half are replicas of
    /// the first.
    pub nodes: Vec<RedisServer>,
    /// The servers that watch those, if the layout has any.
    sentinels: Vec<RedisServer>,
    /// The proxies in front of all of them.
    pub proxies: Arc<RedisProxies>,
}

/// The proxies in front of the servers.
#[derive(Debug, Default)]
pub struct RedisProxies {
    /// In front of each data server.
    pub nodes: Vec<Proxy>,
    /// In front of each data server's cluster bus.
    buses: Vec<Proxy>,
    /// In front of the sentinels: each instance has proxies of its own.
    sentinels: Vec<Vec<Proxy>>,
}

/// The address from which the `number`-th server connects to others: data servers first, then sentinels.
fn source(number: usize) -> IpAddr {
    let last = u8::try_from(number + 2).unwrap_or(u8::MAX);
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))
}

fn port(proxy: &Proxy) -> u16 {
    proxy.address.port()
}

impl RedisServers {
    /// Starts the servers in a folder below `folder`, for so many instances. A single server has `environment`, such as a
    /// clock of its own; several announce the proxies' ports.
    ///
    /// # Panics
    /// The nodes of a cluster do not find each other within a minute.
    pub async fn start(
        layout: RedisLayout,
        folder: &Arc<TemporaryFolder>,
        environment: Vec<(&'static str, String)>,
        instances: usize,
    ) -> Result<Self> {
        let (count, role) = match layout {
            RedisLayout::Single => (1, Role::Alone),
            RedisLayout::Sentinel => (2, Role::Alone),
            RedisLayout::Cluster => (6, Role::ClusterNode(DOWN_AFTER_MS)),
        };
        let mut nodes = Vec::new();
        let mut sentinels = Vec::new();
        let mut proxies = RedisProxies::default();
        for number in 0..count {
            let arguments = KEEPS_WRITES.map(str::to_owned).to_vec();
            let mut node = RedisServer::start_in(folder.clone(), role.clone(), arguments).await?;
            let proxy = Proxy::start(node.address()).await?;
            let bus = Proxy::start(format!("127.0.0.1:{}", node.bus())).await?;
            let [proxy_port, bus_port] = [&proxy, &bus].map(|proxy| port(proxy).to_string());
            let source_address = source(number).to_string();
            let announcements = [
                ["--replica-announce-ip", "127.0.0.1"],
                ["--replica-announce-port", &proxy_port],
                ["--cluster-announce-ip", "127.0.0.1"],
                ["--cluster-announce-port", &proxy_port],
                ["--cluster-announce-bus-port", &bus_port],
                ["--bind-source-addr", &source_address],
            ];
            // A single server may be of a version that does not know the last of these.
            if layout != RedisLayout::Single {
                for argument in announcements.as_flattened() {
                    node.arguments.push((*argument).to_owned());
                }
            }
            match layout {
                RedisLayout::Single => node.environment.clone_from(&environment),
                RedisLayout::Sentinel if number > 0 => {
                    node.role = Role::ReplicaOf(port(&proxies.nodes[0]));
                }
                _ => {}
            }
            node.try_restart().await?;
            proxies.nodes.push(proxy);
            proxies.buses.push(bus);
            nodes.push(node);
        }
        if layout == RedisLayout::Sentinel {
            sentinels = Self::start_sentinels(folder, &nodes, &proxies).await?;
            for _ in 0..instances {
                let starting = sentinels
                    .iter()
                    .map(|sentinel| Proxy::start(sentinel.address()));
                proxies.sentinels.push(try_join_all(starting).await?);
            }
        }
        if layout == RedisLayout::Cluster {
            let ports = proxies.nodes.iter().zip(&proxies.buses);
            let ports: Vec<_> = ports.map(|(node, bus)| [port(node), port(bus)]).collect();
            nodes = RedisCluster::from_nodes(nodes, &ports).await.nodes;
        }
        let mut servers = Self {
            layout,
            nodes,
            sentinels,
            proxies: Arc::new(proxies),
        };
        servers.replicated().await?;
        Ok(servers)
    }

    /// The address for clients past the proxies, or for the instance of this number.
    pub fn url(&self, instance: Option<usize>) -> String {
        let RedisProxies {
            nodes, sentinels, ..
        } = &*self.proxies;
        let (scheme, servers, proxies, master) = match self.layout {
            RedisLayout::Single => ("redis", &self.nodes, nodes, ""),
            RedisLayout::Cluster => ("redis-cluster", &self.nodes, nodes, ""),
            RedisLayout::Sentinel => (
                "redis-sentinel",
                &self.sentinels,
                &sentinels[instance.unwrap_or(0)],
                MASTER,
            ),
        };
        // The nodes of a cluster lead every client to the proxies.
        let hosts: Vec<String> = if instance.is_some() || self.layout == RedisLayout::Cluster {
            proxies
                .iter()
                .map(|proxy| proxy.address.to_string())
                .collect()
        } else {
            servers.iter().map(RedisServer::address).collect()
        };
        format!("{scheme}://{}/{master}", hosts.join(","))
    }

    /// The data servers that are masters.
    pub async fn masters(&self) -> Result<Vec<usize>> {
        let mut masters = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            if is_master(node).await? {
                masters.push(number);
            }
        }
        Ok(masters)
    }

    /// The master that serves a key: in a cluster the others answer MOVED, and while a replica takes over none serves it.
    pub async fn master_of(&self, key: &str) -> Result<usize> {
        let mut master = None;
        wait_until("a master serves every key", async || {
            master = self.serving(key).await;
            master.is_some()
        })
        .await?;
        master.with_context(|| format!("no master serves {key}"))
    }

    async fn serving(&self, key: &str) -> Option<usize> {
        for (number, node) in self.nodes.iter().enumerate() {
            // One that is down serves nothing.
            if is_master(node).await.unwrap_or(false)
                && command::<i64>(node, &["EXISTS", key]).await.is_ok()
            {
                return Some(number);
            }
        }
        None
    }

    /// The server that copies a master.
    pub fn replica_of(&self, master: usize) -> usize {
        (master + self.nodes.len() / 2) % self.nodes.len()
    }

    /// Cuts a data server off from all other servers, or connects it again. Its clients reach it all the while. The first
    /// instance is cut off from the sentinels as well.
    pub fn partition(&self, node: usize, cut: bool) {
        let mode = if cut { Mode::Cut } else { Mode::Forward };
        let RedisProxies {
            nodes,
            buses,
            sentinels,
        } = &*self.proxies;
        for peer in (0..self.nodes.len() + self.sentinels.len()).filter(|peer| *peer != node) {
            for proxy in [&nodes[node], &buses[node]] {
                proxy.set_for(source(peer), mode);
            }
        }
        for proxy in nodes.iter().chain(buses) {
            proxy.set_for(source(node), mode);
        }
        sentinels
            .iter()
            .take(1)
            .flatten()
            .for_each(|proxy| proxy.set(mode));
    }

    /// Starts a killed server again, as a replica if another has taken over.
    pub async fn restart(&mut self, node: usize, data: RedisData) -> Result<()> {
        if self.layout == RedisLayout::Sentinel {
            self.nodes[node].role = match self.agreed_master().await {
                Some(master) if master != node => self.replica_role(master),
                _ => Role::Alone,
            };
        }
        redis_data::restart(&mut self.nodes[node], data).await
    }

    /// Waits until everything is as before any fault: all data has exactly one master, and a replica that is in sync.
    pub async fn replicated(&mut self) -> Result<()> {
        wait_until("Redis is whole", async || {
            let whole = match self.layout {
                RedisLayout::Single => Ok(true),
                RedisLayout::Sentinel => self.sentinels_are_whole().await,
                RedisLayout::Cluster => self.cluster_is_whole().await,
            };
            // A server that is not back yet does not answer.
            whole.unwrap_or(false)
        })
        .await
    }

    /// Waits until `replica` is the master.
    pub async fn took_over(&self, replica: usize) -> Result<()> {
        wait_until("the replica takes over", async || match self.layout {
            RedisLayout::Sentinel => self.agreed_master().await == Some(replica),
            _ => is_master(&self.nodes[replica]).await.unwrap_or(false),
        })
        .await
    }
}

/// Waits until `condition` holds; `what` says in the error what did not.
async fn wait_until(what: &str, condition: impl AsyncFnMut() -> bool) -> Result<()> {
    ensure!(
        until(LIMIT, condition).await,
        "not within {LIMIT:?}: {what}"
    );
    Ok(())
}

/// Whether a server says that it is a master.
async fn is_master(server: &RedisServer) -> Result<bool> {
    let info: String = command(server, &["INFO", "replication"]).await?;
    Ok(info.contains("role:master"))
}
