//! A master with a replica, and three sentinels that watch them through the proxies.

use std::sync::Arc;

use anyhow::Result;
use futures_util::future::try_join_all;
use testkit::{
    process::TemporaryFolder,
    redis_sentinel::{MASTER, is_in_sync},
    redis_server::{RedisServer, Role},
};

use super::{DOWN_AFTER_MS, RedisProxies, RedisServers, is_master, port, source, wait_until};
use crate::chaos::redis_data::command;

impl RedisServers {
    /// Waits until the replica follows, and starts three sentinels, of which two can decide.
    pub(super) async fn start_sentinels(
        folder: &Arc<TemporaryFolder>,
        nodes: &[RedisServer],
        proxies: &RedisProxies,
    ) -> Result<Vec<RedisServer>> {
        let follows = async || is_in_sync(&nodes[0], &nodes[1]).await;
        wait_until("the replica follows", follows).await?;
        let starting = (0..3).map(|number| {
            let configuration = format!(
                "sentinel monitor {MASTER} 127.0.0.1 {} 2\n\
                 sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\n\
                 sentinel failover-timeout {MASTER} 3000\n\
                 sentinel announce-ip 127.0.0.1\n\
                 bind-source-addr {}\n",
                port(&proxies.nodes[0]),
                source(nodes.len() + number)
            );
            RedisServer::start_in(folder.clone(), Role::Sentinel(configuration), Vec::new())
        });
        Ok(try_join_all(starting).await?)
    }

    /// The data server that every sentinel names as the master; `None` where they do not agree.
    pub(super) async fn agreed_master(&self) -> Option<usize> {
        let mut agreed_port: Option<u16> = None;
        for sentinel in &self.sentinels {
            let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
            let (_, port): (String, u16) = command(sentinel, &words).await.ok()?;
            if *agreed_port.get_or_insert(port) != port {
                return None;
            }
        }
        self.proxies
            .nodes
            .iter()
            .position(|proxy| Some(port(proxy)) == agreed_port)
    }

    /// The role of a replica of this data server.
    pub(super) fn replica_role(&self, node: usize) -> Role {
        Role::ReplicaOf(port(&self.proxies.nodes[node]))
    }

    /// Turns a server that still takes itself for the master into a replica, as the sentinels would some ten seconds later.
    pub async fn demote(&mut self, old: usize, new: usize) -> Result<()> {
        self.nodes[old].role = self.replica_role(new);
        let port = port(&self.proxies.nodes[new]).to_string();
        command(&self.nodes[old], &["REPLICAOF", "127.0.0.1", &port]).await
    }

    /// Asks the sentinels for a failover until one begins it: they refuse while they have not seen the last one's end.
    pub async fn ask_for_failover(&self) -> Result<()> {
        let words = ["SENTINEL", "FAILOVER", MASTER];
        wait_until("a sentinel begins a failover", async || {
            command::<()>(&self.sentinels[0], &words).await.is_ok()
        })
        .await
    }

    /// Whether the sentinels agree on a master that is up, its replica has what it has, and each knows all the others.
    pub(super) async fn sentinels_are_whole(&mut self) -> Result<bool> {
        let Some(master) = self.agreed_master().await else {
            return Ok(false);
        };
        let replica = self.replica_of(master);
        // There are two masters: the sentinels have not demoted the old one yet.
        if is_master(&self.nodes[replica]).await? {
            self.demote(replica, master).await?;
        }
        self.nodes[master].role = Role::Alone;
        for sentinel in &self.sentinels {
            let info: String = command(sentinel, &["INFO", "sentinel"]).await?;
            if !["status=ok", "slaves=1,sentinels=3"]
                .iter()
                .all(|fact| info.contains(fact))
            {
                return Ok(false);
            }
        }
        Ok(is_in_sync(&self.nodes[master], &self.nodes[replica]).await)
    }
}
