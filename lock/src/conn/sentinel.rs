//! A master kept by Redis Sentinel: ask the sentinels where it is, connect to it, and ask again
//! whenever it may have been replaced, and every second anyway: a master that was replaced goes on
//! answering for a while, and what it grants then is forgotten.
//!
//! Why not the sentinel client of redis-rs: it waits for the sentinels in their order, so that one
//! which hangs costs every command its time limit; and it believes the first, however outdated.
//!
//! Source: <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, Pipeline, RedisConnectionInfo,
    RedisError, RedisResult, ServerErrorKind, Value,
};
use tokio::sync::watch;

use super::PIPELINE_BUFFER;
use super::slots::{Address, relocated};

/// How often the sentinels are asked although nothing seems wrong.
const PATROL: Duration = Duration::from_secs(1);

/// Where the sentinels say the master is.
pub(in super::super) struct Master {
    sentinels: Vec<Sentinel>,
    name: String,
    /// Stands for the master: its login and sockets, at some address.
    model: ConnectionInfo,
    patience: Duration,
    /// The last one found.
    known: watch::Sender<Option<Found>>,
    /// Something went wrong that its replacement would explain.
    doubted: AtomicBool,
}

struct Sentinel {
    client: Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

/// A sentinel's word.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    /// Rises with each failover, so that the more recent of two different words is known.
    epoch: u64,
    address: Address,
}

/// The connection for commands to the present master.
#[derive(Clone)]
pub(in super::super) struct MasterLink {
    master: Arc<Master>,
    timeout: Duration,
    current: Arc<Current>,
}

#[derive(Default)]
struct Current {
    connection: Mutex<Option<Connected>>,
    /// Held by whoever looks for the master.
    connecting: tokio::sync::Mutex<u64>,
}

#[derive(Clone)]
struct Connected {
    /// So that only the connection that failed is forgotten, not its successor.
    number: u64,
    to: Address,
    connection: MultiplexedConnection,
}

impl Master {
    /// Makes no connection yet. `sentinels` must not be empty; the master is assumed to have their
    /// kind of address (TLS or not).
    ///
    /// # Errors
    /// When an address cannot be used.
    pub(super) fn new(
        sentinels: Vec<ConnectionInfo>,
        name: String,
        login: RedisConnectionInfo,
        tcp: TcpSettings,
        patience: Duration,
    ) -> RedisResult<Self> {
        let model = sentinels.first().cloned().ok_or_else(|| absent("there is no sentinel"))?;
        let model = model.set_redis_settings(login).set_tcp_settings(tcp);
        let open = |sentinel| {
            Ok(Sentinel { client: Client::open(sentinel)?, connection: Mutex::default() })
        };
        let sentinels = sentinels.into_iter().map(open).collect::<RedisResult<_>>()?;
        let known = watch::Sender::default();
        Ok(Self { sentinels, name, model, patience, known, doubted: AtomicBool::new(false) })
    }

    /// A client for one address.
    pub(super) fn client(&self, address: &str) -> RedisResult<Client> {
        Client::open(relocated(&self.model, address)?)
    }

    /// Told when another master was found.
    pub(super) fn changes(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut known = self.known.subscribe();
        async move {
            // An error means that nobody is left to find one.
            if known.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The next to listen asks the sentinels first.
    pub(super) fn doubt(&self) {
        self.doubted.store(true, Ordering::Release);
    }

    /// The last one found, unless it is doubted.
    pub(super) async fn present(&self) -> RedisResult<Address> {
        if !self.doubted.load(Ordering::Acquire)
            && let Some(known) = self.known.borrow().as_ref()
        {
            return Ok(known.address.clone());
        }
        self.find().await
    }

    /// The node that a sentinel calls master and that agrees. All sentinels are asked at once, so
    /// that those which hang cost nothing; older words count only where no newer one is to be had.
    pub(super) async fn find(&self) -> RedisResult<Address> {
        let newest = self.known.borrow().as_ref().map_or(0, |known| known.epoch);
        let mut answers: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| self.checked(sentinel)).collect();
        let (mut older, mut error) = (None, absent("no sentinel answered"));
        let mut found = None;
        while found.is_none()
            && let Some(answer) = answers.next().await
        {
            match answer {
                Ok(word) if word.epoch >= newest => found = Some(word),
                Ok(word) => older = Some(word),
                Err(why) => error = why,
            }
        }
        // Whatever it was, no command was sent.
        let found = found.or(older).ok_or_else(|| {
            let cause = (ErrorKind::MasterNameNotFoundBySentinel, "no master", error.to_string());
            RedisError::from(cause)
        })?;
        self.doubted.store(false, Ordering::Release);
        let address = found.address.clone();
        self.known.send_if_modified(|known| {
            let news = known.as_ref() != Some(&found);
            *known = Some(found);
            news
        });
        Ok(address)
    }

    /// Look for a newer master, again and again.
    pub(super) async fn patrol(&self) {
        loop {
            tokio::time::sleep(PATROL).await;
            let Some(known) = self.known.borrow().clone() else { continue };
            let mut answers: FuturesUnordered<_> =
                self.sentinels.iter().map(|sentinel| self.ask(sentinel)).collect();
            while let Some(answer) = answers.next().await {
                if answer.is_ok_and(|word| word.epoch > known.epoch) {
                    if let Err(error) = self.find().await {
                        tracing::debug!(fault = %error, "a new master is not ready yet");
                    }
                    break;
                }
            }
        }
    }

    /// What a sentinel says, if the node it names agrees to be a master.
    async fn checked(&self, sentinel: &Sentinel) -> RedisResult<Found> {
        let found = self.ask(sentinel).await?;
        let master = self.client(&found.address)?;
        let mut asked = master.get_multiplexed_async_connection_with_config(&self.limits()).await?;
        let role: Vec<Value> = redis::cmd("ROLE").query_async(&mut asked).await?;
        match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(found),
            _ => Err(absent("the sentinels' master is none yet")),
        }
    }

