//! Commands of the `SET NX` lock.

use std::sync::Arc;
use std::time::Duration;

use crate::commands::generation::Generation;
use crate::config::millis;
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::error::Error;
use crate::name::Name;
use crate::scripts::script;

script!(ACQUIRE = "generation.lua", "setnx_acquire.lua");
script!(RELEASE = "setnx_release.lua");

/// One acquire of a `SET NX` lock. No other acquire has its token, so that only the acquire itself can
/// do harm when it arrives late, not its release.
#[derive(Clone)]
pub(crate) struct SetNxAcquire {
    pub(crate) name: Name,
    pub(crate) token: String,
    generation: Arc<Generation>,
}

impl SetNxAcquire {
    pub(crate) fn new(name: Name, token: String) -> Self {
        let generation = Arc::new(Generation::new(&name, &token));
        Self {
            name,
            token,
            generation,
        }
    }
}

impl CommandConnection {
    /// Whether the key can be used. On a cluster the key of the generation has to be in the same slot.
    pub(crate) fn check_setnx(&self, name: &Name) -> Result<(), Error> {
        if self.redis().is_cluster() {
            name.check()
        } else {
            Ok(())
        }
    }

    /// `true`: acquired.
    pub(crate) async fn setnx_acquire(
        &self,
        acquire: &SetNxAcquire,
        lease: Duration,
    ) -> Result<bool, Failure> {
        let (acquired, _) = self
            .invoke_in(&acquire.generation, || {
                let mut call = ACQUIRE.key(acquire.name.key());
                call.arg(&acquire.token).arg(millis(lease));
                call
            })
            .await?;
        Ok(acquired)
    }

    /// After an acquire without an answer: keep late copies of it from taking effect, and delete the key
    /// that it may have set.
    pub(crate) async fn setnx_end(&self, acquire: &SetNxAcquire) -> Result<bool, Failure> {
        self.raise(&acquire.generation).await?;
        self.setnx_release(acquire).await
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
