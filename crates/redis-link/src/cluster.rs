//! A Redis Cluster: a connection to each node, and the slot table. How a command finds its node is in
//! `cluster_link`.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{FutureExt, select_ok};
use redis::{Client, ConnectionInfo, ErrorKind, RedisResult, Value};
use tokio::sync::watch;

use crate::address::{Address, at_address};
use crate::node::NodeConnection;
use crate::settings::Timeouts;
use crate::slots::SlotTable;

/// The connections to the nodes of a cluster, and its slot table as last read.
pub(crate) struct Cluster {
    /// The nodes given by the user; their settings hold for all.
    pub(crate) seeds: Vec<ConnectionInfo>,
    timeouts: Timeouts,
    /// The slot table and its version: how often it has been read.
    pub(crate) table: watch::Sender<(u64, Arc<SlotTable>)>,
    /// An error occurred that an outdated table would explain.
    stale: AtomicBool,
    /// Held while the table is read again.
    refreshing: tokio::sync::Mutex<()>,
    connections: Mutex<HashMap<Address, NodeConnection>>,
}

impl Cluster {
    /// Makes no connection yet. `seeds` must not be empty.
    pub(crate) fn new(seeds: Vec<ConnectionInfo>, timeouts: Timeouts) -> Self {
        Self {
            seeds,
            timeouts,
            table: watch::Sender::default(),
            stale: AtomicBool::new(false),
            refreshing: tokio::sync::Mutex::default(),
            connections: Mutex::default(),
        }
    }

    /// Read the slot table again before the next use.
    pub(crate) fn mark_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// Runs a call that may be redirected, for at most the limits of connecting and of a command together.
    pub(crate) async fn limited<T>(
        &self,
        call: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<T> {
        let limit = self.timeouts.connect + self.timeouts.command;
        tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
            self.mark_stale();
            Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into())
        })
    }

    /// The version of the slot table, and the table, as last read.
    pub(crate) fn current(&self) -> (u64, Arc<SlotTable>) {
        self.table.borrow().clone()
    }

    /// The slot table, read again if it is empty or stale.
    pub(crate) async fn slot_table(&self) -> RedisResult<Arc<SlotTable>> {
        let (version, table) = self.current();
        let is_being_read = self.refreshing.try_lock().is_err();
        if table.is_empty() {
            self.refresh(version, None).await?;
        } else if self.stale.load(Ordering::Acquire)
            // While another task reads it, the present table has to do.
            && !is_being_read
            && let Err(error) = self.refresh(version, None).await
        {
            tracing::debug!(%error, "no cluster node answers");
        }
        Ok(self.current().1)
    }

    /// The master of `slot`, or any master.
    pub(crate) async fn master(&self, slot: Option<u16>) -> RedisResult<Address> {
        let table = self.slot_table().await?;
        let master = match slot {
            Some(slot) => table.master(slot),
            None => table.masters().next(),
        };
        master.cloned().ok_or_else(|| {
            self.mark_stale();
            (
                ErrorKind::ClusterConnectionNotFound,
                "no node serves this slot",
            )
                .into()
        })
    }

    /// Read the slot table again, unless another task has done so since version `known_version`. Asks
    /// `first`, then all nodes at once, so that nodes which hang delay nothing.
    pub(crate) async fn refresh(
        &self,
        known_version: u64,
        first: Option<&Address>,
    ) -> RedisResult<()> {
        let _refreshing = self.refreshing.lock().await;
        let (version, table) = self.current();
        if version != known_version {
            return Ok(());
        }
        let first_answer = match first {
            Some(node) => self.ask(node).await.ok(),
            None => None,
        };
        let table = match first_answer {
            Some(table) => table,
            None => {
                let seeds = self
                    .seeds
                    .iter()
                    .map(|seed| Address::from(seed.addr().to_string()));
                let nodes: BTreeSet<Address> = seeds.chain(table.nodes().iter().cloned()).collect();
                select_ok(nodes.iter().map(|node| self.ask(node).boxed()))
                    .await?
                    .0
            }
        };
        // The mark is cleared only now, because this future may be dropped before. If the new table is
        // outdated already, the next error marks it again.
        self.stale.store(false, Ordering::Release);
        self.connections()
            .retain(|address, _| table.nodes().contains(address));
        self.table.send_replace((version + 1, Arc::new(table)));
        Ok(())
    }

    /// Read the slot table from one node.
    async fn ask(&self, node: &Address) -> RedisResult<SlotTable> {
        let mut command = redis::cmd("CLUSTER");
        let reply: Value = command
            .arg("SLOTS")
            .query_async(&mut self.node(node)?)
            .await?;
        let host = node.rsplit_once(':').map_or("", |(host, _)| host);
        let table = SlotTable::parse(reply, host)?;
        if table.is_empty() {
            return Err((
                ErrorKind::ClusterConnectionNotFound,
                "the node serves no slot",
            )
                .into());
        }
        Ok(table)
    }

    pub(crate) fn client_at(&self, address: &str) -> RedisResult<Client> {
        let Some(seed) = self.seeds.first() else {
            return Err((ErrorKind::Client, "there is no node").into());
        };
        Client::open(at_address(seed, address)?)
    }

    /// The connection to one node, opened by its first command.
    pub(crate) fn node(&self, address: &Address) -> RedisResult<NodeConnection> {
        if let Some(node) = self.connections().get(address) {
            return Ok(node.clone());
        }
        let node = NodeConnection::new(Arc::new(self.client_at(address)?), self.timeouts);
        Ok(self
            .connections()
            .entry(address.clone())
            .or_insert(node)
            .clone())
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, HashMap<Address, NodeConnection>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
