//! A throw-away Redis Cluster: three masters, optionally with a replica each. Slots can be moved, and
//! nodes can be killed or paused.

use std::collections::HashSet;
use std::fmt::Display;
use std::time::Duration;

use futures_util::StreamExt;
use redis::{FromRedisValue, Value};
use tokio::time::timeout;

use super::raw::{command, query};
use super::redis_sentinel::in_sync;
use super::redis_server::{RedisServer, Role};
use super::wait::eventually;

const MASTERS: usize = 3;
const SLOTS: usize = 16_384;

/// Time limit for the nodes to agree, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a message between two nodes may take.
const LISTEN: Duration = Duration::from_millis(50);

/// A running cluster. The first three nodes started as masters; number `n + 3` is the replica of
/// number `n`.
pub struct RedisCluster {
    /// The nodes, which may be killed, paused and restarted.
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Three masters. The node timeout is a minute, so that no node is marked as failed.
    pub async fn start() -> Self {
        Self::form(0, 60_000, |_| Vec::new()).await
    }

    /// As [`start`](Self::start), with more arguments on the command line of each node, by number.
    pub async fn start_with(arguments: impl Fn(usize) -> Vec<String>) -> Self {
        Self::form(0, 60_000, arguments).await
    }

    /// Three masters with a replica each, which takes over when its master is gone for about
    /// `timeout`.
    pub async fn start_with_replicas(timeout: Duration) -> Self {
        let timeout = u64::try_from(timeout.as_millis()).expect("a short timeout");
        Self::form(MASTERS, timeout, |_| Vec::new()).await
    }

    async fn form(replicas: usize, timeout: u64, arguments: impl Fn(usize) -> Vec<String>) -> Self {
        let starting = (0..MASTERS + replicas).map(|number| {
            RedisServer::start_with_arguments(Role::ClusterNode(timeout), arguments(number))
        });
        let nodes = futures_util::future::join_all(starting).await;
        let ports: Vec<_> = nodes.iter().map(|node| [node.port(), node.bus()]).collect();
        Self::from_nodes(nodes, &ports).await
    }

    /// Makes a cluster of nodes that were started as [`Role::ClusterNode`]: three masters, and a replica of each where
    /// there are six. They meet at these ports (one for clients, one for nodes), which they must announce.
    pub async fn from_nodes(nodes: Vec<RedisServer>, ports: &[[u16; 2]]) -> Self {
        let cluster = Self { nodes };
        let count = cluster.nodes.len();
        for number in 0..count {
            // Different epochs from the start, so that the nodes need not resolve a conflict. Only a
            // node that knows no other accepts one.
            let epoch = (number + 1).to_string();
            cluster
                .run::<()>(number, &["SET-CONFIG-EPOCH", &epoch])
                .await;
            if number < MASTERS {
                let [first, next] = [number, number + 1].map(|number| SLOTS * number / MASTERS);
                let first = first.to_string();
                let last = (next - 1).to_string();
                cluster
                    .run::<()>(number, &["ADDSLOTSRANGE", &first, &last])
                    .await;
            }
        }
        for number in 0..count {
            for (_, ports) in ports.iter().enumerate().filter(|(peer, _)| *peer != number) {
                let [port, bus] = ports.map(|port| port.to_string());
                cluster
                    .run::<()>(number, &["MEET", "127.0.0.1", &port, &bus])
                    .await;
            }
        }
        cluster.agreed("cluster_known_nodes", count).await;
        for number in MASTERS..count {
            let master = cluster.id(number - MASTERS).await;
            let mut raw = cluster.nodes[number].conn().await;
            // Before the handshake a node is counted, but not yet known by its id.
            eventually("the replica knows its master", TIMEOUT, async || {
                let replicate = command("CLUSTER", &["REPLICATE", &master]);
                replicate.exec_async(&mut raw).await.is_ok()
            })
            .await;
        }
        // A node's state is good before it knows all slots: full coverage is not required.
        cluster.agreed("cluster_slots_assigned", SLOTS).await;
        cluster.agreed("cluster_state", "ok").await;
        let (masters, replicas) = cluster.nodes.split_at(MASTERS);
        for (master, replica) in masters.iter().zip(replicas) {
            in_sync(master, replica).await;
        }
        cluster.messages_pass().await;
        cluster
    }

