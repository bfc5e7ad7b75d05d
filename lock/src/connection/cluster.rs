//! A Redis Cluster: a connection to each node, the slot table, and redirects.
//!
//! A command goes to the node that serves its slot, and is sent again only when it is known not to
//! have been executed (MOVED, ASK, TRYAGAIN, a refused connection). The cluster client of redis-rs
//! (1.8) resends by itself, also after a broken connection (16 times by default; with 0 it does not
//! follow redirects either), without telling that an earlier sending may have been executed; and
//! while it reads the slot table, commands for all nodes wait.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::{
    Client, Cmd, ConnectionInfo, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind,
    Value,
};
use tokio::sync::watch;

use crate::connection::address::{Address, Channels, at_address};
use crate::connection::shared::SharedConnection;
use crate::connection::slots::{SlotTable, slot, slot_of};

/// How often one command may be sent to another node: its slot has moved, or its node is gone. Each
/// time the command is known not to have been executed.
const MAX_REDIRECTS: usize = 5;

/// How often a command is repeated while its slot is being moved, with some of its keys on either
/// node (TRYAGAIN), and the pause before each time.
const MAX_TRY_AGAIN: usize = 20;
const TRY_AGAIN_PAUSE: Duration = Duration::from_millis(20);

/// The connections to the nodes of a cluster, and its slot table as last read.
pub(crate) struct Cluster {
    /// The nodes given by the user; their settings hold for all.
    seeds: Vec<ConnectionInfo>,
    settings: ConnectionManagerConfig,
    /// The slot table and its version: how often it has been read.
    table: watch::Sender<(u64, Arc<SlotTable>)>,
    /// An error occurred that an outdated table would explain.
    stale: AtomicBool,
    /// Held while the table is read again.
    refreshing: tokio::sync::Mutex<()>,
    connections: Mutex<HashMap<Address, SharedConnection>>,
}

/// The handle through which one call sends its commands.
#[derive(Clone)]
pub(crate) struct ClusterLink {
    cluster: Arc<Cluster>,
    /// The node of the last command. Commands without a key go there too: SCRIPT LOAD has to reach
    /// the node on which the script was missing.
    last: Option<Address>,
}

impl Cluster {
    /// Makes no connection yet. `seeds` must not be empty.
    pub(crate) fn new(seeds: Vec<ConnectionInfo>, settings: ConnectionManagerConfig) -> Self {
        Self {
            seeds,
            settings,
            table: watch::Sender::default(),
            stale: AtomicBool::new(false),
            refreshing: tokio::sync::Mutex::default(),
            connections: Mutex::default(),
        }
    }

    pub(crate) fn link(self: &Arc<Self>) -> ClusterLink {
        ClusterLink { cluster: self.clone(), last: None }
    }

