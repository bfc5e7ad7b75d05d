//! The commands of the leased semaphore on the wire. What they mean to a caller is in
//! [`super::leased_semaphore`].

use std::sync::LazyLock;
use std::time::Duration;

use redis::Script;
use uuid::Uuid;

use super::conn::{Connection, Failure, millis};
use super::semaphore_calls::SemaphoreName;

static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../lua/permit_acquire.lua")));
static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../lua/permit_release.lua")));
static EXTEND: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../lua/permit_extend.lua")));
static AVAILABLE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../lua/permit_available.lua")));

impl Connection {
    /// Take one permit. `None`: taken. `Some`: until when the next expires, in milliseconds; below
    /// zero: none will.
    pub(super) async fn permit_acquire(
        &self,
        name: &SemaphoreName,
        id: Uuid,
        lease: Duration,
    ) -> Result<Option<i64>, Failure> {
        let mut call = ACQUIRE.key(name.key());
        call.key(name.beside("timeout")).arg(&id.as_bytes()[..]).arg(millis(lease));
        call.arg(&**name.channel()).arg(self.publishing());
        let reply: i64 =
            self.bounded(self.timeout(), async |mut c, _| call.invoke_async(&mut c).await).await?;
        Ok(Some(reply).filter(|&reply| reply != 0))
    }

    /// Give a permit back. `false`: too late.
    pub(super) async fn permit_release(
        &self,
        name: &SemaphoreName,
        id: Uuid,
    ) -> Result<bool, Failure> {
        let mut call = RELEASE.key(name.key());
        call.key(name.beside("timeout")).arg(&id.as_bytes()[..]);
        call.arg(&**name.channel()).arg(self.publishing());
        self.bounded(self.timeout(), async |mut c, again| {
            let in_time: bool = call.invoke_async(&mut c).await?;
            // What the first sending has removed, the second cannot find.
            Ok(in_time || again)
        })
        .await
    }

    /// Give a permit a new lease. `false`: too late.
    pub(super) async fn permit_extend(
        &self,
        name: &SemaphoreName,
        id: Uuid,
        lease: Duration,
    ) -> Result<bool, Failure> {
        let mut call = EXTEND.key(name.beside("timeout"));
        call.arg(&id.as_bytes()[..]).arg(millis(lease));
        self.bounded(self.timeout(), async |mut c, _| call.invoke_async(&mut c).await).await
    }

    /// How many permits are free.
    pub(super) async fn permits_available(&self, name: &SemaphoreName) -> Result<i64, Failure> {
        let mut call = AVAILABLE.key(name.key());
        call.key(name.beside("timeout"));
        self.bounded(self.timeout(), async |mut c, _| call.invoke_async(&mut c).await).await
    }
}