    /// Waits until a message published on any node reaches every other. On a new link Valkey 9 drops messages until the
    /// first ping.
    async fn messages_pass(&self) {
        for listener in &self.nodes {
            let mut heard = listener
                .client()
                .get_async_pubsub()
                .await
                .expect("a connection");
            heard.subscribe("formed").await.expect("a subscription");
            let mut messages = heard.into_on_message();
            let mut missing: HashSet<u16> = self.nodes.iter().map(RedisServer::port).collect();
            eventually("messages between all nodes", TIMEOUT, async || {
                for node in &self.nodes {
                    let port = node.port().to_string();
                    query::<()>(&mut node.conn().await, "PUBLISH", &["formed", &port]).await;
                }
                while let Ok(Some(message)) = timeout(LISTEN, messages.next()).await {
                    missing.remove(&message.get_payload().expect("a port"));
                }
                missing.is_empty()
            })
            .await;
        }
    }

    /// The addresses of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// The node, by number, that serves this slot according to node `observer`.
    pub async fn owner(&self, observer: usize, slot: u16) -> Option<usize> {
        let ranges: Vec<Vec<Value>> = self.run(observer, &["SLOTS"]).await;
        ranges.into_iter().find_map(|range| {
            let [
                Value::Int(first),
                Value::Int(last),
                Value::Array(master),
                ..,
            ] = range.as_slice()
            else {
                return None;
            };
            let Some(Value::Int(port)) = master.get(1) else {
                return None;
            };
            if !(*first..=*last).contains(&i64::from(slot)) {
                return None;
            }
            self.nodes
                .iter()
                .position(|node| i64::from(node.port()) == *port)
        })
    }

    /// Whether a node, by number, is a replica according to node `observer`.
    pub async fn is_replica(&self, observer: usize, number: usize) -> bool {
        let nodes: String = self.run(observer, &["NODES"]).await;
        let address = format!(":{}@", self.nodes[number].port());
        nodes
            .lines()
            .any(|line| line.contains(&address) && line.contains("slave"))
    }

    /// The name of a lock that this node serves, and its slot.
    pub async fn name_on(&self, node: usize) -> (String, u16) {
        for number in 0.. {
            let name = format!("lock:order:{number}");
            let slot = self.slot(&name).await;
            if self.owner(0, slot).await == Some(node) {
                return (name, slot);
            }
        }
        unreachable!("every master serves some of them")
    }

    /// The slot of a key.
    pub async fn slot(&self, key: &str) -> u16 {
        self.slot_on(0, key).await
    }

    /// The slot of a key, as this node computes it: another may have been killed.
    pub async fn slot_on(&self, node: usize, key: &str) -> u16 {
        self.run(node, &["KEYSLOT", key]).await
    }

    /// Begins to move a slot: from here on `source` answers ASK for keys that are not there.
    pub async fn begin_move(&self, slot: u16, source: usize, target: usize) {
        let source_id = self.id(source).await;
        let target_id = self.id(target).await;
        let slot = slot.to_string();
        self.run::<()>(target, &["SETSLOT", &slot, "IMPORTING", &source_id])
            .await;
        self.run::<()>(source, &["SETSLOT", &slot, "MIGRATING", &target_id])
            .await;
    }

    /// Moves the slot's keys, and then the slot, until every node knows: from here on `source` answers MOVED. A node that
    /// takes over a slot must know the configuration epoch of the previous owner; otherwise the previous owner's next message
    /// takes the slot back.
    pub async fn end_move(&self, slot: u16, source: usize, target: usize) {
        let name = slot.to_string();
        let keys: Vec<String> = self.run(source, &["GETKEYSINSLOT", &name, "1000"]).await;
        if !keys.is_empty() {
            let port = self.nodes[target].port().to_string();
            let mut words = vec!["127.0.0.1", &port, "", "0", "10000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            query::<()>(&mut self.nodes[source].conn().await, "MIGRATE", &words).await;
        }
        let target_id = self.id(target).await;
        for number in [target, source] {
            self.run::<()>(number, &["SETSLOT", &name, "NODE", &target_id])
                .await;
        }
        for observer in 0..self.nodes.len() {
            eventually("every node knows the slot's new owner", TIMEOUT, || async {
                self.owner(observer, slot).await == Some(target)
            })
            .await;
        }
    }

    async fn id(&self, number: usize) -> String {
        self.run(number, &["MYID"]).await
    }

    /// Waits until every node reports `what:value` in CLUSTER INFO.
    async fn agreed(&self, what: &str, value: impl Display) {
        let fact = format!("{what}:{value}");
        for number in 0..self.nodes.len() {
            eventually(&fact, TIMEOUT, async || {
                let info: String = self.run(number, &["INFO"]).await;
                info.lines().any(|line| line.trim() == fact)
            })
            .await;
        }
    }

    /// Runs a command on a node, by number.
    async fn run<T: FromRedisValue>(&self, node: usize, words: &[&str]) -> T {
        query(&mut self.nodes[node].conn().await, "CLUSTER", words).await
    }
}
