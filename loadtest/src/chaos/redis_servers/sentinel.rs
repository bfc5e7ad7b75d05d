//! A master with a replica, and three sentinels that watch them through the proxies.

use std::sync::Arc;

use futures_util::future::try_join_all;
use testkit::{
    process::TemporaryFolder,
    proxy::Proxy,
    redis_sentinel::is_in_sync,
    redis_server::{RedisServer, Role},
};

use super::servers::{
    DOWN_AFTER_MS, RedisProxies, RedisServers, WHAT, role, source, start_node, wait_until,
};
use crate::chaos::{instance::server, layout::RedisLayout, redis_data::command};
use workload::Error;

pub use testkit::redis_sentinel::MASTER;

/// The sentinels; two of them decide.
const SENTINELS: usize = 3;

/// Starts the servers.
pub async fn start(folder: &Arc<TemporaryFolder>, instances: usize) -> Result<RedisServers, Error> {
    let (mut nodes, mut proxies) = (Vec::new(), RedisProxies::default());
    for number in 0..2 {
        let (mut node, proxy) = start_node(folder, Role::Alone).await?;
        let (port, from) = (proxy.address.port().to_string(), source(number).to_string());
        let own = ["--replica-announce-ip", "127.0.0.1", "--replica-announce-port", &port];
        node.arguments.extend(own.map(str::to_owned));
        node.arguments.extend(["--bind-source-addr".to_owned(), from]);
        proxies.nodes.push(proxy);
        nodes.push(node);
    }
    let watched = proxies.nodes[0].address.port();
    nodes[1].role = Role::ReplicaOf(watched);
    for node in &mut nodes {
        node.try_restart().await.map_err(server(WHAT))?;
    }
    wait_until("the replica follows", async || is_in_sync(&nodes[0], &nodes[1]).await).await?;
    let starting = (0..SENTINELS).map(|number| {
        let from = source(nodes.len() + number);
        let configuration = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {watched} 2\n\
             sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\n\
             sentinel failover-timeout {MASTER} 3000\n\
             sentinel announce-ip 127.0.0.1\n\
             bind-source-addr {from}\n"
        );
        RedisServer::start_in(folder.clone(), Role::Sentinel(configuration), Vec::new())
    });
    let sentinels = try_join_all(starting).await.map_err(server(WHAT))?;
    for _ in 0..instances {
        let starting = sentinels.iter().map(|sentinel| Proxy::start(sentinel.address()));
        proxies.sentinels.push(try_join_all(starting).await.map_err(server(WHAT))?);
    }
    let layout = RedisLayout::Sentinel;
    let servers = RedisServers { layout, nodes, sentinels, proxies: Arc::new(proxies) };
    wait_until("the sentinels find each other", async || servers.sentinels_agree().await).await?;
    Ok(servers)
}

impl RedisServers {
    /// The data server that every sentinel names as the master; `None` where they do not agree.
    pub async fn named(&self) -> Option<usize> {
        let mut named: Option<String> = None;
        for sentinel in &self.sentinels {
            let asked = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
            let (_, port): (String, String) = command(sentinel, &asked).await.ok()?;
            if named.get_or_insert_with(|| port.clone()) != &port {
                return None;
            }
        }
        let port = named?;
        self.proxies.nodes.iter().position(|proxy| proxy.address.port().to_string() == port)
    }

    /// The role of a replica of this data server.
    pub fn copies(&self, node: usize) -> Role {
        Role::ReplicaOf(self.proxies.nodes[node].address.port())
    }

    /// Makes a replica of a server that still takes itself for the master, as the sentinels do some ten seconds later.
    pub async fn demote(&mut self, old: usize, new: usize) -> Result<(), Error> {
        self.nodes[old].role = self.copies(new);
        let port = self.proxies.nodes[new].address.port().to_string();
        command(&self.nodes[old], &["REPLICAOF", "127.0.0.1", &port]).await
    }

    /// Asks the sentinels for a failover until one begins it: they refuse while they have not seen the last one's end.
    pub async fn ask_for_failover(&self) -> Result<(), Error> {
        let asked = ["SENTINEL", "FAILOVER", MASTER];
        let ask = async || command::<()>(&self.sentinels[0], &asked).await.is_ok();
        wait_until("a sentinel begins a failover", ask).await
    }

    /// Whether the sentinels agree on the master, and its replica has what it has.
    pub(super) async fn sentinels_are_whole(&mut self) -> Result<bool, Error> {
        let Some(master) = self.named().await else { return Ok(false) };
        let other = self.replica_of(master);
        // Two masters, of which the sentinels have not demoted the old one yet.
        if role(&self.nodes[other]).await? == "master" {
            self.demote(other, master).await?;
        }
        self.nodes[master].role = Role::Alone;
        let in_sync = is_in_sync(&self.nodes[master], &self.nodes[other]).await;
        Ok(in_sync && self.sentinels_agree().await)
    }

    /// Whether every sentinel sees the master, its replica and the other sentinels, and none of them down.
    async fn sentinels_agree(&self) -> bool {
        for sentinel in &self.sentinels {
            let flags = async |what: &str| -> Option<Vec<String>> {
                let found: Vec<std::collections::HashMap<String, String>> =
                    command(sentinel, &["SENTINEL", what, MASTER]).await.ok()?;
                Some(found.into_iter().filter_map(|mut one| one.remove("flags")).collect())
            };
            let (replicas, others) = (flags("REPLICAS").await, flags("SENTINELS").await);
            let master = command::<std::collections::HashMap<String, String>>(
                sentinel,
                &["SENTINEL", "MASTER", MASTER],
            );
            let master = master.await.ok().and_then(|mut master| master.remove("flags"));
            let up = master.as_deref() == Some("master")
                && replicas.is_some_and(|replicas| replicas == ["slave"])
                && others.is_some_and(|others| others == ["sentinel"; SENTINELS - 1]);
            if !up {
                return false;
            }
        }
        true
    }
}
