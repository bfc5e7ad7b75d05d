//! Replica acknowledgement: waits until enough replicas have received an acquire (`WAIT`).
//!
//! WAIT covers what its own connection has written, and it blocks that connection. So it has a
//! connection of its own, on which the lock's key is written once more without being changed: what
//! the replicas acknowledge then comes after the acquire in the master's replication stream.
//!
//! Source: <https://redis.io/docs/latest/commands/wait/>.

use std::time::Duration;

use redis_link::Redis;

use crate::config::{LockConfig, Replicas, millis};
use crate::connection::bounded::bounded;

/// Sets the key's expiry to the value it has.
const TOUCH: &str = include_str!("../../lua/touch.lua");

/// The connection for WAIT, and how many replicas to wait for.
pub(crate) struct ReplicaAcknowledgement {
    redis: Redis,
    replicas: Replicas,
    /// Replica timeout plus command timeout.
    timeout: Duration,
}

impl ReplicaAcknowledgement {
    /// `None` unless the configuration asks for it.
    pub(crate) fn new(redis: &Redis, config: &LockConfig) -> Option<Self> {
        let replicas = config.replicas?;
        let timeout = replicas.timeout + config.command_timeout;
        Some(Self {
            redis: redis.with_command_timeout(timeout),
            replicas,
            timeout,
        })
    }

    /// Wait until the configured number of replicas has everything that was done to `key` so far.
    ///
    /// # Errors
    /// The reason in words, when too few acknowledged in time, or the key no longer exists.
    pub(crate) async fn wait(&self, key: &str) -> Result<(), String> {
        let replicas = self.replicas;
        let mut both = redis::pipe();
        both.cmd("EVAL").arg(TOUCH).arg(1).arg(key);
        both.cmd("WAIT")
            .arg(replicas.count)
            .arg(millis(replicas.timeout));
        let reply: Result<(i64, u32), _> = bounded(&self.redis, self.timeout, async |mut c, _| {
            both.query_async(&mut c).await
        })
        .await;
        match reply {
            Ok((1, have)) if have >= replicas.count => Ok(()),
            Ok((1, have)) => Err(format!(
                "{have} of {} replicas acknowledged it in time",
                replicas.count
            )),
            Ok(_) => Err("its key was gone before replicas acknowledged it".to_owned()),
            Err(failure) => Err(format!("no answer about the replicas: {}", failure.cause())),
        }
    }
}
