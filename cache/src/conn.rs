//! The cache's Redis commands, each one bounded in time and watched by the circuit breaker. Keys
//! and bytes only: what they mean is decided elsewhere.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionManager;
use redis::{ErrorKind, RedisError, RedisResult, Script, ServerErrorKind};

use super::CacheConfig;
use super::breaker::Breaker;
use super::error::Error;
use super::stats::CacheCounters;
use super::value::Encoded;

/// How long the right to store a load lasts: longer than any load may run.
const LEASE: Duration = Duration::from_secs(60);

/// What the server answered to [`Conn::claim`].
pub(super) struct Claim {
    /// The value's text, if there is one.
    pub(super) text: Option<Vec<u8>>,
    /// Its time to live, milliseconds; negative: none.
    pub(super) pttl: i64,
    /// With it the caller may load, and store what it loaded.
    pub(super) lease: Option<String>,
}

/// The rebuild mutex, from the side of one who wants it.
#[derive(Clone)]
pub(super) struct Mutex {
    pub(super) key: String,
    pub(super) owner: String,
    pub(super) ttl: Duration,
}

/// The connection, its scripts and its breaker.
pub(super) struct Conn {
    manager: ConnectionManager,
    timeout: Duration,
    channel: String,
    /// Names this process in messages, so that it can tell its own.
    node: String,
    breaker: Breaker,
    counters: Arc<CacheCounters>,
    claim: Script,
    store: Script,
    release: Script,
    invalidate: Script,
    set: Script,
}

impl Conn {
    pub(super) fn new(
        manager: ConnectionManager,
        config: &CacheConfig,
        counters: Arc<CacheCounters>,
    ) -> Self {
        Self {
            manager,
            timeout: config.redis_timeout,
            channel: config.channel.clone(),
            node: token(),
            breaker: Breaker::new(config.breaker_failures),
            counters,
            claim: Script::new(include_str!("../lua/claim.lua")),
            store: Script::new(include_str!("../lua/store.lua")),
            release: Script::new(include_str!("../lua/release.lua")),
            invalidate: Script::new(include_str!("../lua/invalidate.lua")),
            set: Script::new(include_str!("../lua/set.lua")),
        }
    }

