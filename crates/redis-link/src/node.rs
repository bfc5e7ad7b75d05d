//! A connection to one node, multiplexed by all commands: opened when a command needs it, and left when it
//! breaks, goes silent, or leads to a node that is no master any more. The next command opens another;
//! commands in flight keep the old one until they end.
//!
//! The connection manager of redis-rs (1.8) notices only a broken connection. It keeps one that a middlebox forgot
//! but acknowledges, one to a server that became a replica, and a login that was refused once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use futures_util::future::{BoxFuture, FutureExt, WeakShared};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult,
    ServerErrorKind, Value,
};

use crate::address::Address;
use crate::outcome::Outcome;
use crate::settings::{PIPELINE_BUFFER, Timeouts};

/// Commands in a row without an answer after which a connection to a fixed address is left. Behind
/// sentinels one is enough: the master may have been replaced.
const MAX_UNANSWERED: u32 = 3;

/// Where a connection leads. The provided methods are right for a fixed address.
pub(crate) trait Target: Send + Sync {
    /// Connects, with the address that was connected to.
    fn connect(
        &self,
        timeouts: Timeouts,
    ) -> BoxFuture<'_, RedisResult<(Address, MultiplexedConnection)>>;

    fn db(&self) -> i64;

    fn is_fixed(&self) -> bool {
        true
    }

    /// Whether the node is still at this address.
    fn is_still_at(&self, _: &Address) -> bool {
        true
    }

    /// A connection was left.
    fn on_connection_left(&self) {}
}

impl Target for Client {
    fn connect(
        &self,
        timeouts: Timeouts,
    ) -> BoxFuture<'_, RedisResult<(Address, MultiplexedConnection)>> {
        Box::pin(async move { Ok((Address::from(""), open(self, timeouts).await?)) })
    }

    fn db(&self) -> i64 {
        self.get_connection_info().redis_settings().db()
    }
}

/// Opens a connection.
pub(crate) async fn open(
    client: &Client,
    timeouts: Timeouts,
) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeouts.connect))
        .set_response_timeout(Some(timeouts.command))
        .set_pipeline_buffer_size(PIPELINE_BUFFER);
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

/// The connection. Clones share it.
#[derive(Clone)]
pub(crate) struct NodeConnection(Arc<Inner>);

struct Inner {
    target: Arc<dyn Target>,
    timeouts: Timeouts,
    slot: RwLock<Slot>,
    /// Commands in a row that were not answered.
    unanswered: AtomicU32,
}

#[derive(Default)]
struct Slot {
    open: Option<Open>,
    /// How many connections have been opened.
    opened: u64,
    /// The attempt under way to open one. It ends when no command waits for it any more.
    attempt: Option<WeakShared<BoxFuture<'static, RedisResult<Open>>>>,
    /// When and how a login was refused last. It is not tried again with every command.
    refused: Option<(Instant, RedisError)>,
}

#[derive(Clone)]
struct Open {
    /// With this, an error closes only the connection on which it occurred, not its successor.
    number: u64,
    since: Instant,
    address: Address,
    connection: MultiplexedConnection,
}

/// What an answer says about its connection.
#[derive(Clone, Copy, PartialEq)]
enum Sign {
    Good,
    Silent,
    Broken,
    /// The node is not a master now.
    Replaced,
}

impl NodeConnection {
    /// Opens nothing yet.
    pub(crate) fn new(target: Arc<dyn Target>, timeouts: Timeouts) -> Self {
        Self(Arc::new(Inner {
            target,
            timeouts,
            slot: RwLock::default(),
            unanswered: AtomicU32::new(0),
        }))
    }

    /// The connection, opened if there is none.
    async fn get(&self) -> RedisResult<Open> {
        if let Some(open) = &self.read().open
            && self.0.target.is_still_at(&open.address)
        {
            return Ok(open.clone());
        }
        let attempt = {
            let mut slot = self.write();
            if let Some((refused_at, error)) = &slot.refused
                && refused_at.elapsed() < self.0.timeouts.command
            {
                return Err(error.clone());
            }
            match slot.attempt.as_ref().and_then(WeakShared::upgrade) {
                Some(attempt) => attempt,
                None => {
                    let attempt = self.clone().open().boxed().shared();
                    slot.attempt = attempt.downgrade();
                    attempt
                }
            }
        };
        attempt.await
    }

