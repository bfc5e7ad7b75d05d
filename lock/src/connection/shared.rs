//! A connection to Redis that all clones share, and that is replaced when it is of no use any more.
//!
//! `ConnectionManager` reconnects when a connection breaks. It does not notice one that goes silent, as when a middlebox
//! forgot the connection but acknowledges what is sent: every command runs into its time limit, for good. Nor does it
//! leave a server that became a replica, which answers each write with READONLY while the address leads to another
//! server by now. Nor does it ever try again once a login was refused, as while a password is being changed. So the manager
//! itself is replaced: after [`IN_A_ROW`] commands in a row without an answer, after a READONLY, or after a refused
//! login. Commands in flight keep the old one until they end.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult, Value};

/// Time-outs in a row after which the connection is replaced.
const IN_A_ROW: u32 = 3;

/// The time limit of a command where the configuration has none.
const DEFAULT_LIMIT: Duration = Duration::from_secs(1);

/// A multiplexed connection to one server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SharedConnection(Arc<Inner>);

struct Inner {
    client: Client,
    config: ConnectionManagerConfig,
    /// The time limit of a command.
    limit: Duration,
    current: RwLock<Current>,
    /// Commands in a row that were not answered.
    unanswered: AtomicU32,
}

#[derive(Clone)]
struct Current {
    /// Rises with each replacement.
    number: u64,
    since: Instant,
    manager: ConnectionManager,
}

/// What an answer says about its connection.
enum Sign {
    Good,
    Silent,
    ReadOnly,
    /// Never made, because the server refused the login; the manager does not try again.
    LoginRefused,
    /// Broken, which the manager mends by itself.
    Broken,
}

impl SharedConnection {
    /// Begins with `manager`; makes its successors of `client` and `config`, whose response time-out is the time limit of
    /// a command. One that its caller gives up counts as not answered after half of it.
    pub(crate) fn new(
        manager: ConnectionManager,
        client: Client,
        config: ConnectionManagerConfig,
    ) -> Self {
        let limit = config.response_timeout().unwrap_or(DEFAULT_LIMIT);
        let current = RwLock::new(Current { number: 0, since: Instant::now(), manager });
        Self(Arc::new(Inner { client, config, limit, current, unanswered: AtomicU32::new(0) }))
    }

    fn current(&self) -> Current {
        self.0.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn judge(&self, number: u64, sign: &Sign) {
        match sign {
            // The load first: a store for every command would make the cores contend.
            Sign::Good if self.0.unanswered.load(Ordering::Relaxed) == 0 => {}
            Sign::Good => self.0.unanswered.store(0, Ordering::Relaxed),
            Sign::Broken => {}
            Sign::Silent if self.current().number != number => {}
            Sign::Silent => {
                if self.0.unanswered.fetch_add(1, Ordering::Relaxed) + 1 >= IN_A_ROW {
                    self.replace(number, "it does not answer");
                }
            }
            Sign::ReadOnly => self.replace_after_limit(number, "the server is read-only"),
            Sign::LoginRefused => self.replace_after_limit(number, "its login was refused"),
        }
    }

    /// Replaces connection `number` for a reason that may last: not with every command.
    fn replace_after_limit(&self, number: u64, reason: &str) {
        if self.current().since.elapsed() >= self.0.limit {
            self.replace(number, reason);
        }
    }

    /// Replaces connection `number`, unless that was done already.
    fn replace(&self, number: u64, reason: &str) {
        // A command may be dropped by a runtime that ends.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let Inner { client, config, current, unanswered, .. } = &*self.0;
        let mut current = current.write().unwrap_or_else(PoisonError::into_inner);
        if current.number != number {
            return;
        }
        match ConnectionManager::new_lazy_with_config(client.clone(), config.clone()) {
            Ok(manager) => {
                tracing::warn!(reason, "a Redis connection is replaced");
                *current = Current { number: number + 1, since: Instant::now(), manager };
                unanswered.store(0, Ordering::Relaxed);
            }
            Err(error) => tracing::error!(%error, "a Redis connection cannot be replaced"),
        }
    }
}

impl ConnectionLike for SharedConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let (mut manager, waiting) = Waiting::begin(self);
            let reply = manager.send_packed_command(command).await;
            waiting.end(&reply.as_ref().map_or_else(sign_of_error, sign_of_value));
            reply
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let (mut manager, waiting) = Waiting::begin(self);
            let replies = manager.send_packed_commands(pipeline, offset, count).await;
            waiting.end(&sign_of_values(&replies));
            replies
        })
    }

    fn get_db(&self) -> i64 {
        self.0.client.get_connection_info().redis_settings().db()
    }
}

/// A command under way; dropped before its end, it was not answered.
struct Waiting<'a> {
    connection: &'a SharedConnection,
    number: u64,
    since: Instant,
    ended: bool,
}

impl<'a> Waiting<'a> {
    fn begin(connection: &'a SharedConnection) -> (ConnectionManager, Self) {
        let Current { number, manager, .. } = connection.current();
        (manager, Self { connection, number, since: Instant::now(), ended: false })
    }

    fn end(mut self, sign: &Sign) {
        self.ended = true;
        self.connection.judge(self.number, sign);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.ended && self.since.elapsed() >= self.connection.0.limit / 2 {
            self.connection.judge(self.number, &Sign::Silent);
        }
    }
}

/// Whether the server refused the user or the password.
pub(crate) fn is_login_refusal(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"))
}

fn sign_of_error(error: &RedisError) -> Sign {
    if is_login_refusal(error) {
        Sign::LoginRefused
    } else if error.is_timeout() {
        Sign::Silent
    } else if error.is_io_error() {
        Sign::Broken
    } else {
        sign_of_code(error.code(), error.detail())
    }
}

fn sign_of_value(value: &Value) -> Sign {
    match value {
        Value::ServerError(error) => sign_of_code(Some(error.code()), error.details()),
        _ => Sign::Good,
    }
}

fn sign_of_values(replies: &RedisResult<Vec<Value>>) -> Sign {
    match replies {
        Ok(values) => {
            let mut signs = values.iter().map(sign_of_value);
            signs.find(|sign| matches!(sign, Sign::ReadOnly)).unwrap_or(Sign::Good)
        }
        Err(error) => sign_of_error(error),
    }
}

/// A script's error of Redis 6 has another code, and the command's own one in its text.
fn sign_of_code(code: Option<&str>, details: Option<&str>) -> Sign {
    let in_script = details.is_some_and(|details| details.contains("READONLY"));
    if matches!(code, Some("READONLY" | "MASTERDOWN")) || in_script {
        Sign::ReadOnly
    } else {
        Sign::Good
    }
}