    /// The name of this process in messages.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    pub(super) fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// The value's text.
    pub(super) async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        let mut cmd = redis::cmd("GET");
        cmd.arg(key);
        self.bounded(async |mut c| cmd.query_async(&mut c).await).await
    }

    /// The value's text and its time to live in milliseconds (negative: none), in one round trip.
    pub(super) async fn get_with_ttl(&self, key: &str) -> Result<(Option<Vec<u8>>, i64), Error> {
        let mut pipe = redis::pipe();
        pipe.cmd("GET").arg(key).cmd("PTTL").arg(key);
        self.bounded(async |mut c| pipe.query_async(&mut c).await).await
    }

    /// Ask for the right to load. `token` becomes the lease unless others hold one already.
    pub(super) async fn claim(
        &self,
        key: &str,
        token: &str,
        mutex: Option<&Mutex>,
        replace: bool,
    ) -> Result<Claim, Error> {
        let mut call = self.claim.key(key);
        call.key(lease_of(key));
        if let Some(mutex) = mutex {
            call.key(&mutex.key);
        }
        call.arg(token).arg(millis(LEASE));
        call.arg(mutex.map_or(0, |mutex| millis(mutex.ttl))).arg(u8::from(replace));
        let (text, pttl, lease) =
            self.bounded(async |mut c| call.invoke_async(&mut c).await).await?;
        Ok(Claim { text, pttl, lease })
    }

    /// Store under a lease and give the mutex back. `false`: the lease is no longer valid.
    pub(super) async fn store(
        &self,
        key: &str,
        lease: &str,
        value: &Encoded,
        mutex: Option<&Mutex>,
    ) -> Result<bool, Error> {
        let mut call = self.store.key(key);
        call.key(lease_of(key));
        if let Some(mutex) = mutex {
            call.key(&mutex.key);
        }
        call.arg(lease).arg(&value.text).arg(value.ttl);
        call.arg(mutex.map_or("", |mutex| &mutex.owner));
        self.bounded(async |mut c| call.invoke_async(&mut c).await).await
    }

    /// Give the mutex back.
    pub(super) async fn release(&self, mutex: &Mutex) -> Result<bool, Error> {
        let mut call = self.release.key(&mutex.key);
        call.arg(&mutex.owner);
        self.bounded(async |mut c| call.invoke_async(&mut c).await).await
    }

    /// Forget `key` in Redis and on every node. Asks Redis even while the breaker is open: this is
    /// the one command that must arrive.
    pub(super) async fn invalidate(&self, key: &str) -> Result<(), Error> {
        let mut call = self.invalidate.key(key);
        call.key(lease_of(key)).arg(&self.channel).arg(self.message(key));
        let run = async {
            let mut c = self.manager.clone();
            call.invoke_async::<i64>(&mut c).await
        };
        self.watched(run).await.map(drop)
    }

    /// Put `value` under `key`, whatever is there, and tell every node.
    pub(super) async fn set(&self, key: &str, value: &Encoded) -> Result<(), Error> {
        let mut call = self.set.key(key);
        call.key(lease_of(key)).arg(&self.channel).arg(self.message(key));
        call.arg(&value.text).arg(value.ttl);
        self.bounded(async |mut c| call.invoke_async::<i64>(&mut c).await).await.map(drop)
    }

    /// Run one of the Bloom filter's scripts.
    pub(super) async fn run<T: redis::FromRedisValue>(
        &self,
        call: &redis::ScriptInvocation<'_>,
    ) -> Result<T, Error> {
        self.bounded(async |mut c| call.invoke_async(&mut c).await).await
    }

    /// While Redis is given up, ask every `period` whether it is back.
    pub(super) async fn probe(&self, period: Duration) {
        loop {
            self.breaker.until_open().await;
            tokio::time::sleep(period).await;
            let ping = async {
                let mut c = self.manager.clone();
                redis::cmd("PING").query_async::<String>(&mut c).await
            };
            if matches!(tokio::time::timeout(self.timeout, ping).await, Ok(Ok(_))) {
                tracing::info!("Redis answers again; the cache uses it again");
                self.breaker.close();
            }
        }
    }

    /// Run a command unless the breaker is open.
    async fn bounded<T, F: Future<Output = RedisResult<T>>>(
        &self,
        command: impl FnOnce(ConnectionManager) -> F,
    ) -> Result<T, Error> {
        if self.breaker.is_open() {
            return Err(Error::Unavailable("it failed a moment ago".to_owned()));
        }
        self.watched(command(self.manager.clone())).await
    }

    /// Run a command within the time limit, and tell the breaker how it ended.
    async fn watched<T>(&self, command: impl Future<Output = RedisResult<T>>) -> Result<T, Error> {
        match tokio::time::timeout(self.timeout, command).await {
            Ok(Ok(value)) => {
                self.breaker.succeeded();
                Ok(value)
            }
            Ok(Err(error)) if is_refusal(&error) => {
                self.breaker.succeeded();
                Err(Error::Rejected(error.to_string()))
            }
            Ok(Err(error)) => self.failed(error.to_string()),
            Err(_) => self.failed(format!("no answer within {:?}", self.timeout)),
        }
    }

    fn failed<T>(&self, cause: String) -> Result<T, Error> {
        let before = self.breaker.is_open();
        self.breaker.failed(&self.counters.breaker_opened);
        if !before && self.breaker.is_open() {
            tracing::warn!(fault = %cause, "Redis fails; the cache does without it until it answers");
        }
        Err(Error::Unavailable(cause))
    }

    fn message(&self, key: &str) -> String {
        format!("{} {key}", self.node)
    }
}

/// A name that was never used before.
pub(super) fn token() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// The key of the lease. It keeps a `{…}` of its key, and so the slot of a Redis Cluster.
pub(super) fn lease_of(key: &str) -> String {
    format!("lease:{key}")
}

/// Whether the server answered, and said no to this very command. Other errors speak of the
/// server or the connection.
fn is_refusal(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => !matches!(
            kind,
            ServerErrorKind::BusyLoading
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
        ),
        ErrorKind::Extension => error.code() != Some("BUSY"),
        ErrorKind::UnexpectedReturnType | ErrorKind::Parse => true,
        _ => false,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}
