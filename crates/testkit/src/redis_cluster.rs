//! A throw-away Redis Cluster: three masters, optionally with a replica each. Slots can be moved, and
//! nodes can be killed or paused.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::MultiplexedConnection;
use redis::{Value, cmd};
use tokio::time::timeout;

use super::redis_sentinel::in_sync;
use super::redis_server::{RedisServer, Role};
use super::wait::eventually;

const MASTERS: u16 = 3;
const SLOTS: u16 = 16_384;

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

    async fn form(replicas: u16, timeout: u64, arguments: impl Fn(usize) -> Vec<String>) -> Self {
        let count = usize::from(MASTERS + replicas);
        let starting = (0..count).map(|number| {
            RedisServer::start_with_arguments(Role::ClusterNode(timeout), arguments(number))
        });
        Self::of(futures_util::future::join_all(starting).await).await
    }

    /// Makes a cluster of nodes that were started as [`Role::ClusterNode`]: three masters, and a replica of each where
    /// there are six.
    pub async fn of(nodes: Vec<RedisServer>) -> Self {
        let count = nodes.len();
        let replicas = count - usize::from(MASTERS);
        let cluster = Self { nodes };
        for (number, node) in (0_u16..).zip(&cluster.nodes) {
            let mut raw = node.conn().await;
            // Different epochs from the start, so that the nodes need not resolve a conflict. Only a
            // node that knows no other accepts one.
            run(&mut raw, &["SET-CONFIG-EPOCH", &(number + 1).to_string()]).await;
            if number < MASTERS {
                let first = SLOTS / MASTERS * number;
                let last =
                    if number + 1 == MASTERS { SLOTS } else { SLOTS / MASTERS * (number + 1) };
                let (first, last) = (first.to_string(), (last - 1).to_string());
                run(&mut raw, &["ADDSLOTSRANGE", &first, &last]).await;
            }
        }
        for node in &cluster.nodes {
            let mut raw = node.conn().await;
            for other in cluster.nodes.iter().filter(|other| other.port() != node.port()) {
                let (port, bus) = (other.port().to_string(), other.bus().to_string());
                run(&mut raw, &["MEET", "127.0.0.1", &port, &bus]).await;
            }
        }
        cluster.agreed("cluster_known_nodes", &count.to_string()).await;
        for number in 0..replicas {
            let master = cluster.id(number).await;
            let raw = cluster.nodes[number + usize::from(MASTERS)].conn().await;
            // Before the handshake a node is counted, but not yet known by its id.
            eventually("the replica knows its master", TIMEOUT, || {
                let (mut raw, mut replicate) = (raw.clone(), cmd("CLUSTER"));
                replicate.arg("REPLICATE").arg(&master);
                async move { replicate.exec_async(&mut raw).await.is_ok() }
            })
            .await;
        }
        // A node's state is good before it knows all slots: full coverage is not required.
        cluster.agreed("cluster_slots_assigned", &SLOTS.to_string()).await;
        cluster.agreed("cluster_state", "ok").await;
        let (masters, replicas) = cluster.nodes.split_at(usize::from(MASTERS));
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
            let mut heard = listener.client().get_async_pubsub().await.expect("a connection");
            heard.subscribe("formed").await.expect("a subscription");
            let mut messages = heard.into_on_message();
            let mut missing: HashSet<u16> = self.nodes.iter().map(RedisServer::port).collect();
            let all_heard = async {
                while !missing.is_empty() {
                    for node in self.nodes.iter().filter(|node| missing.contains(&node.port())) {
                        let mut raw = node.conn().await;
                        let mut publish = cmd("PUBLISH");
                        publish.arg("formed").arg(node.port());
                        publish.exec_async(&mut raw).await.expect("PUBLISH");
                    }
                    while let Ok(Some(message)) = timeout(LISTEN, messages.next()).await {
                        missing.remove(&message.get_payload().expect("a port"));
                    }
                }
            };
            timeout(TIMEOUT, all_heard).await.expect("messages between all nodes");
        }
    }

    /// The addresses of all nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// The node, by number, that serves this slot according to node `observer`.
    pub async fn owner(&self, observer: usize, slot: u16) -> Option<usize> {
        let mut raw = self.nodes[observer].conn().await;
        let ranges: Vec<Vec<Value>> =
            cmd("CLUSTER").arg("SLOTS").query_async(&mut raw).await.expect("CLUSTER SLOTS");
        ranges.into_iter().find_map(|range| {
            let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = range.as_slice()
            else {
                return None;
            };
            let Some(Value::Int(port)) = master.get(1) else { return None };
            let serves = (*first..=*last).contains(&i64::from(slot));
            let number = || self.nodes.iter().position(|node| i64::from(node.port()) == *port);
            serves.then(number).flatten()
        })
    }

    /// Whether a node, by number, is a replica according to node `observer`.
    pub async fn is_replica(&self, observer: usize, number: usize) -> bool {
        let mut raw = self.nodes[observer].conn().await;
        let nodes: String =
            cmd("CLUSTER").arg("NODES").query_async(&mut raw).await.expect("CLUSTER NODES");
        let address = format!(":{}@", self.nodes[number].port());
        nodes.lines().any(|line| line.contains(&address) && line.contains("slave"))
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
        let mut raw = self.nodes[node].conn().await;
        cmd("CLUSTER").arg("KEYSLOT").arg(key).query_async(&mut raw).await.expect("KEYSLOT")
    }

    /// Begins to move a slot: from here on `from` answers ASK for keys that are not there.
    pub async fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let (source, target) = (self.id(from).await, self.id(to).await);
        let slot = slot.to_string();
        let mut raw = self.nodes[to].conn().await;
        run(&mut raw, &["SETSLOT", &slot, "IMPORTING", &source]).await;
        let mut raw = self.nodes[from].conn().await;
        run(&mut raw, &["SETSLOT", &slot, "MIGRATING", &target]).await;
    }

    /// Moves the slot's keys, and then the slot, until every node knows: from here on `from` answers MOVED. A node that
    /// takes a slot must know the configuration epoch of the one before it, or it loses the slot to that one's next
    /// message.
    pub async fn end_move(&self, slot: u16, from: usize, to: usize) {
        let mut raw = self.nodes[from].conn().await;
        let mut keys = cmd("CLUSTER");
        keys.arg("GETKEYSINSLOT").arg(slot).arg(1000);
        let keys: Vec<String> = keys.query_async(&mut raw).await.expect("GETKEYSINSLOT");
        if !keys.is_empty() {
            let mut migrate = cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(self.nodes[to].port()).arg("").arg(0).arg(10_000);
            migrate.arg("KEYS").arg(&keys).exec_async(&mut raw).await.expect("MIGRATE");
        }
        let target = self.id(to).await;
        for number in [to, from] {
            let mut raw = self.nodes[number].conn().await;
            run(&mut raw, &["SETSLOT", &slot.to_string(), "NODE", &target]).await;
        }
        for observer in 0..self.nodes.len() {
            eventually("every node knows the slot's new owner", TIMEOUT, || async {
                self.owner(observer, slot).await == Some(to)
            })
            .await;
        }
    }

    async fn id(&self, number: usize) -> String {
        let mut raw = self.nodes[number].conn().await;
        cmd("CLUSTER").arg("MYID").query_async(&mut raw).await.expect("CLUSTER MYID")
    }

    /// Waits until every node reports `what:value` in CLUSTER INFO.
    async fn agreed(&self, what: &str, value: &str) {
        for node in &self.nodes {
            let raw = node.conn().await;
            eventually(&format!("{what} is {value}"), TIMEOUT, || {
                let mut raw = raw.clone();
                async move {
                    let text: String =
                        cmd("CLUSTER").arg("INFO").query_async(&mut raw).await.expect("INFO");
                    let facts: HashMap<_, _> =
                        text.lines().filter_map(|line| line.trim().split_once(':')).collect();
                    facts.get(what) == Some(&value)
                }
            })
            .await;
        }
    }
}

async fn run(raw: &mut MultiplexedConnection, words: &[&str]) {
    cmd("CLUSTER").arg(words).exec_async(raw).await.unwrap_or_else(|error| {
        panic!("CLUSTER {}: {error}", words.join(" "));
    });
}
