//! The cache's Redis commands, each with a timeout and recorded by the circuit breaker. Keys and
//! bytes only: what they mean is decided by the callers.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult, Script, ScriptInvocation, ServerErrorKind};
use redis_link::RoutedConnection;

use super::circuit_breaker::CircuitBreaker;
use crate::config::CacheConfig;
use crate::encoding::Encoded;
use crate::error::Error;
use crate::keys::{INVALIDATIONS, lease_key};
use crate::stats::CacheCounters;

/// Time to live of a lease: longer than any load may run.
const LEASE_TTL: Duration = Duration::from_secs(60);

/// The pause before each PING while the circuit breaker is open.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// The reply of [`RedisCommands::lease_get`].
pub(crate) struct LeaseReply {
    /// The cached value's text, if there is one.
    pub(crate) text: Option<Vec<u8>>,
    /// Its time to live, milliseconds; negative: none.
    pub(crate) pttl: i64,
    /// If given, the caller may load, and store what it loaded under this lease.
    pub(crate) lease: Option<String>,
}

/// A rebuild mutex, and the owner that acquires or releases it.
#[derive(Clone)]
pub(crate) struct RebuildMutex {
    pub(crate) key: String,
    pub(crate) owner: String,
    pub(crate) ttl: Duration,
}

/// The connection with its scripts and circuit breaker.
pub(crate) struct RedisCommands {
    connection: RoutedConnection,
    timeout: Duration,
    /// Whether a key's mutex has the name that programs in other languages use.
    pub(crate) shared_mutex: bool,
    /// Identifies this process in invalidation messages, so that it can skip its own.
    pub(crate) node_id: String,
    pub(crate) breaker: CircuitBreaker,
    counters: Arc<CacheCounters>,
    lease_get: Script,
    lease_set: Script,
    mutex_release: Script,
    invalidate: Script,
}

impl RedisCommands {
    pub(crate) fn new(
        connection: RoutedConnection,
        config: &CacheConfig,
        counters: Arc<CacheCounters>,
    ) -> Self {
        Self {
            connection,
            timeout: config.redis_timeout,
            shared_mutex: config.shared_mutex,
            node_id: unique_token(),
            breaker: CircuitBreaker::default(),
            counters,
            lease_get: Script::new(include_str!("../../lua/lease_get.lua")),
            lease_set: Script::new(include_str!("../../lua/lease_set.lua")),
            mutex_release: Script::new(include_str!("../../lua/mutex_release.lua")),
            invalidate: Script::new(include_str!("../../lua/invalidate.lua")),
        }
    }

