//! The consumer of this process: it reads its own pending entries first (after a start, a failure, when some were
//! taken over, and once a second), then new ones, and has them committed. It reads on a connection of its own, because
//! a blocking read keeps the commands behind it waiting too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value};

use super::entry::{Entry, read_entries};
use super::names::{CONSUMERS, GROUP, STREAM};
use super::node::StreamNode;
use crate::error::Error;
use crate::scripts;

/// How long Redis waits for new entries before it replies that there are none: a stop can take that long.
const BLOCK: Duration = Duration::from_millis(500);

/// How often the consumer reads its own pending entries without a reason: a Redis that was stopped for a while may
/// execute a read after its connection was closed, and deliver entries into no reply.
const OWN_PENDING_EVERY: Duration = Duration::from_secs(1);

/// Pause after a small batch. Its buyers have their answers already, and a larger one costs less per order.
const GATHER: Duration = Duration::from_millis(5);

/// Pauses after failures: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Tries to commit the last entries when the process stops; then they are left to other nodes.
const LAST_TRIES: u32 = 3;

impl StreamNode {
    /// Consumes until the process stops.
    pub(super) async fn consume(self: Arc<Self>) {
        let (mut connection, mut own_read) = (None, Instant::now());
        let mut pause = PAUSES.0;
        let mut logged = false;
        while !self.is_stopped() {
            match self.consume_once(&mut connection, &mut own_read).await {
                Ok(()) => (pause, logged) = (PAUSES.0, false),
                Err(error) => {
                    if !logged {
                        logged = true;
                        tracing::warn!(%error, "the stream is not consumed; trying again");
                    }
                    connection = None;
                    // Whatever was delivered and not acknowledged is pending under our name.
                    self.read_own_pending_soon();
                    self.maintenance_due.notify_one();
                    self.sleep(pause).await;
                    pause = (2 * pause).min(PAUSES.1);
                }
            }
        }
        self.leave().await;
    }

    /// Commits what is pending under our name, if anything may be, and then what is new. `own_read` is when the own
    /// pending entries were last read.
    async fn consume_once(
        &self,
        connection: &mut Option<MultiplexedConnection>,
        own_read: &mut Instant,
    ) -> Result<(), Error> {
        if self.take_own_pending() || own_read.elapsed() >= OWN_PENDING_EVERY {
            *own_read = Instant::now();
            self.commit_own_pending().await?;
        }
        let reader = match connection {
            Some(reader) => reader,
            None => connection.insert(self.connect().await?),
        };
        let entries = self.read_new(reader).await?;
        if entries.is_empty() {
            return Ok(());
        }
        let few = entries.len() < self.limits.batch / 4;
        if self.commit_entries(entries, false).await? > 0 {
            self.read_own_pending_soon();
        }
        if few {
            self.sleep(GATHER).await;
        }
        Ok(())
    }

    /// Commits everything that is pending under our name; an entry that failed because of itself stays, for now.
    async fn commit_own_pending(&self) -> Result<(), Error> {
        let mut after = "0".to_owned();
        loop {
            let read = self.read().arg("STREAMS").arg(STREAM).arg(&after).to_owned();
            let reply: Value = read.query_async(&mut self.redis.clone()).await?;
            let entries = read_entries(&reply);
            let Some(last) = entries.last() else { return Ok(()) };
            after.clone_from(&last.id);
            if self.commit_entries(entries, true).await? > 0 {
                self.read_own_pending_soon();
            }
        }
    }

    async fn read_new(&self, connection: &mut MultiplexedConnection) -> Result<Vec<Entry>, Error> {
        let block = BLOCK.as_millis() as u64;
        let read =
            self.read().arg("BLOCK").arg(block).arg("STREAMS").arg(STREAM).arg(">").to_owned();
        let limit = BLOCK + self.limits.redis_timeout;
        let reply: Value = tokio::time::timeout(limit, read.query_async(connection))
            .await
            .map_err(|_| Error::Unavailable("Redis"))??;
        Ok(read_entries(&reply))
    }

    fn read(&self) -> Cmd {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg(&self.consumer).arg("COUNT").arg(self.limits.batch);
        read
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Error> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limits.redis_timeout))
            // `read_new` has a time limit of its own.
            .set_response_timeout(None);
        Ok(self.client.get_multiplexed_async_connection_with_config(&config).await?)
    }

    /// Commits what is left under our name and leaves the group.
    async fn leave(&self) {
        for _ in 0..LAST_TRIES {
            match self.commit_own_pending().await {
                Ok(()) => break,
                Err(error) => tracing::warn!(%error, "the last entries are not committed yet"),
            }
        }
        let removed: redis::RedisResult<i64> = scripts::STREAM_LEAVE
            .key(STREAM)
            .key(CONSUMERS)
            .arg(GROUP)
            .arg(&self.consumer)
            .invoke_async(&mut self.redis.clone())
            .await;
        match removed {
            Ok(1) => {}
            Ok(_) => tracing::warn!("some entries are left to another node"),
            Err(error) => tracing::warn!(%error, "the group could not be left"),
        }
    }
}
