//! The connection for commands to the master that Sentinel monitors: opened when a command needs it,
//! left when another master is known, closed when an error may mean that there is one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt, WeakShared};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind,
    Value,
};

use crate::connection::address::Address;
use crate::connection::sentinel::{Master, ensure_master, no_master, no_master_because};
use crate::connection::settings::PIPELINE_BUFFER;

/// The connection for commands to the current master.
#[derive(Clone)]
pub(crate) struct MasterLink {
    master: Arc<Master>,
    timeout: Duration,
    slot: Arc<Mutex<Slot>>,
}

#[derive(Default)]
struct Slot {
    connection: Option<MasterConnection>,
    /// How many have been opened.
    opened: u64,
    /// The attempt under way to open one.
    attempt: Option<WeakShared<BoxFuture<'static, RedisResult<MasterConnection>>>>,
}

#[derive(Clone)]
struct MasterConnection {
    /// So that an error closes only the connection on which it occurred, not its successor.
    number: u64,
    to: Address,
    connection: MultiplexedConnection,
}

impl MasterLink {
    /// To the master that `master` finds; each command gets an answer within `timeout`. Opens nothing
    /// yet.
    pub(crate) fn new(master: Arc<Master>, timeout: Duration) -> Self {
        Self { master, timeout, slot: Arc::default() }
    }

    /// Close the connection: the next command asks the sentinels first.
    pub(crate) fn mark_stale(&self) {
        self.slot().connection = None;
        self.master.mark_stale();
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
        if slot.connection.as_ref().is_some_and(|current| current.number == number) {
            slot.connection = None;
            self.master.mark_stale();
        }
    }

    /// The connection to the known master. Commands that have to wait for one share the attempt to open
    /// it, which ends when none of them waits any more.
    async fn connection(&self) -> RedisResult<MasterConnection> {
        let attempt = {
            let mut slot = self.slot();
            if let Some(current) = &slot.connection
                && self.leads_to_master(&current.to)
            {
                return Ok(current.clone());
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

    /// Open a connection, within the time that the search and opening it may take together.
    async fn open(self) -> RedisResult<MasterConnection> {
        let limit = self.master.connect_timeout() * 2;
        let opened = tokio::time::timeout(limit, self.connect()).await;
        let opened = opened.unwrap_or_else(|_| Err(no_master("it does not answer")));
        let mut slot = self.slot();
        slot.attempt = None;
        match opened {
            Ok((to, connection)) => {
                slot.opened += 1;
                let connection = MasterConnection { number: slot.opened, to, connection };
                slot.connection = Some(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                self.master.mark_stale();
                // A refused connection is known to be one; of others it has to be said that no command
                // was sent.
                let broken = error.is_io_error() && !error.is_connection_refusal();
                Err(if broken { no_master_because(&error) } else { error })
            }
        }
    }

    async fn connect(&self) -> RedisResult<(Address, MultiplexedConnection)> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.master.connect_timeout()))
            .set_response_timeout(Some(self.timeout))
            .set_pipeline_buffer_size(PIPELINE_BUFFER);
        loop {
            let to = self.master.address().await?;
            let client = self.master.client(&to)?;
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config).await?;
            ensure_master(&mut connection).await?;
            // Another one may have been named meanwhile.
            if self.leads_to_master(&to) {
                return Ok((to, connection));
            }
        }
    }

    fn leads_to_master(&self, address: &Address) -> bool {
        self.master.known_address().as_ref() == Some(address)
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
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
