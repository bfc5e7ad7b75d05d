//! The commands of the semaphore on the wire. What they mean to a caller is in
//! [`super::semaphore`].

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::Script;

use super::Error;
use super::conn::{Connection, Failure, millis};
use super::name::LockName;

/// What Redisson puts before a semaphore's name to make its channel.
const CHANNEL_PREFIX: &str = "redisson_sc";

/// How long it is remembered that an acquire took its permits.
pub(super) const TAKEN_FOR: Duration = Duration::from_secs(600);

/// How long it is remembered that permits were given back.
pub(super) const GIVEN_FOR: Duration = Duration::from_secs(60);

static SET: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../lua/semaphore_set.lua")));
static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../lua/semaphore_acquire.lua")));
static GIVE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../lua/semaphore_give.lua")));

/// A checked semaphore name with its channel.
#[derive(Clone)]
pub(super) struct SemaphoreName {
    name: LockName,
    channel: Arc<str>,
}

/// On which condition permits are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Give {
    /// If the record says that they were taken. Can be repeated for as long as records last.
    Taken,
    /// If there is such a semaphore.
    Exists,
    /// In any case; the semaphore is made if need be.
    Always,
}

impl SemaphoreName {
    /// Check a name; the same rules as for a lock.
    ///
    /// # Errors
    /// [`Error::InvalidName`].
    pub(super) fn new(name: &str) -> Result<Self, Error> {
        let name = LockName::new(name)?;
        let channel = name.prefixed(CHANNEL_PREFIX).into();
        Ok(Self { name, channel })
    }

    /// The Redis key.
    pub(super) fn key(&self) -> &str {
        self.name.key()
    }

    /// The channel on which permits are announced.
    pub(super) fn channel(&self) -> &Arc<str> {
        &self.channel
    }

    /// A key beside the semaphore's own, in the same slot of a cluster.
    pub(super) fn beside(&self, what: &str) -> String {
        format!("{}:{what}", self.name.suffixed())
    }

    /// The key under which an operation is remembered.
    fn record(&self, token: &str) -> String {
        self.beside(&format!("permit:{token}"))
    }
}

impl Connection {
    /// Make the semaphore. `false`: it exists.
    pub(super) async fn semaphore_set(
        &self,
        name: &SemaphoreName,
        permits: u32,
    ) -> Result<bool, Failure> {
        let mut call = SET.key(name.key());
        call.arg(permits).arg(&**name.channel()).arg(self.publishing());
        let reply: (bool, bool) = self
            .bounded(self.timeout(), async |mut c, again| {
                Ok((call.invoke_async(&mut c).await?, again))
            })
            .await?;
        match reply {
            (false, true) => Err(Failure::Unknown("an earlier sending may have set it".to_owned())),
            (set, _) => Ok(set),
        }
    }

    /// Take permits. `false`: too few are free.
    pub(super) async fn semaphore_acquire(
        &self,
        name: &SemaphoreName,
        token: &str,
        permits: u32,
    ) -> Result<bool, Failure> {
        let mut call = ACQUIRE.key(name.key());
        let record = name.record(token);
        call.key(&record).arg(permits).arg(millis(TAKEN_FOR));
        let taken =
            self.bounded(self.timeout(), async |mut c, _| call.invoke_async(&mut c).await).await?;
        if taken {
            // The record was written last: who has it has all.
            let undo = self.semaphore_give(name, token, permits.into(), Give::Taken);
            self.kept_if_acknowledged(&record, undo).await?;
        }
        Ok(taken)
    }

    /// Give permits. `false`: the condition does not hold.
    pub(super) async fn semaphore_give(
        &self,
        name: &SemaphoreName,
        token: &str,
        permits: i64,
        condition: Give,
    ) -> Result<bool, Failure> {
        let condition = match condition {
            Give::Taken => "taken",
            Give::Exists => "exists",
            Give::Always => "always",
        };
        let mut call = GIVE.key(name.key());
        call.key(name.record(token)).arg(permits).arg(millis(GIVEN_FOR)).arg(condition);
        call.arg(&**name.channel()).arg(self.publishing());
        self.bounded(self.timeout(), async |mut c, _| call.invoke_async(&mut c).await).await
    }

    /// How many permits are free; `None` when there is no semaphore.
    pub(super) async fn semaphore_free(
        &self,
        name: &SemaphoreName,
    ) -> Result<Option<i64>, Failure> {
        let mut get = redis::cmd("GET");
        get.arg(name.key());
        self.bounded(self.timeout(), async |mut c, _| get.query_async(&mut c).await).await
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
        let name = SemaphoreName::new("gate").unwrap();
        assert_eq!(&**name.channel(), "redisson_sc:{gate}");
        assert_eq!(name.record("7"), "{gate}:permit:7");
        let name = SemaphoreName::new("gate:{7}").unwrap();
        assert_eq!(&**name.channel(), "redisson_sc:gate:{7}");
        assert_eq!(name.record("7"), "gate:{7}:permit:7");
        assert!(SemaphoreName::new("gate:{7").is_err());
    }
}