    /// What a sentinel says.
    async fn ask(&self, sentinel: &Sentinel) -> RedisResult<Found> {
        // A clone, so that the guard is not held while waiting.
        let open = sentinel.connection().clone();
        let mut asked = match open {
            Some(open) => open,
            None => {
                let limits = self.limits();
                let new = sentinel.client.get_multiplexed_async_connection_with_config(&limits);
                let new = new.await?;
                *sentinel.connection() = Some(new.clone());
                new
            }
        };
        let mut command = redis::cmd("SENTINEL");
        command.arg("MASTER").arg(&self.name);
        let facts: RedisResult<HashMap<String, String>> = command.query_async(&mut asked).await;
        let facts = facts.inspect_err(|error| {
            if error.is_io_error() || error.is_unrecoverable_error() {
                *sentinel.connection() = None;
            }
        })?;
        let fact = |name| facts.get(name).map(String::as_str).unwrap_or_default();
        let (host, port) = (fact("ip"), fact("port"));
        let epoch = fact("config-epoch").parse().unwrap_or(0);
        if host.is_empty() || port.is_empty() {
            return Err(absent("a sentinel gives no address"));
        }
        Ok(Found { epoch, address: format!("{host}:{port}").into() })
    }

    fn limits(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.patience))
            .set_response_timeout(Some(self.patience))
    }

    pub(super) fn link(self: &Arc<Self>, timeout: Duration) -> MasterLink {
        MasterLink { master: self.clone(), timeout, current: Arc::default() }
    }
}

impl Sentinel {
    fn connection(&self) -> MutexGuard<'_, Option<MultiplexedConnection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MasterLink {
    /// The next command asks the sentinels first.
    pub(super) fn doubt(&self) {
        self.now().take();
    }

    pub(super) async fn command(&self, command: &Cmd) -> RedisResult<Value> {
        let Connected { number, mut connection, .. } = self.connection().await?;
        let reply = connection.req_packed_command(command).await;
        reply.and_then(Value::extract_error).inspect_err(|error| self.judge(number, error))
    }

    pub(super) async fn pipeline(
        &self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let Connected { number, mut connection, .. } = self.connection().await?;
        let replies = connection.req_packed_commands(pipeline, offset, count).await;
        replies
            .and_then(|replies| replies.into_iter().map(Value::extract_error).collect())
            .inspect_err(|error| self.judge(number, error))
    }

    /// Forget the connection if the error may mean that another node is the master now.
    fn judge(&self, number: u64, error: &RedisError) {
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
        let mut now = self.now();
        if replaced && now.as_ref().is_some_and(|current| current.number == number) {
            *now = None;
        }
    }

    async fn connection(&self) -> RedisResult<Connected> {
        if let Some(current) = self.present() {
            return Ok(current);
        }
        let mut number = self.current.connecting.lock().await;
        if let Some(current) = self.present() {
            return Ok(current);
        }
        let to = self.master.find().await?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.master.patience))
            .set_response_timeout(Some(self.timeout))
            .set_pipeline_buffer_size(PIPELINE_BUFFER);
        let client = self.master.client(&to)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        *number += 1;
        let current = Connected { number: *number, to, connection };
        *self.now() = Some(current.clone());
        Ok(current)
    }

    /// The connection, if it leads to the last master found.
    fn present(&self) -> Option<Connected> {
        let current = self.now().clone()?;
        let known = self.master.known.borrow();
        known.as_ref().is_some_and(|known| known.address == current.to).then_some(current)
    }

    fn now(&self) -> MutexGuard<'_, Option<Connected>> {
        self.current.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn absent(why: &'static str) -> RedisError {
    (ErrorKind::MasterNameNotFoundBySentinel, why).into()
}
