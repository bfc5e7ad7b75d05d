//! A Redis Cluster: one connection to each node, the slot table, and commands sent to whoever
//! serves their slot. Redirects are followed; nothing that may have been carried out is sent again.
//!
//! Why not the cluster client of redis-rs: it resends by itself without telling that an earlier
//! sending may have gone through, and while it recovers one node every command waits.

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

use super::server::Channels;
use super::slots::{Address, Table, relocated, slot, slot_of};

/// How often one command may be sent elsewhere: a slot that moves, and moves on, and a node that
/// turns out to be gone. Each time the command is known not to have been carried out.
const REDIRECTS: usize = 5;

/// A command that met a slot in the middle of its move, with some of its keys here and some there
/// (TRYAGAIN): the pause before it is repeated, and how often it is.
const MOVING: (Duration, usize) = (Duration::from_millis(20), 20);

/// The nodes of a cluster and who serves what, as last heard.
pub(in super::super) struct Cluster {
    /// The nodes given by the user; their settings hold for all.
    seeds: Vec<ConnectionInfo>,
    settings: ConnectionManagerConfig,
    /// The table and how often it has been learned.
    view: watch::Sender<(u64, Arc<Table>)>,
    /// Something went wrong that an outdated table would explain.
    doubted: AtomicBool,
    /// Held by whoever asks for a new table.
    asking: tokio::sync::Mutex<()>,
    open: Mutex<HashMap<Address, ConnectionManager>>,
}

/// One call's way into the cluster.
#[derive(Clone)]
pub(in super::super) struct ClusterLink {
    cluster: Arc<Cluster>,
    /// The node that the last command went to. Commands without a key follow it there: the script
    /// is loaded where it was missing.
    last: Option<Address>,
}

impl Cluster {
    /// Makes no connection yet. `seeds` must not be empty.
    pub(super) fn new(seeds: Vec<ConnectionInfo>, settings: ConnectionManagerConfig) -> Self {
        Self {
            seeds,
            settings,
            view: watch::Sender::default(),
            doubted: AtomicBool::new(false),
            asking: tokio::sync::Mutex::default(),
            open: Mutex::default(),
        }
    }

    pub(super) fn link(self: &Arc<Self>) -> ClusterLink {
        ClusterLink { cluster: self.clone(), last: None }
    }

