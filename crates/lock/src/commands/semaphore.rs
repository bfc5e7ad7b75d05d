//! Commands of the semaphore.

use std::time::Duration;

use crate::commands::lock::DENIED;
use crate::config::millis;
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::name::Name;
use crate::scripts::script;

pub(crate) const ACQUIRE_RECORD_TTL: Duration = Duration::from_secs(600);

pub(crate) const RELEASE_RECORD_TTL: Duration = Duration::from_secs(60);

script!(SET = "notify.lua", "semaphore_set.lua");
script!(ACQUIRE = "semaphore_acquire.lua");
script!(RELEASE = "notify.lua", "semaphore_release.lua");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseIf {
    /// The record says that they were acquired. Can be repeated for as long as records last.
    Acquired,
    Exists,
    /// Always; the semaphore is created if it does not exist.
    Always,
}

/// The channel on which released permits are published.
pub(crate) fn channel(name: &Name) -> String {
    name.prefixed("redisson_sc")
}

/// The key of the record of an acquire or release.
fn record(name: &Name, token: &str) -> String {
    name.suffixed(&format!("permit:{token}"))
}

impl CommandConnection {
    /// Create the semaphore. `false`: it exists.
    pub(crate) async fn semaphore_set(&self, name: &Name, permits: u32) -> Result<bool, Failure> {
        let mut call = self.notifying(&SET, name, "", &channel(name));
        call.arg(permits);
        let reply: (bool, bool) = self
            .bounded(async |mut c, resent| Ok((call.invoke_async(&mut c).await?, resent)))
            .await?;
        match reply {
            (false, true) => Err(Failure::Unknown(
                "an earlier sending may have set it".into(),
            )),
            (set, _) => Ok(set),
        }
    }

    /// Acquire permits. `false`: too few are free.
    pub(crate) async fn semaphore_acquire(
        &self,
        name: &Name,
        token: &str,
        permits: u32,
    ) -> Result<bool, Failure> {
        let mut call = ACQUIRE.key(name.key());
        let record = record(name, token);
        call.key(&record)
            .arg(permits)
            .arg(millis(ACQUIRE_RECORD_TTL));
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
        name: &Name,
        token: &str,
        permits: i64,
        condition: ReleaseIf,
    ) -> Result<bool, Failure> {
        let condition = match condition {
            ReleaseIf::Acquired => "taken",
            ReleaseIf::Exists => "exists",
            ReleaseIf::Always => "always",
        };
        let mut call = self.notifying(&RELEASE, name, "", &channel(name));
        call.key(record(name, token))
            .arg(permits)
            .arg(millis(RELEASE_RECORD_TTL))
            .arg(condition);
        let reply: i64 = self.invoke(&call).await?;
        if reply & DENIED != 0 {
            self.refusals.notification(&channel(name));
        }
        Ok(reply != 0)
    }

    /// How many permits are free; `None` when there is no semaphore.
    pub(crate) async fn semaphore_available(&self, name: &Name) -> Result<Option<i64>, Failure> {
        self.query(redis::cmd("GET").arg(name.key())).await
    }
}
