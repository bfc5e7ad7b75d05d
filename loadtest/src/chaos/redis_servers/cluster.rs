//! A cluster of three masters with a replica each: server `n + 3` is the other half of the pair of server `n`.

use std::{collections::BTreeSet, ops::RangeInclusive, sync::Arc, time::Duration};

use redis::Value;
use testkit::{
    process::TemporaryFolder,
    proxy::Proxy,
    redis_cluster::RedisCluster,
    redis_sentinel::is_in_sync,
    redis_server::{RedisServer, Role},
    wait::until,
};
use tokio::time::sleep;

use super::servers::{
    DOWN_AFTER_MS, RedisProxies, RedisServers, WHAT, role, source, start_node, wait_until,
};
use crate::chaos::{instance::server, layout::RedisLayout, redis_data::command};
use workload::Error;

const NODES: usize = 6;
/// Keys that are moved at a time: the node does nothing else meanwhile.
const KEYS_AT_A_TIME: usize = 100;

/// Starts the nodes. They announce the proxies' ports.
pub async fn start(folder: &Arc<TemporaryFolder>) -> Result<RedisServers, Error> {
    let (mut nodes, mut proxies) = (Vec::new(), RedisProxies::default());
    for number in 0..NODES {
        let (mut node, proxy) = start_node(folder, Role::ClusterNode(DOWN_AFTER_MS)).await?;
        let bus = Proxy::start(format!("127.0.0.1:{}", node.bus())).await.map_err(server(WHAT))?;
        let (port, bus_port) = (proxy.address.port().to_string(), bus.address.port().to_string());
        let from = source(number).to_string();
        let own = [
            ["--cluster-announce-ip", "127.0.0.1"],
            ["--cluster-announce-port", &port],
            ["--cluster-announce-bus-port", &bus_port],
            ["--bind-source-addr", &from],
        ];
        node.arguments.extend(own.as_flattened().iter().map(|&word| word.to_owned()));
        node.try_restart().await.map_err(server(WHAT))?;
        proxies.nodes.push(proxy);
        proxies.buses.push(bus);
        nodes.push(node);
    }
    let ports = proxies.nodes.iter().zip(&proxies.buses);
    let ports = ports.map(|(node, bus)| [node.address.port(), bus.address.port()]);
    let nodes = RedisCluster::of(nodes, &ports.collect::<Vec<_>>()).await.nodes;
    let layout = RedisLayout::Cluster;
    let mut servers =
        RedisServers { layout, nodes, sentinels: Vec::new(), proxies: Arc::new(proxies) };
    servers.replicated().await?;
    Ok(servers)
}

impl RedisServers {
    /// The node that serves this key, according to another.
    pub(super) async fn serving(
        &self,
        observer: Option<usize>,
        key: &str,
    ) -> Result<Option<usize>, Error> {
        let Some(observer) = observer.and_then(|number| self.nodes.get(number)) else {
            return Ok(None);
        };
        let slot: i64 = command(observer, &["CLUSTER", "KEYSLOT", key]).await?;
        let ranges = self.slots(observer).await?;
        Ok(ranges.into_iter().find(|(slots, _)| slots.contains(&slot)).map(|(_, master)| master))
    }

    /// The ranges of slots and the node that serves each, according to this node.
    async fn slots(
        &self,
        observer: &RedisServer,
    ) -> Result<Vec<(RangeInclusive<i64>, usize)>, Error> {
        let ranges: Vec<Vec<Value>> = command(observer, &["CLUSTER", "SLOTS"]).await?;
        let known = ranges.iter().filter_map(|range| {
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = range.as_slice()
            else {
                return None;
            };
            let Some(Value::Int(port)) = master.get(1) else { return None };
            let is = |proxy: &Proxy| i64::from(proxy.address.port()) == *port;
            Some((*first..=*last, self.proxies.nodes.iter().position(is)?))
        });
        Ok(known.collect())
    }

