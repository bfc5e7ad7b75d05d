//! A master kept by Redis Sentinel: ask the sentinels where it is, connect to it, and ask again
//! whenever it may have been replaced.
//!
//! Why not the sentinel client of redis-rs: it waits for the sentinels in their order, so that one
//! which hangs costs every command its time limit.
//!
//! Source: <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, Pipeline, RedisConnectionInfo, RedisError, RedisResult, ServerErrorKind,
    Value,
};

use super::PIPELINE_BUFFER;

/// Where the sentinels say the master is.
pub(in super::super) struct Master {
    sentinels: Vec<Client>,
    name: String,
    login: RedisConnectionInfo,
    tcp: TcpSettings,
    patience: Duration,
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
    /// With its number, so that only the connection that failed is forgotten, not its successor.
    connection: Mutex<Option<(u64, MultiplexedConnection)>>,
    /// Held by whoever looks for the master.
    connecting: tokio::sync::Mutex<u64>,
}

impl Master {
    /// Makes no connection yet.
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
        let sentinels = sentinels.into_iter().map(Client::open).collect::<RedisResult<_>>()?;
        Ok(Self { sentinels, name, login, tcp, patience })
    }

    /// A client for the node that a sentinel calls master and that agrees. All sentinels are asked
    /// at once, so that those which hang cost nothing.
    pub(super) async fn find(&self) -> RedisResult<Client> {
        let mut answers: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| self.ask(sentinel)).collect();
        let mut error = absent("there is no sentinel");
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(master) => return Ok(master),
                Err(why) => error = why,
            }
        }
        // Whatever it was, no command was sent.
        Err((ErrorKind::MasterNameNotFoundBySentinel, "no master", error.to_string()).into())
    }

    async fn ask(&self, sentinel: &Client) -> RedisResult<Client> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.patience))
            .set_response_timeout(Some(self.patience));
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let mut asked = sentinel.get_multiplexed_async_connection_with_config(&config).await?;
        let address: Option<(String, u16)> = command.query_async(&mut asked).await?;
        let (host, port) = address.ok_or_else(|| absent("no sentinel knows this name"))?;
        let addr = match sentinel.get_connection_info().addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        let info = addr.into_connection_info()?;
        let info = info.set_redis_settings(self.login.clone()).set_tcp_settings(self.tcp.clone());
        let master = Client::open(info)?;
        let mut asked = master.get_multiplexed_async_connection_with_config(&config).await?;
        let role: Vec<Value> = redis::cmd("ROLE").query_async(&mut asked).await?;
        match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(master),
            _ => Err(absent("the sentinels' master is none yet")),
        }
    }

    pub(super) fn link(self: &Arc<Self>, timeout: Duration) -> MasterLink {
        MasterLink { master: self.clone(), timeout, current: Arc::default() }
    }
}

impl MasterLink {
    /// The next command asks the sentinels first.
    pub(super) fn doubt(&self) {
        self.now().take();
    }

    pub(super) async fn command(&self, command: &Cmd) -> RedisResult<Value> {
        let (number, mut connection) = self.connection().await?;
        let reply = connection.req_packed_command(command).await;
        reply.and_then(Value::extract_error).inspect_err(|error| self.judge(number, error))
    }

    pub(super) async fn pipeline(
        &self,
        pipeline: &Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let (number, mut connection) = self.connection().await?;
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
        if replaced && now.as_ref().is_some_and(|current| current.0 == number) {
            *now = None;
        }
    }

    async fn connection(&self) -> RedisResult<(u64, MultiplexedConnection)> {
        if let Some(current) = self.now().clone() {
            return Ok(current);
        }
        let mut number = self.current.connecting.lock().await;
        if let Some(current) = self.now().clone() {
            return Ok(current);
        }
        let client = self.master.find().await?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.master.patience))
            .set_response_timeout(Some(self.timeout))
            .set_pipeline_buffer_size(PIPELINE_BUFFER);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        *number += 1;
        let current = (*number, connection);
        *self.now() = Some(current.clone());
        Ok(current)
    }

    fn now(&self) -> std::sync::MutexGuard<'_, Option<(u64, MultiplexedConnection)>> {
        self.current.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn absent(why: &'static str) -> RedisError {
    (ErrorKind::MasterNameNotFoundBySentinel, why).into()
}
