//! A master monitored by Redis Sentinel: finds it, leads connections to it, and notices a failover.
//!
//! The sentinels are asked whenever the master may have been replaced, and every second anyway: a
//! replaced master goes on answering for a while, and what it grants then is lost. Of two masters the
//! one of the newer epoch counts, as soon as any sentinel names it.
//!
//! Source: <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{
    Client, ConnectionInfo, ErrorKind, RedisConnectionInfo, RedisError, RedisResult, Value,
    from_redis_value,
};
use tokio::sync::watch;

use crate::address::{Address, Channels, at_address};
use crate::node::{NodeConnection, Target, open};
use crate::nodes::{Nodes, change};
use crate::routed::{Route, RoutedConnection};
use crate::settings::Timeouts;

/// How often each sentinel is asked although no error occurred.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The sentinels, and the master as they last reported it.
pub(crate) struct Master {
    sentinels: Vec<Sentinel>,
    name: String,
    /// The master's login and socket settings; the address is a placeholder.
    model: ConnectionInfo,
    /// Limits for connections to the sentinels, and for looking the master up.
    timeouts: Timeouts,
    /// The master of the newest epoch that any sentinel has named.
    newest_master: watch::Sender<Option<MasterInfo>>,
    /// An error occurred that a failover would explain.
    stale: AtomicBool,
}

struct Sentinel {
    node: NodeConnection,
    /// Its last answer.
    last: Mutex<Option<MasterInfo>>,
}

/// The master as a sentinel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MasterInfo {
    /// Rises with each failover, so that the newer of two different answers is known.
    epoch: u64,
    address: Address,
}

impl Master {
    /// Makes no connection yet. `sentinels` must not be empty; the master is assumed to use
    /// TLS if they do.
    pub(crate) fn new(
        sentinels: Vec<ConnectionInfo>,
        name: String,
        login: RedisConnectionInfo,
        connect_timeout: Duration,
    ) -> RedisResult<Self> {
        let timeouts = Timeouts::new(connect_timeout, connect_timeout);
        let model = sentinels
            .first()
            .cloned()
            .ok_or_else(|| no_master("there is no sentinel"))?;
        let model = model.set_redis_settings(login);
        let sentinels = sentinels
            .into_iter()
            .map(|sentinel| {
                let node = NodeConnection::new(Arc::new(Client::open(sentinel)?), timeouts);
                Ok(Sentinel {
                    node,
                    last: Mutex::default(),
                })
            })
            .collect::<RedisResult<_>>()?;
        Ok(Self {
            sentinels,
            name,
            model,
            timeouts,
            newest_master: watch::Sender::default(),
            stale: AtomicBool::new(false),
        })
    }

    /// The address of the newest master that a sentinel has named.
    fn known_address(&self) -> Option<Address> {
        self.newest_master
            .borrow()
            .as_ref()
            .map(|master| master.address.clone())
    }

    /// The address of the master: the known one, or looked up again if that is stale.
    async fn address(&self) -> RedisResult<Address> {
        if !self.stale.load(Ordering::Acquire)
            && let Some(master) = self.newest_master.borrow().as_ref()
        {
            return Ok(master.address.clone());
        }
        self.discover().await
    }

