//! A connection to one node, multiplexed by all commands: opened when a command needs it, and left when it
//! breaks, goes silent, or leads to a node that is no master any more. The next command opens another;
//! commands in flight keep the old one until they end.
//!
//! The connection manager of redis-rs (1.8) notices only the first: it keeps a connection that a middlebox
//! forgot but acknowledges, one to a server that became a replica, and a login that was refused once.

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
use crate::outcome::is_login_refusal;
use crate::sentinel::{Master, ensure_master, no_master, no_master_because};
use crate::settings::{PIPELINE_BUFFER, Timeouts};

/// Commands in a row without an answer after which a connection to a fixed address is left. Behind
/// sentinels one is enough: the master may have been replaced.
const IN_A_ROW: u32 = 3;

pub(crate) enum Target {
    Fixed(Box<Client>),
    /// The master that sentinels monitor.
    Master(Arc<Master>),
}

/// The connection. Clones share it.
#[derive(Clone)]
pub(crate) struct NodeConnection(Arc<Inner>);

struct Inner {
    target: Target,
    timeouts: Timeouts,
    slot: RwLock<Slot>,
    /// Commands in a row that were not answered.
    unanswered: AtomicU32,
}

#[derive(Default)]
struct Slot {
    open: Option<Open>,
    /// How many have been opened.
    opened: u64,
    /// The attempt under way to open one. It ends when no command waits for it any more.
    attempt: Option<WeakShared<BoxFuture<'static, RedisResult<Open>>>>,
    /// When a login was refused last, and how: not tried again with every command.
    refused: Option<(Instant, RedisError)>,
}

#[derive(Clone)]
struct Open {
    /// So that an error closes only the connection on which it occurred, not its successor.
    number: u64,
    since: Instant,
    to: Address,
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
    pub(crate) fn new(target: Target, timeouts: Timeouts) -> Self {
        let (slot, unanswered) = Default::default();
        Self(Arc::new(Inner { target, timeouts, slot, unanswered }))
    }

    /// The connection, opened if there is none.
    async fn get(&self) -> RedisResult<Open> {
        if let Some(open) = &self.read().open
            && self.0.target.is_still(&open.to)
        {
            return Ok(open.clone());
        }
        let attempt = {
            let mut slot = self.write();
            if let Some((at, error)) = &slot.refused
                && at.elapsed() < self.0.timeouts.command
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
            Ok((to, connection)) => {
                slot.opened += 1;
                slot.refused = None;
                let open = Open { number: slot.opened, since: Instant::now(), to, connection };
                slot.open = Some(open.clone());
                Ok(open)
            }
            Err(error) => {
                if is_login_refusal(&error) {
                    slot.refused = Some((Instant::now(), error.clone()));
                }
                Err(error)
            }
        }
    }

    /// The reply to a command on connection `number`, which is judged by it.
    async fn judged<T>(
        &self,
        number: u64,
        reply: RedisFuture<'_, T>,
        sign: fn(&T) -> Sign,
    ) -> RedisResult<T> {
        let since = Instant::now();
        let mut waiting = Waiting { connection: self, number, since, ended: false };
        let reply = reply.await;
        waiting.ended = true;
        self.judge(number, reply.as_ref().map_or_else(sign_of_error, sign));
        reply
    }

    /// Leave connection `number` if what one of its answers says is reason enough.
    fn judge(&self, number: u64, sign: Sign) {
        let Inner { target, timeouts, unanswered, .. } = &*self.0;
        let fixed = matches!(target, Target::Fixed(_));
        if sign == Sign::Good {
            // The load first: a store for every command would make the cores contend.
            if unanswered.load(Ordering::Relaxed) != 0 {
                unanswered.store(0, Ordering::Relaxed);
            }
            return;
        }
        let mut slot = self.write();
        let Some(open) = slot.open.as_ref().filter(|open| open.number == number) else { return };
        let leave = match sign {
            Sign::Silent if fixed => unanswered.fetch_add(1, Ordering::Relaxed) + 1 >= IN_A_ROW,
            // The same server may stay a replica: not with every command.
            Sign::Replaced if fixed => open.since.elapsed() >= timeouts.command,
            _ => true,
        };
        if leave {
            tracing::debug!(node = &*open.to, "a Redis connection is left");
            slot.open = None;
            unanswered.store(0, Ordering::Relaxed);
            if let Target::Master(master) = target {
                master.mark_stale();
            }
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
            let Open { number, mut connection, .. } = self.get().await?;
            self.judged(number, connection.req_packed_command(command), sign_of_value).await
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let Open { number, mut connection, .. } = self.get().await?;
            let replies = connection.req_packed_commands(pipeline, offset, count);
            let sign = |values: &Vec<Value>| {
                let mut signs = values.iter().map(sign_of_value);
                signs.find(|sign| *sign != Sign::Good).unwrap_or(Sign::Good)
            };
            self.judged(number, replies, sign).await
        })
    }

    fn get_db(&self) -> i64 {
        match &self.0.target {
            Target::Fixed(client) => client.get_connection_info().redis_settings().db(),
            Target::Master(_) => 0,
        }
    }
}

impl Target {
    /// Whether it is still there.
    fn is_still(&self, address: &Address) -> bool {
        match self {
            Self::Fixed(_) => true,
            Self::Master(master) => master.known_address().as_ref() == Some(address),
        }
    }

    async fn connect(&self, timeouts: Timeouts) -> RedisResult<(Address, MultiplexedConnection)> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeouts.connect))
            .set_response_timeout(Some(timeouts.command))
            .set_pipeline_buffer_size(PIPELINE_BUFFER);
        let open = async |client: &Client| {
            client.get_multiplexed_async_connection_with_config(&config).await
        };
        let master = match self {
            Self::Fixed(client) => return Ok((Address::from(""), open(client).await?)),
            Self::Master(master) => master,
        };
        let connect = async {
            loop {
                let to = master.address().await?;
                let mut connection = open(&master.client_at(&to)?).await?;
                ensure_master(&mut connection).await?;
                // Another one may have been named meanwhile.
                if self.is_still(&to) {
                    return Ok((to, connection));
                }
            }
        };
        // The search, and opening the connection.
        let connected = tokio::time::timeout(timeouts.connect * 2, connect).await;
        let connected = connected.unwrap_or_else(|_| Err(no_master("it does not answer")));
        connected.map_err(|error: RedisError| {
            master.mark_stale();
            // A refused connection is known to be one; of others it has to be said that no command
            // was sent.
            let broken = error.is_io_error() && !error.is_connection_refusal();
            if broken { no_master_because(&error) } else { error }
        })
    }
}

/// A command under way. Given up by its caller after half of the time limit or more, it counts as not
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

/// A script's error of Redis 6 has another code, and the command's own one in its text.
fn sign_of_code(code: Option<&str>, details: Option<&str>) -> Sign {
    let in_script = details.is_some_and(|details| details.contains("READONLY"));
    if matches!(code, Some("READONLY" | "MASTERDOWN" | "LOADING")) || in_script {
        Sign::Replaced
    } else {
        Sign::Good
    }
}