    /// A future that ends when the slot table has been read again.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut table = self.table.subscribe();
        async move {
            // An error means that the cluster has been dropped.
            if table.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Read the slot table again before the next use.
    pub(crate) fn mark_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// Assign channels to the masters that serve their slots. Masters without a channel have an empty
    /// set; channels whose slot no node serves now are left out.
    pub(crate) async fn assign_channels(
        &self,
        channels: Channels,
    ) -> RedisResult<HashMap<Address, Channels>> {
        let table = self.slot_table().await?;
        let mut assigned: HashMap<Address, Channels> =
            table.masters().map(|node| (node.clone(), Channels::new())).collect();
        for channel in channels {
            match table.master(slot(channel.as_bytes())) {
                Some(node) => drop(assigned.entry(node.clone()).or_default().insert(channel)),
                None => self.mark_stale(),
            }
        }
        Ok(assigned)
    }

    /// A client for one node.
    pub(crate) fn client(&self, address: &str) -> RedisResult<Client> {
        let seed = self.seeds.first();
        let none = || RedisError::from((ErrorKind::Client, "there is no node"));
        Client::open(at_address(seed.ok_or_else(none)?, address)?)
    }

    /// The master that serves this key, by the slot table as last read.
    pub(crate) fn master_of(&self, key: &str) -> Option<Address> {
        self.current().1.master(slot(key.as_bytes())).cloned()
    }

    /// The version of the slot table, and the table, as they are.
    fn current(&self) -> (u64, Arc<SlotTable>) {
        self.table.borrow().clone()
    }

    /// The slot table, read again if it is empty or stale.
    async fn slot_table(&self) -> RedisResult<Arc<SlotTable>> {
        let (version, table) = self.current();
        let refreshing = self.refreshing.try_lock().is_err();
        if table.is_empty() {
            self.refresh(version, None).await?;
        } else if self.stale.load(Ordering::Acquire)
            // While another task reads it, the present table has to do.
            && !refreshing
            && let Err(error) = self.refresh(version, None).await
        {
            tracing::debug!(%error, "no cluster node answers");
        }
        Ok(self.current().1)
    }

    /// The master of `slot`, or any master.
    async fn master(&self, slot: Option<u16>) -> RedisResult<Address> {
        let table = self.slot_table().await?;
        let master = match slot {
            Some(slot) => table.master(slot),
            None => table.masters().next(),
        };
        master.cloned().ok_or_else(|| {
            self.mark_stale();
            (ErrorKind::ClusterConnectionNotFound, "no node serves this slot").into()
        })
    }

    /// Read the slot table again, unless another task has done so since version `seen`. Asks `first`,
    /// then all nodes at once, so that nodes which hang delay nothing.
    async fn refresh(&self, seen: u64, first: Option<&Address>) -> RedisResult<()> {
        let _refreshing = self.refreshing.lock().await;
        let (version, table) = self.current();
        if version != seen {
            return Ok(());
        }
        let mut answer = match first {
            Some(node) => self.ask(node).await,
            None => Err((ErrorKind::ClusterConnectionNotFound, "no cluster node to ask").into()),
        };
        if answer.is_err() {
            let seeds = self.seeds.iter().map(|seed| Address::from(seed.addr().to_string()));
            let all: BTreeSet<Address> = seeds.chain(table.nodes().iter().cloned()).collect();
            let mut answers: FuturesUnordered<_> = all.iter().map(|node| self.ask(node)).collect();
            while answer.is_err() {
                let Some(next) = answers.next().await else { break };
                answer = next;
            }
        }
        let table = answer?;
        // Only now, because this future may be dropped before. If the new table is outdated already,
        // the next error marks it again.
        self.stale.store(false, Ordering::Release);
        self.connections().retain(|address, _| table.nodes().contains(address));
        self.table.send_replace((version + 1, Arc::new(table)));
        Ok(())
    }

    /// Read the slot table from one node.
    async fn ask(&self, node: &Address) -> RedisResult<SlotTable> {
        let mut command = redis::cmd("CLUSTER");
        let reply: Value = command.arg("SLOTS").query_async(&mut self.node(node)?).await?;
        let host = node.rsplit_once(':').map_or("", |(host, _)| host);
        let table = SlotTable::parse(reply, host)?;
        if table.is_empty() {
            return Err((ErrorKind::ClusterConnectionNotFound, "the node serves no slot").into());
        }
        Ok(table)
    }

    /// The connection to one node, opened by its first command.
    fn node(&self, address: &Address) -> RedisResult<SharedConnection> {
        if let Some(node) = self.connections().get(address) {
            return Ok(node.clone());
        }
        let client = self.client(address)?;
        let settings = self.settings.clone();
        let node = ConnectionManager::new_lazy_with_config(client.clone(), settings.clone())?;
        let node = SharedConnection::new(node, client, settings);
        Ok(self.connections().entry(address.clone()).or_insert(node).clone())
    }

    fn connections(&self) -> std::sync::MutexGuard<'_, HashMap<Address, SharedConnection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClusterLink {
    pub(crate) fn mark_stale(&self) {
        self.cluster.mark_stale();
    }

    pub(crate) async fn command(&mut self, command: &Cmd) -> RedisResult<Value> {
        let mut replies = self.send(slot_of(command), Payload::One(command)).await?;
        Ok(replies.pop().unwrap_or(Value::Nil))
    }

    /// The whole pipeline goes to the node of its first command.
    pub(crate) async fn pipeline(
        &mut self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let slot = pipeline.cmd_iter().next().and_then(slot_of);
        self.send(slot, Payload::Many(pipeline, offset, count)).await
    }

    async fn send(&mut self, slot: Option<u16>, payload: Payload<'_>) -> RedisResult<Vec<Value>> {
        let cluster = self.cluster.clone();
        let mut next: Option<(Address, bool)> = None;
        let (mut redirects, mut try_again) = (0, 0);
        loop {
            let (version, _) = cluster.current();
            let (address, asking) = match (next.take(), slot, &self.last) {
                (Some(next), ..) => next,
                (None, None, Some(last)) => (last.clone(), false),
                (None, ..) => (cluster.master(slot).await?, false),
            };
            self.last = Some(address.clone());
            let error = match payload.to(cluster.node(&address)?, asking).await {
                Ok(replies) => return Ok(replies),
                Err(error) => error,
            };
            if error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain)
                && try_again < MAX_TRY_AGAIN
            {
                try_again += 1;
                tokio::time::sleep(TRY_AGAIN_PAUSE).await;
                continue;
            }
            redirects += 1;
            match error.kind() {
                _ if redirects > MAX_REDIRECTS => return Err(error),
                ErrorKind::Server(ServerErrorKind::Moved) => {
                    let Some(target) = target(&error, &address) else { return Err(error) };
                    // The new master has the newest table. If it does not answer, follow anyway.
                    if let Err(error) = cluster.refresh(version, Some(&target)).await {
                        tracing::debug!(%error, "no cluster node answers");
                    }
                    next = Some((target, false));
                }
                ErrorKind::Server(ServerErrorKind::Ask) => {
                    next = target(&error, &address).map(|target| (target, true));
                }
                // Nothing was sent. Follow if another node serves the slot by now.
                _ if error.is_connection_refusal() => {
                    cluster.mark_stale();
                    if slot.is_none() || cluster.master(slot).await? == address {
                        return Err(error);
                    }
                }
                ErrorKind::Server(ServerErrorKind::ClusterDown) | ErrorKind::Io => {
                    cluster.mark_stale();
                    return Err(error);
                }
                _ => return Err(error),
            }
        }
    }
}