    /// Gets a value's text.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        let mut get = redis::cmd("GET");
        get.arg(key);
        self.run(async |mut connection| get.query_async(&mut connection).await)
            .await
    }

    /// Gets a value's text and its time to live (milliseconds; negative: none), in one round trip.
    pub(crate) async fn get_with_ttl(&self, key: &str) -> Result<(Option<Vec<u8>>, i64), Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("GET").arg(key).cmd("PTTL").arg(key);
        self.run(async |mut connection| pipe.query_async(&mut connection).await)
            .await
    }

    /// Checks the value again and takes a lease to load it, under `mutex` if there is one. `token`
    /// becomes the lease unless there is one already, which is then shared.
    pub(crate) async fn lease_get(
        &self,
        key: &str,
        token: &str,
        mutex: Option<&RebuildMutex>,
        replace: bool,
    ) -> Result<LeaseReply, Error> {
        let mut call = self.lease_get.key(key);
        call.key(lease_key(key));
        if let Some(mutex) = mutex {
            call.key(&mutex.key);
        }
        call.arg(token).arg(millis(LEASE_TTL));
        call.arg(mutex.map_or(0, |mutex| millis(mutex.ttl)))
            .arg(u8::from(replace));
        let (text, pttl, lease) = self.run_script(&call).await?;
        Ok(LeaseReply { text, pttl, lease })
    }

    /// Stores a loaded value under its lease and releases the mutex. Returns `false` if the lease is
    /// no longer valid.
    pub(crate) async fn lease_set(
        &self,
        key: &str,
        lease: &str,
        value: &Encoded,
        mutex: Option<&RebuildMutex>,
    ) -> Result<bool, Error> {
        let mut call = self.lease_set.key(key);
        call.key(lease_key(key));
        if let Some(mutex) = mutex {
            call.key(&mutex.key);
        }
        call.arg(lease).arg(&value.text).arg(value.ttl);
        call.arg(mutex.map_or("", |mutex| &mutex.owner));
        self.run_script(&call).await
    }

    /// Releases the mutex if its owner still holds it.
    pub(crate) async fn release(&self, mutex: &RebuildMutex) -> Result<bool, Error> {
        let mut call = self.mutex_release.key(&mutex.key);
        call.arg(&mutex.owner);
        self.run_script(&call).await
    }

    /// Invalidates `key` in Redis and on every node. Runs even while the circuit breaker is open:
    /// this is the one command that must arrive.
    pub(crate) async fn invalidate(&self, key: &str) -> Result<(), Error> {
        let mut call = self.invalidate.key(key);
        call.key(lease_key(key))
            .arg(INVALIDATIONS)
            .arg(format!("{} {key}", self.node_id));
        let mut connection = self.connection.clone();
        self.recorded(call.invoke_async::<i64>(&mut connection))
            .await
            .map(drop)
    }

    /// Runs a script unless the breaker is open.
    pub(crate) async fn run_script<T: redis::FromRedisValue>(
        &self,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, Error> {
        self.run(async |mut connection| call.invoke_async(&mut connection).await)
            .await
    }

    /// Probes Redis while the circuit breaker is open, and closes it on an answer. Never returns.
    pub(crate) async fn probe(&self) {
        loop {
            self.breaker.wait_until_open().await;
            tokio::time::sleep(PROBE_INTERVAL).await;
            let answer = tokio::time::timeout(self.timeout, self.ping()).await;
            if matches!(answer, Ok(Ok(_))) {
                tracing::info!("Redis answers again; circuit breaker closed");
                self.breaker.close();
            }
        }
    }

    /// Sends a PING, whatever the state of the breaker.
    async fn ping(&self) -> RedisResult<String> {
        let mut connection = self.connection.clone();
        redis::cmd("PING").query_async(&mut connection).await
    }

    /// Runs a command unless the breaker is open.
    async fn run<T, F: Future<Output = RedisResult<T>>>(
        &self,
        command: impl FnOnce(RoutedConnection) -> F,
    ) -> Result<T, Error> {
        if self.breaker.is_open() {
            return Err(Error::Unavailable("the circuit breaker is open".to_owned()));
        }
        self.recorded(command(self.connection.clone())).await
    }

    /// Runs a command with the timeout and records its outcome in the breaker.
    async fn recorded<T>(&self, command: impl Future<Output = RedisResult<T>>) -> Result<T, Error> {
        match tokio::time::timeout(self.timeout, command).await {
            Ok(Ok(value)) => {
                self.breaker.record_success();
                Ok(value)
            }
            Ok(Err(error)) if is_command_error(&error) => {
                self.breaker.record_success();
                Err(Error::Rejected(error.to_string()))
            }
            Ok(Err(error)) => Err(self.failed(error.to_string())),
            Err(_) => Err(self.failed(format!("no answer within {:?}", self.timeout))),
        }
    }

    fn failed(&self, cause: String) -> Error {
        if self.breaker.record_failure(&self.counters.breaker_opened) {
            tracing::warn!(error = %cause, "Redis fails; circuit breaker opened");
        }
        Error::Unavailable(cause)
    }
}

/// A token that was never used before: 32 hexadecimal characters.
pub(crate) fn unique_token() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// Whether the server is well and rejected this very command. Other errors are about the server or
/// the connection.
fn is_command_error(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => !matches!(
            kind,
            ServerErrorKind::BusyLoading
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
        ),
        // The error of a pipeline has no code of its own; those of its commands have.
        ErrorKind::Extension => error
            .clone()
            .into_server_errors()
            .is_none_or(|errors| errors.iter().all(|(_, error)| error.code() != "BUSY")),
        ErrorKind::UnexpectedReturnType | ErrorKind::Parse => true,
        _ => false,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .max(1)
}
