//! The Redis of a test cluster, in each layout: its servers, a proxy in front of each, and who is whose master.
//!
//! Servers connect to each other through the proxies too, each from an address of its own (`servers::source`), so that clients
//! or servers can be cut off alone.

use std::sync::Arc;

use testkit::{
    process::TemporaryFolder,
    proxy::Proxy,
    redis_server::{RedisServer, Role},
    wait::until,
};

use super::{
    instance::server,
    layout::RedisLayout,
    redis_data::{self, RedisData},
};
use servers::{LIMIT, WHAT, role, start_node, wait_until};
use workload::Error;

mod cluster;
mod sentinel;
mod servers;

pub use servers::{RedisProxies, RedisServers};

/// What a server is started with besides its role, such as a clock of its own.
pub type Environment = Vec<(&'static str, String)>;

impl RedisServers {
    /// Starts them in a folder below `folder`, for so many instances.
    ///
    /// # Panics
    /// The servers do not find each other within a minute.
    pub async fn start(
        layout: RedisLayout,
        folder: &Arc<TemporaryFolder>,
        environment: Environment,
        instances: usize,
    ) -> Result<Self, Error> {
        match layout {
            RedisLayout::Single => {
                let (node, proxy) = start_node(folder, Role::Alone).await?;
                let proxies = RedisProxies { nodes: vec![proxy], ..RedisProxies::default() };
                let (nodes, proxies) = (vec![node], Arc::new(proxies));
                let mut servers = Self { layout, nodes, sentinels: Vec::new(), proxies };
                servers.nodes[0].environment = environment;
                servers.nodes[0].try_restart().await.map_err(server(WHAT))?;
                Ok(servers)
            }
            RedisLayout::Sentinel => sentinel::start(folder, instances).await,
            RedisLayout::Cluster => cluster::start(folder).await,
        }
    }

    /// The address for clients past the proxies, or for the instance of this number.
    pub fn url(&self, instance: Option<usize>) -> String {
        let list = |ports: Vec<u16>| {
            let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
            hosts.join(",")
        };
        let ports = |proxies: &[Proxy]| proxies.iter().map(|proxy| proxy.address.port()).collect();
        let of_nodes = || list(ports(&self.proxies.nodes));
        match (self.layout, instance) {
            (RedisLayout::Single, None) => self.nodes[0].url(),
            (RedisLayout::Single, Some(_)) => format!("redis://{}/", of_nodes()),
            (RedisLayout::Sentinel, None) => {
                let ports = self.sentinels.iter().map(RedisServer::port).collect();
                format!("redis-sentinel://{}/{}", list(ports), sentinel::MASTER)
            }
            (RedisLayout::Sentinel, Some(instance)) => {
                let ports = ports(&self.proxies.sentinels[instance]);
                format!("redis-sentinel://{}/{}", list(ports), sentinel::MASTER)
            }
            (RedisLayout::Cluster, _) => format!("redis-cluster://{}", of_nodes()),
        }
    }

    /// The data servers that are masters.
    pub async fn masters(&self) -> Result<Vec<usize>, Error> {
        let mut masters = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            if role(node).await? == "master" {
                masters.push(number);
            }
        }
        Ok(masters)
    }

    /// The master that serves a key.
    pub async fn master_of(&self, key: &str) -> Result<usize, Error> {
        let masters = self.masters().await?;
        let serves = match self.layout {
            RedisLayout::Cluster => self.serving(masters.first().copied(), key).await?,
            _ => masters.first().copied(),
        };
        serves.ok_or_else(|| Error::server(WHAT, format!("no master serves {key}")))
    }

    /// Starts a killed server again: as a replica where another has taken over.
    pub async fn restart(&mut self, node: usize, data: RedisData) -> Result<(), Error> {
        if self.layout == RedisLayout::Sentinel {
            self.nodes[node].role = match self.named().await {
                Some(other) if other != node => self.copies(other),
                _ => Role::Alone,
            };
        }
        redis_data::restart(&mut self.nodes[node], data).await
    }

    /// Waits until every master is the only one of its data and has a replica with all of it, as before any fault.
    pub async fn replicated(&mut self) -> Result<(), Error> {
        let whole = until(LIMIT, async || {
            let whole = match self.layout {
                RedisLayout::Single => Ok(true),
                RedisLayout::Sentinel => self.sentinels_are_whole().await,
                RedisLayout::Cluster => self.cluster_is_whole().await,
            };
            // A server that is not back yet does not answer.
            whole.unwrap_or(false)
        });
        if whole.await {
            return Ok(());
        }
        let reason = format!("not whole {LIMIT:?} after a fault: {}", self.facts().await);
        Err(Error::server(WHAT, reason))
    }

    /// Waits until `replica` is the master.
    pub async fn took_over(&self, replica: usize) -> Result<(), Error> {
        wait_until("the replica takes over", async || match self.layout {
            RedisLayout::Sentinel => self.named().await == Some(replica),
            _ => role(&self.nodes[replica]).await.is_ok_and(|role| role == "master"),
        })
        .await
    }
}