    /// Look the master up: the node that a sentinel names and that says itself that it is one. All
    /// sentinels are asked at once, so that those which hang delay nothing.
    ///
    /// A sentinel that is cut off from the others names an outdated master, of an older epoch. Such an
    /// answer counts only if all answers are of older epochs, and if they come from at least two
    /// sentinels and from more than half of all: then the sentinels were set up anew, and their epochs
    /// began again.
    async fn discover(&self) -> RedisResult<Address> {
        let mut answers: FuturesUnordered<_> = self
            .sentinels
            .iter()
            .map(|sentinel| self.verified(sentinel))
            .collect();
        let mut older_masters = Vec::new();
        let mut error = no_master("no sentinel answered");
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(info) if info.epoch < self.newest_epoch() => {
                    error = no_master("the sentinels that answer know an outdated master only");
                    older_masters.push(info);
                }
                Ok(info) => return Ok(self.use_unless_outdated(info.epoch, info)),
                Err(cause) => error = cause,
            }
        }
        let newest_epoch = self.newest_epoch();
        let is_majority = older_masters.len() > 1 && older_masters.len() * 2 > self.sentinels.len();
        if let Some(info) = older_masters.into_iter().max_by_key(|info| info.epoch)
            && is_majority
        {
            return Ok(self.use_unless_outdated(newest_epoch, info));
        }
        self.mark_stale();
        Err(no_master_because(&error))
    }

    fn newest_epoch(&self) -> u64 {
        self.newest_master
            .borrow()
            .as_ref()
            .map_or(0, |master| master.epoch)
    }

    /// Use this master, unless one of a newer epoch than `newest_epoch` has been named meanwhile. Returns
    /// the address of the master in use.
    fn use_unless_outdated(&self, newest_epoch: u64, info: MasterInfo) -> Address {
        self.stale.store(false, Ordering::Release);
        let mut address = info.address.clone();
        self.newest_master
            .send_if_modified(|newest_master| match newest_master {
                Some(master) if master.epoch > newest_epoch => {
                    address = master.address.clone();
                    false
                }
                Some(master) if *master == info => false,
                _ => {
                    *newest_master = Some(info);
                    true
                }
            });
        address
    }

    /// What a sentinel reports, if the node it names has the role of a master. If a connection breaks, this
    /// is tried once more, for two reasons. Connections to sentinels are kept, and after a short cut of the
    /// network all of them are broken, which only their next use shows. And a promotion closes the
    /// connections to the node that are just being made.
    async fn verified(&self, sentinel: &Sentinel) -> RedisResult<MasterInfo> {
        let verifying = async {
            match self.verify(sentinel).await {
                Err(error) if is_broken(&error) => self.verify(sentinel).await,
                outcome => outcome,
            }
        };
        tokio::time::timeout(self.timeouts.connect, verifying)
            .await
            .unwrap_or_else(|_| {
                Err(no_master(
                    "a sentinel, or the node that it names, does not answer",
                ))
            })
    }

    async fn verify(&self, sentinel: &Sentinel) -> RedisResult<MasterInfo> {
        let info = self.ask(sentinel).await?;
        let mut node = open(&self.client(&info.address)?, self.timeouts).await?;
        ensure_master(&mut node).await?;
        Ok(info)
    }

    /// What a sentinel reports. Until the end of a failover its leader answers `SENTINEL MASTER` with
    /// the new epoch and the old address. So only the epoch is taken from that, and the address from
    /// `GET-MASTER-ADDR-BY-NAME`. The address is asked for second: if a failover happened between the
    /// two, the other order would pair the old address with the new epoch.
    async fn ask(&self, sentinel: &Sentinel) -> RedisResult<MasterInfo> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("SENTINEL").arg("MASTER").arg(&self.name);
        pipeline
            .cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(&self.name);
        let (fields, address): (RedisResult<Value>, RedisResult<Value>) = pipeline
            .ignore_errors()
            .query_async(&mut sentinel.node.clone())
            .await?;
        let fields: HashMap<String, String> = from_redis_value(fields?)?;
        let address: Option<(String, String)> = from_redis_value(address?)?;
        let epoch = fields
            .get("config-epoch")
            .and_then(|epoch| epoch.parse().ok());
        let (Some(epoch), Some((host, port))) = (epoch, address) else {
            return Err(no_master("a sentinel gives no epoch or no address"));
        };
        let info = MasterInfo {
            epoch,
            address: format!("{host}:{port}").into(),
        };
        self.note_answer(sentinel, info.clone());
        Ok(info)
    }

    /// A master of a newer epoch replaces the known one at once, before it is known to answer.
    /// Within one epoch, one sentinel may give the master's host name and another its IP address. So
    /// another address counts only if the same sentinel gave a different one before.
    fn note_answer(&self, sentinel: &Sentinel, info: MasterInfo) {
        let mut last = sentinel.last.lock().unwrap_or_else(PoisonError::into_inner);
        let previous = last.replace(info.clone());
        let has_moved = previous.is_some_and(|previous| {
            previous.epoch == info.epoch && previous.address != info.address
        });
        self.newest_master.send_if_modified(|newest_master| {
            let replaces_known = match newest_master.as_ref() {
                None => true,
                Some(known) if info.epoch == known.epoch => {
                    has_moved && info.address != known.address
                }
                Some(known) => info.epoch > known.epoch,
            };
            if replaces_known {
                *newest_master = Some(info);
            }
            replaces_known
        });
    }

    /// Asks a sentinel for a newer master, again and again. Never returns.
    async fn poll(&self, sentinel: &Sentinel) {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            if self.known_address().is_some()
                && let Err(error) = self.ask(sentinel).await
            {
                tracing::debug!(%error, "a sentinel does not answer");
            }
        }
    }
}