    async fn open(self) -> RedisResult<Open> {
        let opened = self.0.target.connect(self.0.timeouts).await;
        let mut slot = self.write();
        slot.attempt = None;
        match opened {
            Ok((address, connection)) => {
                slot.opened += 1;
                slot.refused = None;
                let open = Open {
                    number: slot.opened,
                    since: Instant::now(),
                    address,
                    connection,
                };
                slot.open = Some(open.clone());
                Ok(open)
            }
            Err(error) => {
                if Outcome::of(&error) == Outcome::LoginRefused {
                    slot.refused = Some((Instant::now(), error.clone()));
                }
                Err(error)
            }
        }
    }

    /// Waits for the reply to a command on connection `number`, and judges the connection by it.
    async fn judged_reply<T>(
        &self,
        number: u64,
        reply: RedisFuture<'_, T>,
        sign: fn(&T) -> Sign,
    ) -> RedisResult<T> {
        let since = Instant::now();
        let mut waiting = Waiting {
            connection: self,
            number,
            since,
            ended: false,
        };
        let reply = reply.await;
        waiting.ended = true;
        self.judge(number, reply.as_ref().map_or_else(sign_of_error, sign));
        reply
    }

    /// Leaves connection `number` if this sign is reason enough.
    fn judge(&self, number: u64, sign: Sign) {
        let Inner {
            target,
            timeouts,
            unanswered,
            ..
        } = &*self.0;
        let fixed = target.is_fixed();
        if sign == Sign::Good {
            // The load first: a store for every command would make the cores contend.
            if unanswered.load(Ordering::Relaxed) != 0 {
                unanswered.store(0, Ordering::Relaxed);
            }
            return;
        }
        let mut slot = self.write();
        let Some(open) = slot.open.as_ref().filter(|open| open.number == number) else {
            return;
        };
        let leave = match sign {
            Sign::Silent if fixed => {
                unanswered.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_UNANSWERED
            }
            // The same server may stay a replica. So its connection is not opened anew with every command.
            Sign::Replaced if fixed => open.since.elapsed() >= timeouts.command,
            _ => true,
        };
        if leave {
            tracing::debug!(node = &*open.address, "a Redis connection is left");
            slot.open = None;
            unanswered.store(0, Ordering::Relaxed);
            target.on_connection_left();
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Slot> {
        self.0.slot.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Slot> {
        self.0.slot.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionLike for NodeConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let Open {
                number,
                mut connection,
                ..
            } = self.get().await?;
            let reply = connection.req_packed_command(command);
            self.judged_reply(number, reply, sign_of_value).await
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let Open {
                number,
                mut connection,
                ..
            } = self.get().await?;
            let replies = connection.req_packed_commands(pipeline, offset, count);
            let sign = |values: &Vec<Value>| {
                let mut signs = values.iter().map(sign_of_value);
                signs.find(|sign| *sign != Sign::Good).unwrap_or(Sign::Good)
            };
            self.judged_reply(number, replies, sign).await
        })
    }

    fn get_db(&self) -> i64 {
        self.0.target.db()
    }
}

/// A command under way. If its caller gives it up after half of the time limit or later, it counts as not
/// answered.
struct Waiting<'a> {
    connection: &'a NodeConnection,
    number: u64,
    since: Instant,
    ended: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.ended && self.since.elapsed() >= self.connection.0.timeouts.command / 2 {
            self.connection.judge(self.number, Sign::Silent);
        }
    }
}

fn sign_of_error(error: &RedisError) -> Sign {
    if error.is_timeout() {
        Sign::Silent
    } else if matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse)
        || error.is_unrecoverable_error()
    {
        Sign::Broken
    } else if error.kind() == ErrorKind::Server(ServerErrorKind::BusyLoading) {
        Sign::Replaced
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

/// In Redis 6, a script's error has a code of its own; the code of the command that failed is in its text.
fn sign_of_code(code: Option<&str>, details: Option<&str>) -> Sign {
    let in_script = details.is_some_and(|details| details.contains("READONLY"));
    if matches!(code, Some("READONLY" | "MASTERDOWN" | "LOADING")) || in_script {
        Sign::Replaced
    } else {
        Sign::Good
    }
}
