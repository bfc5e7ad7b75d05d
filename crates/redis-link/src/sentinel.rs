//! A master monitored by Redis Sentinel: finds it, and notices a failover. Commands reach it by
//! a `NodeConnection`.
//!
//! The sentinels are asked whenever the master may have been replaced, and every second anyway: a
//! replaced master goes on answering for a while, and what it grants then is lost. Of two masters the
//! one of the newer epoch counts, whichever sentinel named it, from that moment on.
//!
//! Source: <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, RedisConnectionInfo, RedisError,
    RedisResult, Value, from_redis_value,
};
use tokio::sync::watch;

use crate::address::{Address, at_address};

mod nodes;

/// The sentinels, and the master as they last reported it.
pub(crate) struct Master {
    sentinels: Vec<Sentinel>,
    name: String,
    /// The master's login and socket settings; the address is a placeholder.
    model: ConnectionInfo,
    connect_timeout: Duration,
    /// The one of the newest epoch that a sentinel has named.
    known: watch::Sender<Option<MasterInfo>>,
    /// An error occurred that a failover would explain.
    stale: AtomicBool,
}

struct Sentinel {
    client: Client,
    connection: Mutex<Option<MultiplexedConnection>>,
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
        let model = sentinels.first().cloned().ok_or_else(|| no_master("there is no sentinel"))?;
        let model = model.set_redis_settings(login);
        let open = |sentinel| {
            let (connection, last) = Default::default();
            Ok(Sentinel { client: Client::open(sentinel)?, connection, last })
        };
        let sentinels = sentinels.into_iter().map(open).collect::<RedisResult<_>>()?;
        let known = watch::Sender::default();
        let stale = AtomicBool::new(false);
        Ok(Self { sentinels, name, model, connect_timeout, known, stale })
    }

    pub(crate) fn client_at(&self, address: &str) -> RedisResult<Client> {
        Client::open(at_address(&self.model, address)?)
    }

    /// Ask the sentinels again before the next use.
    pub(crate) fn mark_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// The address of the newest master that a sentinel has named.
    pub(crate) fn known_address(&self) -> Option<Address> {
        self.known.borrow().as_ref().map(|known| known.address.clone())
    }

    /// The address of the master: the known one, or looked up again if that is stale.
    pub(crate) async fn address(&self) -> RedisResult<Address> {
        if !self.stale.load(Ordering::Acquire)
            && let Some(known) = self.known.borrow().as_ref()
        {
            return Ok(known.address.clone());
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
        let mut answers: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| self.verified(sentinel)).collect();
        let (mut older, mut error) = (Vec::new(), no_master("no sentinel answered"));
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
        self.known.borrow().as_ref().map_or(0, |known| known.epoch)
    }

    /// Use this master, unless one of a newer epoch than `newest` is known by now. Returns the address
    /// of the one in use.
    fn found(&self, newest: u64, info: MasterInfo) -> Address {
        self.stale.store(false, Ordering::Release);
        let mut address = info.address.clone();
        self.known.send_if_modified(|known| match known {
            Some(known) if known.epoch > newest => {
                address = known.address.clone();
                false
            }
            Some(known) if *known == info => false,
            _ => {
                *known = Some(info);
                true
            }
        });
        address
    }

    /// What a sentinel reports, if the node it names has the role of a master.
    async fn verified(&self, sentinel: &Sentinel) -> RedisResult<MasterInfo> {
        let verified = async {
            let info = self.ask(sentinel).await?;
            let node = self.client_at(&info.address)?;
            let timeouts = self.timeouts();
            let mut node = node.get_multiplexed_async_connection_with_config(&timeouts).await?;
            ensure_master(&mut node).await?;
            Ok(info)
        };
        let timeout = || Err(no_master("a sentinel, or the node that it names, does not answer"));
        tokio::time::timeout(self.connect_timeout, verified).await.unwrap_or_else(|_| timeout())
    }

    /// What a sentinel reports. Until the end of a failover its leader answers `SENTINEL MASTER` with
    /// the new epoch and the old address, so the address is asked for by the other command. That comes
    /// second, as an old address must not be taken for one of the new epoch.
    async fn ask(&self, sentinel: &Sentinel) -> RedisResult<MasterInfo> {
        // A clone, so that the guard is not held while waiting.
        let open = sentinel.connection().clone();
        let mut asked = match open {
            Some(open) => open,
            None => {
                let timeouts = self.timeouts();
                let new = sentinel.client.get_multiplexed_async_connection_with_config(&timeouts);
                let new = new.await?;
                *sentinel.connection() = Some(new.clone());
                new
            }
        };
        let mut both = redis::pipe();
        both.cmd("SENTINEL").arg("MASTER").arg(&self.name);
        both.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let replies: RedisResult<(RedisResult<Value>, RedisResult<Value>)> =
            both.ignore_errors().query_async(&mut asked).await;
        let (fields, address) = replies.inspect_err(|error| {
            if error.is_io_error() || error.is_unrecoverable_error() {
                *sentinel.connection() = None;
            }
        })?;
        let fields: HashMap<String, String> = from_redis_value(fields?)?;
        let address: Option<(String, String)> = from_redis_value(address?)?;
        let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok());
        let (Some(epoch), Some((host, port))) = (epoch, address) else {
            return Err(no_master("a sentinel gives no epoch or no address"));
        };
        let info = MasterInfo { epoch, address: format!("{host}:{port}").into() };
        self.heard(sentinel, info.clone());
        Ok(info)
    }

    /// A master of a newer epoch replaces the known one at once, before anybody knows that it answers.
    /// Within one epoch, one sentinel may give the master's host name and another its IP address. So
    /// another address counts only if the same sentinel gave a different one before.
    fn heard(&self, sentinel: &Sentinel, info: MasterInfo) {
        let before = sentinel.last().replace(info.clone());
        let changed = before
            .is_some_and(|before| before.epoch == info.epoch && before.address != info.address);
        self.known.send_if_modified(|known| {
            let newer = known.as_ref().is_none_or(|known| {
                let other = changed && info.address != known.address;
                info.epoch > known.epoch || (info.epoch == known.epoch && other)
            });
            if newer {
                *known = Some(info);
            }
            newer
        });
    }

    fn timeouts(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.connect_timeout))
    }
}

impl Sentinel {
    fn connection(&self) -> MutexGuard<'_, Option<MultiplexedConnection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self) -> MutexGuard<'_, Option<MasterInfo>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails unless the node says that it is a master.
pub(crate) async fn ensure_master(node: &mut MultiplexedConnection) -> RedisResult<()> {
    let role: Vec<Value> = redis::cmd("ROLE").query_async(node).await?;
    match role.first() {
        Some(Value::BulkString(role)) if role == b"master" => Ok(()),
        _ => Err(no_master("the node that the sentinels name is not a master yet")),
    }
}

/// An error that says that no command was sent.
pub(crate) fn no_master(cause: &'static str) -> RedisError {
    (ErrorKind::MasterNameNotFoundBySentinel, cause).into()
}

/// As [`no_master`].
pub(crate) fn no_master_because(cause: &RedisError) -> RedisError {
    (ErrorKind::MasterNameNotFoundBySentinel, "no master", cause.to_string()).into()
}
