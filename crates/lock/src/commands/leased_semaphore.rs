//! Commands of the leased semaphore, whose permits have ids and expire.

use std::time::Duration;

use redis::ScriptInvocation;
use uuid::Uuid;

use crate::commands::Try;
use crate::commands::lock::DENIED;
use crate::commands::semaphore::channel;
use crate::config::millis;
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::name::Name;
use crate::scripts::script;

/// The ids of permits that were acquired together: 16 bytes each, as Redisson's. They share the first
/// twelve, which are random, and count up in the last four, so that a command has the same length
/// for any number of permits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PermitIds {
    prefix: [u8; 12],
    first: u32,
    count: u32,
}

impl PermitIds {
    pub(crate) fn new(count: u32) -> Self {
        let mut prefix = [0; 12];
        prefix.copy_from_slice(&Uuid::new_v4().as_bytes()[..12]);
        Self {
            prefix,
            first: 0,
            count,
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Split the last `count` off; `None` if there are fewer.
    pub(crate) fn split(&mut self, count: u32) -> Option<Self> {
        self.count = self.count.checked_sub(count)?;
        Some(Self {
            prefix: self.prefix,
            first: self.first + self.count,
            count,
        })
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Uuid> {
        (self.first..self.first + self.count).map(move |number| {
            let mut id = [0; 16];
            id[..12].copy_from_slice(&self.prefix);
            id[12..].copy_from_slice(&number.to_be_bytes());
            Uuid::from_bytes(id)
        })
    }

    /// Their arguments of the scripts for permits that are held, of which there is one at least.
    fn add_to(self, call: &mut ScriptInvocation<'_>) {
        call.arg(self.first)
            .arg(self.first + self.count - 1)
            .arg(&self.prefix[..]);
    }
}

script!(ACQUIRE = "notify.lua", "permit_acquire.lua");
script!(RELEASE = "notify.lua", "permit_release.lua");
script!(EXTEND = "permit_extend.lua");
script!(AVAILABLE = "permit_available.lua");

impl CommandConnection {
    /// Acquire permits. Refused until enough permits have expired.
    pub(crate) async fn permit_acquire(
        &self,
        name: &Name,
        ids: PermitIds,
        lease: Duration,
    ) -> Result<Try<()>, Failure> {
        let mut call = self.notifying(&ACQUIRE, name, "", &channel(name));
        call.key(name.suffixed("timeout"))
            .arg(ids.count)
            .arg(&ids.prefix[..])
            .arg(millis(lease));
        let reply: i64 = self.invoke(&call).await?;
        Ok(if reply == 0 {
            Try::Acquired(())
        } else {
            Try::Refused(reply)
        })
    }

    /// Release permits. `false`: their lease had ended.
    pub(crate) async fn permit_release(
        &self,
        name: &Name,
        ids: PermitIds,
    ) -> Result<bool, Failure> {
        let mut call = self.notifying(&RELEASE, name, "", &channel(name));
        call.key(name.suffixed("timeout"));
        ids.add_to(&mut call);
        self.bounded(async |mut c, resent| {
            let reply: i64 = call.invoke_async(&mut c).await?;
            if reply & DENIED != 0 {
                self.refusals.notification(&channel(name));
            }
            // What the first sending has removed, the second cannot find.
            Ok(reply & 1 != 0 || resent)
        })
        .await
    }

    /// Set the lease of permits, counted from now. `false`: it had ended.
    pub(crate) async fn permit_extend(
        &self,
        name: &Name,
        ids: PermitIds,
        lease: Duration,
    ) -> Result<bool, Failure> {
        let mut call = EXTEND.key(name.suffixed("timeout"));
        ids.add_to(&mut call);
        call.arg(millis(lease));
        self.invoke(&call).await
    }

    pub(crate) async fn permits_available(&self, name: &Name) -> Result<i64, Failure> {
        let mut call = AVAILABLE.key(name.key());
        call.key(name.suffixed("timeout"));
        self.invoke(&call).await
    }
}