/// Fails unless the node says that it is a master.
async fn ensure_master(node: &mut MultiplexedConnection) -> RedisResult<()> {
    let role: Vec<Value> = redis::cmd("ROLE").query_async(node).await?;
    match role.first() {
        Some(Value::BulkString(role)) if role == b"master" => Ok(()),
        _ => Err(no_master(
            "the node that the sentinels name is not a master yet",
        )),
    }
}

/// Whether a connection was closed by the other side.
fn is_broken(error: &RedisError) -> bool {
    error.is_io_error() && !error.is_connection_refusal() && !error.is_timeout()
}

/// An error that says that no command was sent.
fn no_master(cause: &'static str) -> RedisError {
    (ErrorKind::MasterNameNotFoundBySentinel, cause).into()
}

/// As [`no_master`].
fn no_master_because(cause: &RedisError) -> RedisError {
    (
        ErrorKind::MasterNameNotFoundBySentinel,
        "no master",
        cause.to_string(),
    )
        .into()
}

impl Nodes for Master {
    fn link(self: Arc<Self>, timeouts: Timeouts) -> RoutedConnection {
        RoutedConnection(Route::Node(NodeConnection::new(self, timeouts)))
    }

    fn separate(self: Arc<Self>, _timeouts: Timeouts) -> Arc<dyn Nodes> {
        self
    }

    fn client(&self, address: &str) -> RedisResult<Client> {
        Client::open(at_address(&self.model, address)?)
    }

    fn assign_channels(
        &self,
        channels: Channels,
    ) -> BoxFuture<'_, RedisResult<HashMap<Address, Channels>>> {
        Box::pin(async { Ok(HashMap::from([(self.address().await?, channels)])) })
    }

    fn serving(&self, _key: &str) -> Option<Address> {
        self.known_address()
    }

    fn mark_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    fn changed(&self) -> BoxFuture<'static, ()> {
        change(self.newest_master.subscribe())
    }

    /// Polls the sentinels for a newer master, each by itself, so that one which hangs delays nothing.
    fn monitor(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            join_all(self.sentinels.iter().map(|sentinel| self.poll(sentinel))).await;
        })
    }
}

impl Target for Master {
    fn connect(
        &self,
        timeouts: Timeouts,
    ) -> BoxFuture<'_, RedisResult<(Address, MultiplexedConnection)>> {
        let connect = async move {
            loop {
                let address = self.address().await?;
                let mut connection = open(&self.client(&address)?, timeouts).await?;
                ensure_master(&mut connection).await?;
                // Another one may have been named meanwhile.
                if self.is_still_at(&address) {
                    return Ok((address, connection));
                }
            }
        };
        Box::pin(async move {
            // Twice the limit: for looking the master up, and for connecting to it.
            let connected = tokio::time::timeout(timeouts.connect * 2, connect).await;
            let connected = connected.unwrap_or_else(|_| Err(no_master("it does not answer")));
            connected.map_err(|error: RedisError| {
                self.mark_stale();
                // The caller has to see that no command was sent. A refused connection says so itself; any
                // other error of the network is turned into one that does.
                if error.is_io_error() && !error.is_connection_refusal() {
                    no_master_because(&error)
                } else {
                    error
                }
            })
        })
    }

    fn db(&self) -> i64 {
        self.model.redis_settings().db()
    }

    fn is_fixed(&self) -> bool {
        false
    }

    fn is_still_at(&self, address: &Address) -> bool {
        self.known_address().as_ref() == Some(address)
    }

    fn on_connection_left(&self) {
        self.mark_stale();
    }
}
