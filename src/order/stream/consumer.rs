//! The consumer of this process: its own pending entries first (after a start, a failure, when some were
//! taken over, and once a second), then what is new. It reads on a connection of its own, because a read
//! that waits for entries keeps the commands behind it waiting too.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value};

use super::entry::{Entry, read_entries};
use super::{CONSUMERS, GROUP, Inner, STREAM, scripts};
use crate::error::Error;

/// How long Redis waits for new entries before it says that there are none: so long a stop can take.
const BLOCK: Duration = Duration::from_millis(500);

/// How often it is looked for entries under our name that no reply brought us: a Redis that stood still may read
/// a request after its connection was given up, and hand out entries to nobody.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Pause after a small batch. Its buyers were answered long ago, and a fuller one costs less an order.
const GATHER: Duration = Duration::from_millis(5);

/// Pauses after failures: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How often the last entries are tried when the process stops; then they are left to others.
const LAST_TRIES: u32 = 3;

impl Inner {
    /// Consumes until the process stops.
    pub(super) async fn consume(self: Arc<Self>) {
        let (mut connection, mut looked) = (None, Instant::now());
        let mut pause = PAUSES.0;
        let mut told = false;
        while !self.stopped() {
            match self.turn(&mut connection, &mut looked).await {
                Ok(()) => (pause, told) = (PAUSES.0, false),
                Err(fault) => {
                    if !told {
                        told = true;
                        tracing::warn!(%fault, "the stream is not consumed; trying again");
                    }
                    connection = None;
                    // Whatever was delivered and not decided is pending under our name.
                    self.read_own_again();
                    self.look.notify_one();
                    self.pause(pause).await;
                    pause = (2 * pause).min(PAUSES.1);
                }
            }
        }
        self.leave().await;
    }

    /// Decides what is pending under our name, if anything may be, and then what is new. At `looked` it
    /// was last seen what is.
    async fn turn(
        &self,
        connection: &mut Option<MultiplexedConnection>,
        looked: &mut Instant,
    ) -> Result<(), Error> {
        if self.taken_over.swap(false, Ordering::SeqCst) || looked.elapsed() >= LOOK_EVERY {
            *looked = Instant::now();
            self.work_off_own().await?;
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
        if self.decide(entries, false).await? > 0 {
            self.read_own_again();
        }
        if few {
            self.pause(GATHER).await;
        }
        Ok(())
    }

    /// Decides everything that is pending under our name; what failed by its own fault stays, for now.
    async fn work_off_own(&self) -> Result<(), Error> {
        let mut after = "0".to_owned();
        loop {
            let read = self.read().arg("STREAMS").arg(STREAM).arg(&after).to_owned();
            let reply: Value = read.query_async(&mut self.redis.clone()).await?;
            let entries = read_entries(&reply);
            let Some(last) = entries.last() else { return Ok(()) };
            after.clone_from(&last.id);
            if self.decide(entries, true).await? > 0 {
                self.read_own_again();
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
        read.arg("GROUP").arg(GROUP).arg(&self.name).arg("COUNT").arg(self.limits.batch);
        read
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Error> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limits.redis_timeout))
            // The read itself says how long it waits, and is bounded where it is made.
            .set_response_timeout(None);
        Ok(self.client.get_multiplexed_async_connection_with_config(&config).await?)
    }

    /// Decides what is left under our name and leaves the group.
    async fn leave(&self) {
        for _ in 0..LAST_TRIES {
            match self.work_off_own().await {
                Ok(()) => break,
                Err(fault) => tracing::warn!(%fault, "the last entries are not decided yet"),
            }
        }
        let left: redis::RedisResult<i64> = scripts::LEAVE
            .key(STREAM)
            .key(CONSUMERS)
            .arg(GROUP)
            .arg(&self.name)
            .invoke_async(&mut self.redis.clone())
            .await;
        match left {
            Ok(1) => {}
            Ok(_) => tracing::warn!("some entries are left to another node"),
            Err(fault) => tracing::warn!(%fault, "the group could not be left"),
        }
    }
}