/// What is sent to a node: a command or a pipeline.
enum Payload<'a> {
    One(&'a Cmd),
    /// The first reply wanted and how many, as in [`ConnectionLike::req_packed_commands`].
    Many(&'a Pipeline, usize, usize),
}

impl Payload<'_> {
    /// Send it; with `asking`, to the node that a slot is being moved to (ASKING).
    async fn to(&self, mut node: SharedConnection, asking: bool) -> RedisResult<Vec<Value>> {
        let replies = match (self, asking) {
            (Self::One(command), false) => vec![node.req_packed_command(command).await?],
            (Self::One(command), true) => {
                let mut both = redis::pipe();
                both.cmd("ASKING").add_command((*command).clone());
                node.req_packed_commands(&both, 1, 1).await?
            }
            (Self::Many(pipeline, offset, count), false) => {
                node.req_packed_commands(pipeline, *offset, *count).await?
            }
            (Self::Many(pipeline, offset, count), true) => {
                let mut all = redis::pipe();
                all.cmd("ASKING");
                for command in pipeline.cmd_iter() {
                    all.add_command(command.clone());
                }
                node.req_packed_commands(&all, offset + 1, *count).await?
            }
        };
        replies.into_iter().map(Value::extract_error).collect()
    }
}

/// The node that a redirect names. A node that does not know its own host leaves it out.
fn target(redirect: &RedisError, from: &Address) -> Option<Address> {
    let (address, _) = redirect.redirect_node()?;
    if !address.starts_with(':') {
        return Some(address.into());
    }
    let (host, _) = from.rsplit_once(':')?;
    Some(format!("{host}{address}").into())
}
