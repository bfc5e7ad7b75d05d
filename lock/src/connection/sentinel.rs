//! A master monitored by Redis Sentinel: finds it, connects to it, and notices a failover.
//!
//! The sentinels are asked whenever the master may have been replaced, and every second anyway: a
//! replaced master goes on answering for a while, and what it grants then is lost. All sentinels
//! are asked at once, and an answer of an older epoch counts only without a newer one. The sentinel
//! client of redis-rs (1.8) takes the answers in the configured order, so that a first sentinel which
//! hangs delays every look-up until a time limit that is not ours; it believes the first answer,
//! however outdated; and it does not poll.
//!
//! Source: <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, Pipeline, RedisConnectionInfo,
    RedisError, RedisResult, ServerErrorKind, Value,
};
use tokio::sync::watch;

use crate::connection::address::{Address, at_address};
use crate::connection::settings::PIPELINE_BUFFER;

/// How often the sentinels are asked although no error occurred.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The sentinels, and the master as they last reported it.
pub(crate) struct Master {
    sentinels: Vec<Sentinel>,
    name: String,
    /// The master's login and socket settings; the address is a placeholder.
    model: ConnectionInfo,
    connect_timeout: Duration,
    /// The last one found.
    known: watch::Sender<Option<MasterInfo>>,
    /// An error occurred that a failover would explain.
    stale: AtomicBool,
}

struct Sentinel {
    client: Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

/// The master as a sentinel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MasterInfo {
    /// Rises with each failover, so that the newer of two different answers is known.
    epoch: u64,
    address: Address,
}

/// The connection for commands to the current master.
#[derive(Clone)]
pub(crate) struct MasterLink {
    master: Arc<Master>,
    timeout: Duration,
    current: Arc<Current>,
}

#[derive(Default)]
struct Current {
    connection: Mutex<Option<MasterConnection>>,
    /// Held while the master is looked up; the number of the last connection.
    connecting: tokio::sync::Mutex<u64>,
}

#[derive(Clone)]
struct MasterConnection {
    /// So that an error closes only the connection on which it occurred, not its successor.
    number: u64,
    to: Address,
    connection: MultiplexedConnection,
}

impl Master {
    /// Makes no connection yet. `sentinels` must not be empty; the master is assumed to use
    /// TLS if they do.
    ///
    /// # Errors
    /// When an address cannot be used.
    pub(crate) fn new(
        sentinels: Vec<ConnectionInfo>,
        name: String,
        login: RedisConnectionInfo,
        tcp: TcpSettings,
        connect_timeout: Duration,
    ) -> RedisResult<Self> {
        let model = sentinels.first().cloned().ok_or_else(|| no_master("there is no sentinel"))?;
        let model = model.set_redis_settings(login).set_tcp_settings(tcp);
        let open = |sentinel| {
            Ok(Sentinel { client: Client::open(sentinel)?, connection: Mutex::default() })
        };
        let sentinels = sentinels.into_iter().map(open).collect::<RedisResult<_>>()?;
        let known = watch::Sender::default();
        let stale = AtomicBool::new(false);
        Ok(Self { sentinels, name, model, connect_timeout, known, stale })
    }

    /// A client for one address.
    pub(crate) fn client(&self, address: &str) -> RedisResult<Client> {
        Client::open(at_address(&self.model, address)?)
    }

    /// A future that ends when another master was found.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut known = self.known.subscribe();
        async move {
            // An error means that the master has been dropped.
            if known.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Ask the sentinels again before the next use.
    pub(crate) fn mark_stale(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// The address of the last master found.
    pub(crate) fn known_address(&self) -> Option<Address> {
        self.known.borrow().as_ref().map(|known| known.address.clone())
    }

    /// The address of the master: the last one found, or looked up again if that is stale.
    pub(crate) async fn address(&self) -> RedisResult<Address> {
        if !self.stale.load(Ordering::Acquire)
            && let Some(known) = self.known.borrow().as_ref()
        {
            return Ok(known.address.clone());
        }
        self.discover().await
    }

    /// Look the master up: the node that a sentinel names and that says itself that it is one. All
    /// sentinels are asked at once, so that those which hang delay nothing; an answer of an older
    /// epoch counts only if there is no newer one.
    pub(crate) async fn discover(&self) -> RedisResult<Address> {
        let newest = self.known.borrow().as_ref().map_or(0, |known| known.epoch);
        let mut answers: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| self.verified(sentinel)).collect();
        let (mut older, mut error) = (None, no_master("no sentinel answered"));
        let mut found = None;
        while found.is_none()
            && let Some(answer) = answers.next().await
        {
            match answer {
                Ok(info) if info.epoch >= newest => found = Some(info),
                Ok(info) => older = Some(info),
                Err(cause) => error = cause,
            }
        }
        // Whatever the cause, no command was sent.
        let found = found.or(older).ok_or_else(|| {
            let cause = (ErrorKind::MasterNameNotFoundBySentinel, "no master", error.to_string());
            RedisError::from(cause)
        })?;
        self.stale.store(false, Ordering::Release);
        let address = found.address.clone();
        self.known.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&found);
            *known = Some(found);
            changed
        });
        Ok(address)
    }

    /// Poll the sentinels for a newer master. Never ends.
    pub(crate) async fn monitor(&self) {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let Some(known) = self.known.borrow().clone() else { continue };
            let mut answers: FuturesUnordered<_> =
                self.sentinels.iter().map(|sentinel| self.ask(sentinel)).collect();
            while let Some(answer) = answers.next().await {
                if answer.is_ok_and(|info| info.epoch > known.epoch) {
                    if let Err(error) = self.discover().await {
                        tracing::debug!(%error, "a new master is not ready yet");
                    }
                    break;
                }
            }
        }
    }

    /// What a sentinel reports, if the node it names has the role of a master.
    async fn verified(&self, sentinel: &Sentinel) -> RedisResult<MasterInfo> {
        let found = self.ask(sentinel).await?;
        let master = self.client(&found.address)?;
        let mut asked =
            master.get_multiplexed_async_connection_with_config(&self.timeouts()).await?;
        let role: Vec<Value> = redis::cmd("ROLE").query_async(&mut asked).await?;
        match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(found),
            _ => Err(no_master("the node that the sentinels name is not a master yet")),
        }
    }

    /// What a sentinel reports.
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
        let mut command = redis::cmd("SENTINEL");
        command.arg("MASTER").arg(&self.name);
        let fields: RedisResult<HashMap<String, String>> = command.query_async(&mut asked).await;
        let fields = fields.inspect_err(|error| {
            if error.is_io_error() || error.is_unrecoverable_error() {
                *sentinel.connection() = None;
            }
        })?;
        let field = |name| fields.get(name).map(String::as_str).unwrap_or_default();
        let (host, port) = (field("ip"), field("port"));
        let epoch = field("config-epoch").parse().unwrap_or(0);
        if host.is_empty() || port.is_empty() {
            return Err(no_master("a sentinel gives no address"));
        }
        Ok(MasterInfo { epoch, address: format!("{host}:{port}").into() })
    }

    fn timeouts(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.connect_timeout))
    }

    pub(crate) fn link(self: &Arc<Self>, timeout: Duration) -> MasterLink {
        MasterLink { master: self.clone(), timeout, current: Arc::default() }
    }
}

