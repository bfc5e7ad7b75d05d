//! Replica acknowledgement: after a lock was taken, wait until so many replicas have it (WAIT).
//!
//! WAIT is about what its own connection has written, and it holds that connection up. So it has a
//! connection for itself, on which the lock's key is written once more, without changing it.
//! What the replicas acknowledge then comes after the acquire in the master's one stream.
//!
//! Source: <https://redis.io/docs/latest/commands/wait/>.

use std::time::Duration;

use redis::RedisResult;

use super::super::config::Replicas;
use super::{Backend, Connection, Failure, Link, LockConfig, Server, bounded};

/// Writes the key's own expiry over itself.
const TOUCH: &str = include_str!("../../lua/touch.lua");

/// The connection for WAIT, and what to wait for.
pub(super) struct Acknowledging {
    link: Link,
    replicas: Replicas,
    limit: Duration,
}

impl Acknowledging {
    /// `None` unless the configuration asks for it.
    pub(super) fn new(server: Server, config: &LockConfig) -> RedisResult<Option<Self>> {
        let Some(replicas) = config.replicas else { return Ok(None) };
        let limit = replicas.timeout + config.command_timeout;
        let patient = LockConfig { command_timeout: limit, ..config.clone() };
        let link = Backend::new(server, &patient)?.link()?;
        Ok(Some(Self { link, replicas, limit }))
    }
}

impl Connection {
    /// See that replicas have what was acquired under `key`, or undo it.
    ///
    /// # Errors
    /// [`Failure::NotDone`] when it was undone; [`Failure::Unknown`] when that failed too, so that
    /// the caller has to go on trying.
    pub(in super::super) async fn kept_if_acknowledged<T>(
        &self,
        key: &str,
        undo: impl Future<Output = Result<T, Failure>>,
    ) -> Result<(), Failure> {
        let Err(why) = self.acknowledged(key).await else { return Ok(()) };
        match undo.await {
            Ok(_) => Err(Failure::NotDone(why)),
            Err(failure) => Err(Failure::Unknown(format!("{why}; {}", failure.cause()))),
        }
    }

    /// Return when as many replicas as configured have everything that was done to `key` so far.
    /// Returns at once if none are asked for.
    ///
    /// # Errors
    /// In words, when too few did in time, or the key is gone meanwhile.
    async fn acknowledged(&self, key: &str) -> Result<(), String> {
        let Some(acknowledging) = &self.acknowledging else { return Ok(()) };
        let Acknowledging { link, replicas, limit } = acknowledging;
        let wait = u64::try_from(replicas.timeout.as_millis()).unwrap_or(u64::MAX);
        let mut both = redis::pipe();
        both.cmd("EVAL").arg(TOUCH).arg(1).arg(key);
        both.cmd("WAIT").arg(replicas.count).arg(wait);
        let reply: Result<(i64, u32), _> =
            bounded(link, *limit, async |mut c, _| both.query_async(&mut c).await).await;
        match reply {
            Ok((1, have)) if have >= replicas.count => Ok(()),
            Ok((1, have)) => {
                Err(format!("{have} of {} replicas acknowledged it in time", replicas.count))
            }
            Ok(_) => Err("it was gone before replicas acknowledged it".to_owned()),
            Err(failure) => Err(format!("no word from the replicas: {}", failure.cause())),
        }
    }
}
