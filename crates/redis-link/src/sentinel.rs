//! A master monitored by Redis Sentinel: finds it, leads connections to it, and notices a failover.
//!
//! The sentinels are asked whenever the master may have been replaced, and every second anyway: a
//! replaced master goes on answering for a while, and what it grants then is lost. Of two masters the
//! one of the newer epoch counts, whichever sentinel named it, from that moment on.
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
    /// Of the sentinels, and of looking a master up.
    timeouts: Timeouts,
    /// The one of the newest epoch that a sentinel has named.
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
    /// A sentinel that is cut off from the others names an outdated master, of an older epoch. Older
    /// epochs count only where there are no other answers, and as those of a majority of two or more:
    /// then the sentinels were set up anew.
    async fn discover(&self) -> RedisResult<Address> {
        let mut answers: FuturesUnordered<_> = self
            .sentinels
            .iter()
            .map(|sentinel| self.verified(sentinel))
            .collect();
        let mut older = Vec::new();
        let mut error = no_master("no sentinel answered");
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(info) if info.epoch < self.newest_epoch() => {
                    error = no_master("the sentinels that answer know an outdated master only");
                    older.push(info);
                }
                Ok(info) => return Ok(self.found(info.epoch, info)),
                Err(cause) => error = cause,
            }
        }
        let newest = self.newest_epoch();
        let majority = older.len() > 1 && older.len() * 2 > self.sentinels.len();
        if let Some(info) = older.into_iter().max_by_key(|info| info.epoch)
            && majority
        {
            return Ok(self.found(newest, info));
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

    /// Use this master, unless one of a newer epoch than `newest` is known by now. Returns the address
    /// of the one in use.
    fn found(&self, newest: u64, info: MasterInfo) -> Address {
        self.stale.store(false, Ordering::Release);
        let mut address = info.address.clone();
        self.newest_master
            .send_if_modified(|newest_master| match newest_master {
                Some(master) if master.epoch > newest => {
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

    /// What a sentinel reports, if the node it names has the role of a master. A connection that broke is made once more: one
    /// to a sentinel is kept, and found to be broken only by its next use, after a short cut those to all of them; and a
    /// promotion closes the connections that are just being made.
    async fn verified(&self, sentinel: &Sentinel) -> RedisResult<MasterInfo> {
        let verified = async {
            match self.verify(sentinel).await {
                Err(error) if is_broken(&error) => self.verify(sentinel).await,
                verified => verified,
            }
        };
        tokio::time::timeout(self.timeouts.connect, verified)
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
    /// the new epoch and the old address, so the address is asked for by the other command. That comes
    /// second, as an old address must not be taken for one of the new epoch.
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
        self.heard(sentinel, info.clone());
        Ok(info)
    }

    /// A master of a newer epoch replaces the known one at once, before anybody knows that it answers.
    /// Within one epoch, one sentinel may give the master's host name and another its IP address. So
    /// another address counts only if the same sentinel gave a different one before.
    fn heard(&self, sentinel: &Sentinel, info: MasterInfo) {
        let mut last = sentinel.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.replace(info.clone());
        let changed = before
            .is_some_and(|before| before.epoch == info.epoch && before.address != info.address);
        self.newest_master.send_if_modified(|newest_master| {
            let newer = newest_master.as_ref().is_none_or(|master| {
                let has_moved = changed && info.address != master.address;
                info.epoch > master.epoch || (info.epoch == master.epoch && has_moved)
            });
            if newer {
                *newest_master = Some(info);
            }
            newer
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
            // The search, and opening the connection.
            let connected = tokio::time::timeout(timeouts.connect * 2, connect).await;
            let connected = connected.unwrap_or_else(|_| Err(no_master("it does not answer")));
            connected.map_err(|error: RedisError| {
                self.mark_stale();
                // A refused connection is known to be one; of others it has to be said that no command
                // was sent.
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