    /// Whether all nodes agree on who serves which slot, and every replica has what its master has.
    pub(super) async fn cluster_is_whole(&self) -> Result<bool, Error> {
        // A node may not know yet who has taken over, or where a slot is now.
        let (masters, agreed) = (self.masters().await?, self.slots(&self.nodes[0]).await?);
        let named: BTreeSet<usize> = agreed.iter().map(|(_, master)| *master).collect();
        for node in &self.nodes {
            let info: String = command(node, &["CLUSTER", "INFO"]).await?;
            let ok = ["cluster_state:ok", "cluster_slots_ok:16384"];
            if !ok.iter().all(|ok| info.contains(ok)) || self.slots(node).await? != agreed {
                return Ok(false);
            }
        }
        for master in &masters {
            let replica = self.replica_of(*master);
            if !is_in_sync(&self.nodes[*master], &self.nodes[replica]).await {
                return Ok(false);
            }
        }
        Ok(named.iter().eq(&masters) && masters.len() == self.nodes.len() / 2)
    }

    /// Moves the slot of `key` to another master while clients use it: for `lasts` some of its keys are here and some
    /// there.
    pub async fn move_slot(&self, key: &str, lasts: Duration) -> Result<(), Error> {
        let masters = self.masters().await?;
        let from = self.master_of(key).await?;
        let Some(to) = masters.iter().copied().find(|number| *number != from) else {
            return Err(Error::server(WHAT, "there is no other master".to_owned()));
        };
        let slot: u16 = command(&self.nodes[from], &["CLUSTER", "KEYSLOT", key]).await?;
        let slot = slot.to_string();
        let id =
            async |node: usize| command::<String>(&self.nodes[node], &["CLUSTER", "MYID"]).await;
        let (source, target) = (id(from).await?, id(to).await?);
        let set = async |node: usize, words: [&str; 2]| -> Result<(), Error> {
            command(&self.nodes[node], &["CLUSTER", "SETSLOT", &slot, words[0], words[1]]).await
        };
        set(to, ["IMPORTING", &source]).await?;
        set(from, ["MIGRATING", &target]).await?;
        let (port, count) = (self.nodes[to].port().to_string(), KEYS_AT_A_TIME.to_string());
        let mut first = true;
        loop {
            let keys = ["CLUSTER", "GETKEYSINSLOT", &slot, &count];
            let keys: Vec<String> = command(&self.nodes[from], &keys).await?;
            if keys.is_empty() {
                break;
            }
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "10000", "KEYS"];
            // One half at first: what needs both halves waits.
            let share = if first { keys.len().div_ceil(2) } else { keys.len() };
            migrate.extend(keys.iter().take(share).map(String::as_str));
            let _moved: String = command(&self.nodes[from], &migrate).await?;
            if first {
                sleep(lasts).await;
                first = false;
            }
        }
        // The new owner first: the old one would otherwise send clients to a node that sends them back.
        set(to, ["NODE", &target]).await?;
        set(from, ["NODE", &target]).await?;
        for other in masters.into_iter().filter(|other| *other != to && *other != from) {
            set(other, ["NODE", &target]).await?;
        }
        Ok(())
    }

    /// Asks a replica to take its master's place, by `how`: nothing, `FORCE` or `TAKEOVER`; again where it was not
    /// elected.
    pub async fn replace_by(&self, replica: usize, how: &[&str]) -> Result<(), Error> {
        let node = &self.nodes[replica];
        let words = [&["CLUSTER", "FAILOVER"], how].concat();
        wait_until("the replica is elected", async || {
            // Refused while another election is under way.
            command::<()>(node, &words).await.ok();
            until(ELECTION, async || role(node).await.is_ok_and(|role| role == "master")).await
        })
        .await
    }
}

/// How long an election that was asked for may take: the servers give it up after five seconds.
const ELECTION: Duration = Duration::from_secs(6);
