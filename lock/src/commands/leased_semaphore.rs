//! Commands of the leased semaphore, whose permits have ids and expire.

use std::time::Duration;

use uuid::Uuid;

use crate::commands::lock::DENIED;
use crate::commands::semaphore::SemaphoreName;
use crate::config::millis;
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::scripts::script;

script!(ACQUIRE = "permit_acquire.lua");
script!(RELEASE = "permit_release.lua");
script!(EXTEND = "permit_extend.lua");
script!(AVAILABLE = "permit_available.lua");

impl CommandConnection {
    /// Acquire one permit. `None`: acquired. `Some`: milliseconds until the next permit expires,
    /// negative if none will.
    pub(crate) async fn permit_acquire(
        &self,
        name: &SemaphoreName,
        id: Uuid,
        lease: Duration,
    ) -> Result<Option<i64>, Failure> {
        let mut call = ACQUIRE.key(name.key());
        call.key(name.suffixed("timeout")).arg(&id.as_bytes()[..]).arg(millis(lease));
        call.arg(&**name.channel()).arg(self.publish_commands());
        let reply: i64 = self.invoke(&call).await?;
        Ok(Some(reply).filter(|&reply| reply != 0))
    }

    /// Release a permit. `false`: its lease had ended.
    pub(crate) async fn permit_release(
        &self,
        name: &SemaphoreName,
        id: Uuid,
    ) -> Result<bool, Failure> {
        let mut call = RELEASE.key(name.key());
        call.key(name.suffixed("timeout")).arg(&id.as_bytes()[..]);
        call.arg(&**name.channel()).arg(self.publish_commands());
        self.bounded(async |mut c, resent| {
            let reply: i64 = call.invoke_async(&mut c).await?;
            if reply & DENIED != 0 {
                self.refusals.notification(name.channel());
            }
            // What the first sending has removed, the second cannot find.
            Ok(reply & 1 != 0 || resent)
        })
        .await
    }

    /// Set a permit's lease, counted from now. `false`: its lease had ended.
    pub(crate) async fn permit_extend(
        &self,
        name: &SemaphoreName,
        id: Uuid,
        lease: Duration,
    ) -> Result<bool, Failure> {
        let mut call = EXTEND.key(name.suffixed("timeout"));
        call.arg(&id.as_bytes()[..]).arg(millis(lease));
        self.invoke(&call).await
    }

    /// How many permits are free.
    pub(crate) async fn permits_available(&self, name: &SemaphoreName) -> Result<i64, Failure> {
        let mut call = AVAILABLE.key(name.key());
        call.key(name.suffixed("timeout"));
        self.invoke(&call).await
    }
}
