//! Commands of the `SET NX` lock.
//!
//! An acquire whose reply was lost may still be on its way, and would take the lock for nobody, for a whole
//! lease. Each acquire has a token of its own, and its *end* is a key with that token in its name: set once a
//! sending of the acquire was not answered, and confirmed, before its caller is told anything. From then on
//! no copy of it takes the lock, however late it comes.

use std::time::Duration;

use redis::{Cmd, RedisResult};
use redis_link::RoutedConnection;

use crate::config::millis;
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::error::Error;
use crate::name::Name;
use crate::scripts::script;

script!(ACQUIRE = "setnx_acquire.lua");
script!(RELEASE = "setnx_release.lua");

/// How long the end of an acquire is kept, in command timeouts and at least: longer than a copy may be late.
const KEEP: (u32, Duration) = (20, Duration::from_secs(120));

/// One acquire of a `SET NX` lock.
#[derive(Clone)]
pub(crate) struct SetNxAcquire {
    pub(crate) name: Name,
    pub(crate) token: String,
}

impl SetNxAcquire {
    fn end_key(&self) -> String {
        let prefix = self.name.prefixed("redisson_unlock_latch");
        format!("{prefix}:{}", self.token)
    }
}

impl CommandConnection {
    /// Whether the key can be used. On a cluster the end of an acquire has to be in its slot.
    pub(crate) fn check_setnx(&self, name: &Name) -> Result<(), Error> {
        if self.redis().is_cluster() {
            name.check()
        } else {
            Ok(())
        }
    }

    /// `true`: acquired, and no copy of it is on its way.
    pub(crate) async fn setnx_acquire(
        &self,
        acquire: &SetNxAcquire,
        lease: Duration,
    ) -> Result<bool, Failure> {
        let mut call = ACQUIRE.key(acquire.name.key());
        call.key(acquire.end_key())
            .arg(&acquire.token)
            .arg(millis(lease));
        self.bounded(async |mut c, resent| {
            let acquired: bool = call.invoke_async(&mut c).await?;
            if resent {
                self.end_acquire(&mut c, acquire).await?;
            }
            Ok(acquired)
        })
        .await
    }

    /// End an acquire without an answer, and delete what it may have set.
    pub(crate) async fn setnx_end(&self, acquire: &SetNxAcquire) -> Result<bool, Failure> {
        self.bounded(async |mut c, _| self.end_acquire(&mut c, acquire).await)
            .await?;
        self.setnx_release(acquire).await
    }

    async fn end_acquire(
        &self,
        connection: &mut RoutedConnection,
        acquire: &SetNxAcquire,
    ) -> RedisResult<()> {
        let keep = self.setnx_end_kept();
        let mut set = Cmd::new();
        set.arg("SET").arg(acquire.end_key()).arg("");
        set.arg("PX").arg(millis(keep));
        set.exec_async(connection).await
    }

    /// How long the end of an acquire is kept, after which no copy of it comes.
    pub(crate) fn setnx_end_kept(&self) -> Duration {
        KEEP.1.max(self.timeout().saturating_mul(KEEP.0))
    }

    /// Delete the key if its value is the token. `true`: deleted, or it may have been.
    pub(crate) async fn setnx_release(&self, acquire: &SetNxAcquire) -> Result<bool, Failure> {
        let mut call = RELEASE.key(acquire.name.key());
        call.arg(&acquire.token);
        self.bounded(async |mut c, resent| {
            let deleted: bool = call.invoke_async(&mut c).await?;
            Ok(deleted || resent)
        })
        .await
    }
}