    /// Told when the table has been learned anew.
    pub(super) fn changes(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut view = self.view.subscribe();
        async move {
            // An error means that nobody is left to learn one.
            if view.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The next command, or the listener, asks for a new table first.
    pub(super) fn doubt(&self) {
        self.doubted.store(true, Ordering::Release);
    }

    /// Share channels out among the masters that serve their slots; masters without a channel come
    /// with an empty share, and channels that nobody serves now are left out.
    pub(super) async fn share_out(
        &self,
        channels: Channels,
    ) -> RedisResult<HashMap<Address, Channels>> {
        let table = self.known().await?;
        let mut shares: HashMap<Address, Channels> =
            table.masters().map(|node| (node.clone(), Channels::new())).collect();
        for channel in channels {
            match table.master(slot(channel.as_bytes())) {
                Some(node) => drop(shares.entry(node.clone()).or_default().insert(channel)),
                None => self.doubt(),
            }
        }
        Ok(shares)
    }

    /// A client for one node.
    pub(super) fn client(&self, address: &str) -> RedisResult<Client> {
        let seed = self.seeds.first();
        let none = || RedisError::from((ErrorKind::Client, "there is no node"));
        Client::open(relocated(seed.ok_or_else(none)?, address)?)
    }

    fn table(&self) -> (u64, Arc<Table>) {
        self.view.borrow().clone()
    }

    /// The table, learned anew if there is none or it is doubted.
    async fn known(&self) -> RedisResult<Arc<Table>> {
        let (number, table) = self.table();
        let asked_already = self.asking.try_lock().is_err();
        if table.is_empty() {
            self.learn(number, None).await?;
        } else if self.doubted.load(Ordering::Acquire)
            // Whoever comes while somebody asks goes on with the table there is.
            && !asked_already
            && let Err(error) = self.learn(number, None).await
        {
            tracing::debug!(fault = %error, "no cluster node answers");
        }
        Ok(self.table().1)
    }

    /// The master of `slot`, or any master.
    async fn master(&self, slot: Option<u16>) -> RedisResult<Address> {
        let table = self.known().await?;
        let master = match slot {
            Some(slot) => table.master(slot),
            None => table.masters().next(),
        };
        master.cloned().ok_or_else(|| {
            self.doubt();
            (ErrorKind::ClusterConnectionNotFound, "no node serves this slot").into()
        })
    }

    /// Ask for a new table unless somebody has learned one since number `seen`: `first`, then all
    /// nodes at once, so that those which hang cost nothing.
    async fn learn(&self, seen: u64, first: Option<&Address>) -> RedisResult<()> {
        let _turn = self.asking.lock().await;
        let (number, table) = self.table();
        if number != seen {
            return Ok(());
        }
        let mut learned = match first {
            Some(node) => self.ask(node).await,
            None => Err((ErrorKind::ClusterConnectionNotFound, "no cluster node to ask").into()),
        };
        if learned.is_err() {
            let seeds = self.seeds.iter().map(|seed| Address::from(seed.addr().to_string()));
            let all: BTreeSet<Address> = seeds.chain(table.nodes().iter().cloned()).collect();
            let mut answers: FuturesUnordered<_> = all.iter().map(|node| self.ask(node)).collect();
            while learned.is_err() {
                let Some(answer) = answers.next().await else { break };
                learned = answer;
            }
        }
        let table = learned?;
        // Only now: whoever asks may go away before. If the doubt is about this table already, the
        // next failure raises it again.
        self.doubted.store(false, Ordering::Release);
        self.opened().retain(|address, _| table.nodes().contains(address));
        self.view.send_replace((number + 1, Arc::new(table)));
        Ok(())
    }

    async fn ask(&self, node: &Address) -> RedisResult<Table> {
        let mut command = redis::cmd("CLUSTER");
        let reply: Value = command.arg("SLOTS").query_async(&mut self.node(node)?).await?;
        let host = node.rsplit_once(':').map_or("", |(host, _)| host);
        let table = Table::parse(reply, host)?;
        if table.is_empty() {
            return Err((ErrorKind::ClusterConnectionNotFound, "the node serves nothing").into());
        }
        Ok(table)
    }

    /// The connection to one node, which opens by itself.
    fn node(&self, address: &Address) -> RedisResult<ConnectionManager> {
        if let Some(node) = self.opened().get(address) {
            return Ok(node.clone());
        }
        let client = self.client(address)?;
        let node = ConnectionManager::new_lazy_with_config(client, self.settings.clone())?;
        Ok(self.opened().entry(address.clone()).or_insert(node).clone())
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, HashMap<Address, ConnectionManager>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClusterLink {
    pub(super) fn doubt(&self) {
        self.cluster.doubt();
    }

    pub(super) async fn command(&mut self, command: &Cmd) -> RedisResult<Value> {
        let mut replies = self.send(slot_of(command), Sending::One(command)).await?;
        Ok(replies.pop().unwrap_or(Value::Nil))
    }

    /// All of a pipeline goes where its first command belongs.
    pub(super) async fn pipeline(
        &mut self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let slot = pipeline.cmd_iter().next().and_then(slot_of);
        self.send(slot, Sending::Many(pipeline, offset, count)).await
    }

    async fn send(&mut self, slot: Option<u16>, sending: Sending<'_>) -> RedisResult<Vec<Value>> {
        let cluster = self.cluster.clone();
        let mut next: Option<(Address, bool)> = None;
        let (mut sent, mut moving) = (0, 0);
        loop {
            let (number, _) = cluster.table();
            let (address, asking) = match (next.take(), slot, &self.last) {
                (Some(next), ..) => next,
                (None, None, Some(last)) => (last.clone(), false),
                (None, ..) => (cluster.master(slot).await?, false),
            };
            self.last = Some(address.clone());
            let error = match sending.to(cluster.node(&address)?, asking).await {
                Ok(replies) => return Ok(replies),
                Err(error) => error,
            };
            if error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain) && moving < MOVING.1 {
                moving += 1;
                tokio::time::sleep(MOVING.0).await;
                continue;
            }
            sent += 1;
            match error.kind() {
                _ if sent > REDIRECTS => return Err(error),
                ErrorKind::Server(ServerErrorKind::Moved) => {
                    let Some(target) = target(&error, &address) else { return Err(error) };
                    // The new master knows best what it serves. If it cannot say, follow anyway.
                    if let Err(error) = cluster.learn(number, Some(&target)).await {
                        tracing::debug!(fault = %error, "no cluster node answers");
                    }
                    next = Some((target, false));
                }
                ErrorKind::Server(ServerErrorKind::Ask) => {
                    next = target(&error, &address).map(|target| (target, true));
                }
                // Nothing was sent. Has the node's place been taken?
                _ if error.is_connection_refusal() => {
                    cluster.doubt();
                    if slot.is_none() || cluster.master(slot).await? == address {
                        return Err(error);
                    }
                }
                ErrorKind::Server(ServerErrorKind::ClusterDown) | ErrorKind::Io => {
                    cluster.doubt();
                    return Err(error);
                }
                _ => return Err(error),
            }
        }
    }
}

/// What is sent to a node.
enum Sending<'a> {
    One(&'a Cmd),
    /// The first reply wanted and how many, as in [`ConnectionLike::req_packed_commands`].
    Many(&'a Pipeline, usize, usize),
}

impl Sending<'_> {
    /// Send it; with `asking`, to a node that is about to take the slot over (ASKING).
    async fn to(&self, mut node: ConnectionManager, asking: bool) -> RedisResult<Vec<Value>> {
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

/// Where a redirect leads. A node that does not know its own name leaves it out.
fn target(redirect: &RedisError, from: &Address) -> Option<Address> {
    let (address, _) = redirect.redirect_node()?;
    if !address.starts_with(':') {
        return Some(address.into());
    }
    let (host, _) = from.rsplit_once(':')?;
    Some(format!("{host}{address}").into())
}
