//! Commands of the semaphore, and the keys and channel that belong to its name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::commands::lock::DENIED;
use crate::config::millis;
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::error::Error;
use crate::name::LockName;
use crate::scripts::script;

/// Redisson's prefix of the channel of a semaphore.
const CHANNEL_PREFIX: &str = "redisson_sc";

/// How long the record of an acquire lasts.
pub(crate) const ACQUIRE_RECORD_TTL: Duration = Duration::from_secs(600);

/// How long the record of a release lasts.
pub(crate) const RELEASE_RECORD_TTL: Duration = Duration::from_secs(60);

script!(SET = "semaphore_set.lua");
script!(ACQUIRE = "semaphore_acquire.lua");
script!(RELEASE = "semaphore_release.lua");

/// A semaphore's name with its channel.
#[derive(Clone)]
pub(crate) struct SemaphoreName {
    name: LockName,
    channel: Arc<str>,
}

/// On which condition permits are released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseIf {
    /// The record says that they were acquired. Can be repeated for as long as records last.
    Acquired,
    /// The semaphore exists.
    Exists,
    /// Always; the semaphore is created if it does not exist.
    Always,
}

impl SemaphoreName {
    pub(crate) fn new(name: &str) -> Self {
        let name = LockName::new(name);
        let channel = name.prefixed(CHANNEL_PREFIX).into();
        Self { name, channel }
    }

    /// The same rules as for a lock.
    ///
    /// # Errors
    /// [`Error::InvalidName`].
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.name.check()
    }

    /// The Redis key.
    pub(crate) fn key(&self) -> &str {
        self.name.key()
    }

    /// The channel on which released permits are published.
    pub(crate) fn channel(&self) -> &Arc<str> {
        &self.channel
    }

    /// A further key of the semaphore, in the same cluster slot.
    pub(crate) fn suffixed(&self, suffix: &str) -> String {
        format!("{}:{suffix}", self.name.hash_tagged())
    }

    /// The key of the record of an acquire or release.
    fn record(&self, token: &str) -> String {
        self.suffixed(&format!("permit:{token}"))
    }
}

impl CommandConnection {
    /// Create the semaphore. `false`: it exists.
    pub(crate) async fn semaphore_set(
        &self,
        name: &SemaphoreName,
        permits: u32,
    ) -> Result<bool, Failure> {
        let mut call = SET.key(name.key());
        call.arg(permits).arg(&**name.channel()).arg(self.publish_commands());
        let reply: (bool, bool) = self
            .bounded(async |mut c, resent| Ok((call.invoke_async(&mut c).await?, resent)))
            .await?;
        match reply {
            (false, true) => Err(Failure::Unknown("an earlier sending may have set it".into())),
            (set, _) => Ok(set),
        }
    }

    /// Acquire permits. `false`: too few are free.
    pub(crate) async fn semaphore_acquire(
        &self,
        name: &SemaphoreName,
        token: &str,
        permits: u32,
    ) -> Result<bool, Failure> {
        let mut call = ACQUIRE.key(name.key());
        let record = name.record(token);
        call.key(&record).arg(permits).arg(millis(ACQUIRE_RECORD_TTL));
        let acquired = self.invoke(&call).await?;
        if acquired {
            // The record was written last: a replica that has it has everything.
            let undo = self.semaphore_release(name, token, permits.into(), ReleaseIf::Acquired);
            self.ensure_replicated(&record, undo).await?;
        }
        Ok(acquired)
    }

    /// Release permits. `false`: the condition does not hold.
    pub(crate) async fn semaphore_release(
        &self,
        name: &SemaphoreName,
        token: &str,
        permits: i64,
        condition: ReleaseIf,
    ) -> Result<bool, Failure> {
        let condition = match condition {
            ReleaseIf::Acquired => "taken",
            ReleaseIf::Exists => "exists",
            ReleaseIf::Always => "always",
        };
        let mut call = RELEASE.key(name.key());
        call.key(name.record(token)).arg(permits).arg(millis(RELEASE_RECORD_TTL)).arg(condition);
        call.arg(&**name.channel()).arg(self.publish_commands());
        let reply: i64 = self.invoke(&call).await?;
        if reply & DENIED != 0 {
            self.refusals.notification(name.channel());
        }
        Ok(reply != 0)
    }

    /// How many permits are free; `None` when there is no semaphore.
    pub(crate) async fn semaphore_available(
        &self,
        name: &SemaphoreName,
    ) -> Result<Option<i64>, Failure> {
        self.query(redis::cmd("GET").arg(name.key())).await
    }
}

impl fmt::Debug for SemaphoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::SemaphoreName;

    #[test]
    fn channels_and_records_share_the_slot_of_the_name() {
        let name = SemaphoreName::new("pool");
        assert_eq!(&**name.channel(), "redisson_sc:{pool}");
        assert_eq!(name.record("7"), "{pool}:permit:7");
        let name = SemaphoreName::new("pool:{7}");
        assert_eq!(&**name.channel(), "redisson_sc:pool:{7}");
        assert_eq!(name.record("7"), "pool:{7}:permit:7");
        assert!(SemaphoreName::new("pool:{7").check().is_err());
    }
}