impl Sentinel {
    fn connection(&self) -> MutexGuard<'_, Option<MultiplexedConnection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MasterLink {
    /// Close the connection: the next command asks the sentinels first.
    pub(crate) fn mark_stale(&self) {
        self.slot().take();
    }

    pub(crate) async fn command(&self, command: &Cmd) -> RedisResult<Value> {
        let MasterConnection { number, mut connection, .. } = self.connection().await?;
        let mut unanswered = Unanswered::begin(self, number);
        let reply = connection.req_packed_command(command).await;
        unanswered.ended = true;
        reply
            .and_then(Value::extract_error)
            .inspect_err(|error| self.close_if_replaced(number, error))
    }

    pub(crate) async fn pipeline(
        &self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let MasterConnection { number, mut connection, .. } = self.connection().await?;
        let mut unanswered = Unanswered::begin(self, number);
        let replies = connection.req_packed_commands(pipeline, offset, count).await;
        unanswered.ended = true;
        replies
            .and_then(|replies| replies.into_iter().map(Value::extract_error).collect())
            .inspect_err(|error| self.close_if_replaced(number, error))
    }

    /// Close the connection if the error may mean that another node is the master now.
    fn close_if_replaced(&self, number: u64, error: &RedisError) {
        let replaced = matches!(
            error.kind(),
            ErrorKind::Io
                | ErrorKind::Parse
                | ErrorKind::Server(
                    ServerErrorKind::ReadOnly
                        | ServerErrorKind::MasterDown
                        | ServerErrorKind::BusyLoading
                )
        );
        if replaced {
            self.close(number);
        }
    }

    /// Close connection `number`, unless it has a successor.
    fn close(&self, number: u64) {
        let mut slot = self.slot();
        if slot.as_ref().is_some_and(|current| current.number == number) {
            *slot = None;
        }
    }

    async fn connection(&self) -> RedisResult<MasterConnection> {
        if let Some(current) = self.current_connection() {
            return Ok(current);
        }
        let mut number = self.current.connecting.lock().await;
        if let Some(current) = self.current_connection() {
            return Ok(current);
        }
        let to = self.master.discover().await?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.master.connect_timeout))
            .set_response_timeout(Some(self.timeout))
            .set_pipeline_buffer_size(PIPELINE_BUFFER);
        let client = self.master.client(&to)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        *number += 1;
        let current = MasterConnection { number: *number, to, connection };
        *self.slot() = Some(current.clone());
        Ok(current)
    }

    /// The connection, if it leads to the last master found.
    fn current_connection(&self) -> Option<MasterConnection> {
        let current = self.slot().clone()?;
        let known = self.master.known.borrow();
        known.as_ref().is_some_and(|known| known.address == current.to).then_some(current)
    }

    fn slot(&self) -> MutexGuard<'_, Option<MasterConnection>> {
        self.current.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A command under way. Given up by its caller after half of the time limit or more, it closes its
/// connection: a master that hangs may have been replaced.
struct Unanswered<'a> {
    link: &'a MasterLink,
    number: u64,
    since: Instant,
    ended: bool,
}

impl<'a> Unanswered<'a> {
    fn begin(link: &'a MasterLink, number: u64) -> Self {
        Self { link, number, since: Instant::now(), ended: false }
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.ended && self.since.elapsed() >= self.link.timeout / 2 {
            self.link.close(self.number);
        }
    }
}

fn no_master(cause: &'static str) -> RedisError {
    (ErrorKind::MasterNameNotFoundBySentinel, cause).into()
}
