//! Which script does what for which member of the family: one call each for taking, giving back,
//! renewing and freeing by force. The scripts' own comments say what they promise.
//!
//! Every script is idempotent for the same arguments, as [`Connection::bounded`] demands.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Script, ScriptInvocation};

use super::claim::Claim;
use super::conn::{Connection, Failure, Renewal, UNLOCK_MESSAGE, millis};
use super::kind::Kind;
use super::name::LockName;

/// Tells every waiter of a read-write lock to look. Redisson's `READ_UNLOCK_MESSAGE`.
pub(super) const UNLOCK_ALL_MESSAGE: &str = "1";

/// How long Redisson's clients believe a waiter of a fair lock to be alive, in milliseconds, for
/// each place in the queue (`RedissonFairLock`; `fairLockWaitTimeout` since 3.24).
const FAIR_ALLOWANCE: u64 = 5 * 60 * 1000;

macro_rules! script {
    ($($file:literal),+) => {
        LazyLock::new(|| Script::new(concat!($(include_str!(concat!("../../lua/", $file))),+)))
    };
}

static FENCED_ACQUIRE: LazyLock<Script> = script!("lock_fenced_acquire.lua");
static READ_ACQUIRE: LazyLock<Script> = script!("lock_read_acquire.lua");
static READ_RELEASE: LazyLock<Script> = script!("lock_tell.lua", "lock_read_release.lua");
static WRITE_ACQUIRE: LazyLock<Script> = script!("lock_write_acquire.lua");
static WRITE_RELEASE: LazyLock<Script> = script!("lock_tell.lua", "lock_write_release.lua");
static READ_WRITE_RENEW: LazyLock<Script> = script!("lock_read_write_renew.lua");
static READ_WRITE_FORCE: LazyLock<Script> =
    script!("lock_tell.lua", "lock_read_write_force_unlock.lua");
static FAIR_ACQUIRE: LazyLock<Script> =
    script!("lock_tell.lua", "lock_fair_queue.lua", "lock_fair_acquire.lua");
static FAIR_RELEASE: LazyLock<Script> =
    script!("lock_tell.lua", "lock_fair_queue.lua", "lock_fair_release.lua");
static FAIR_FORCE: LazyLock<Script> =
    script!("lock_tell.lua", "lock_fair_queue.lua", "lock_fair_force_unlock.lua");

/// How an acquire ended.
pub(super) enum Taken {
    /// The owner holds it; with the new token where there is one, else 0.
    Yes { fence: u64 },
    /// Somebody else does: the key's PTTL (-1: nothing to wait for but a message; -2: no key).
    No(i64),
}

impl From<Option<i64>> for Taken {
    fn from(reply: Option<i64>) -> Self {
        reply.map_or(Self::Yes { fence: 0 }, Self::No)
    }
}

impl Connection {
    /// Take the lock to `depth`. A fair lock that is not free is queued for if `patience` says for
    /// how long this waiter may keep silent before it is believed dead.
    pub(super) async fn take(
        &self,
        claim: &Claim,
        lease: Duration,
        depth: u32,
        patience: Option<Duration>,
    ) -> Result<Taken, Failure> {
        let name = &claim.name;
        let mut call = match claim.kind {
            Kind::Reentrant => {
                return self.acquire(name, claim.owner, lease, depth).await.map(Taken::from);
            }
            Kind::Fenced => {
                let mut call = FENCED_ACQUIRE.key(name.key());
                call.key(name.prefixed("redisson_lock_token"));
                call
            }
            Kind::Fair => self.fair(&FAIR_ACQUIRE, name),
            Kind::Read => {
                let mut call = READ_ACQUIRE.key(name.key());
                call.key(claim.holds());
                call
            }
            Kind::Write => WRITE_ACQUIRE.key(name.key()),
        };
        call.arg(millis(lease)).arg(claim.field()).arg(depth);
        match claim.kind {
            Kind::Fair => {
                call.arg(patience.map_or(0, millis));
            }
            Kind::Read => {
                call.arg(claim.writer());
            }
            _ => {}
        }
        if claim.kind == Kind::Fenced {
            let reply: (bool, i64) = self.ask(&call).await?;
            let fence = u64::try_from(reply.1).unwrap_or(0);
            return Ok(if reply.0 { Taken::Yes { fence } } else { Taken::No(reply.1) });
        }
        let reply: Option<i64> = self.ask(&call).await?;
        Ok(reply.into())
    }

    /// Set the depth that remains; with 0 the owner holds the lock no longer, and with `leave` it
    /// does not wait for it either. `false`: this owner did not hold it.
    pub(super) async fn give(
        &self,
        claim: &Claim,
        lease: Duration,
        left: u32,
        leave: bool,
    ) -> Result<bool, Failure> {
        let name = &claim.name;
        let mut call = match claim.kind {
            Kind::Reentrant | Kind::Fenced => {
                let reply = self.release(name, claim.owner, lease, left).await?;
                return Ok(reply.is_some());
            }
            Kind::Fair => self.fair(&FAIR_RELEASE, name),
            Kind::Read => {
                let mut call = READ_RELEASE.key(name.key());
                call.key(&*claim.channel()).key(claim.holds()).key(name.suffixed());
                call.arg(self.announce()).arg(UNLOCK_MESSAGE);
                call
            }
            Kind::Write => {
                let mut call = WRITE_RELEASE.key(name.key());
                call.key(&*claim.channel()).arg(self.announce()).arg(UNLOCK_ALL_MESSAGE);
                call
            }
        };
        call.arg(millis(lease)).arg(claim.field()).arg(left);
        if claim.kind == Kind::Fair {
            call.arg(u8::from(leave));
        }
        self.bounded(self.timeout(), async |mut c, again| {
            let reply: Option<i64> = call.invoke_async(&mut c).await?;
            // What the first sending has removed, the second cannot find.
            Ok(reply.is_some() || (again && left == 0))
        })
        .await
    }

    /// Renew the lease, waiting for the answer no longer than `patience`.
    pub(super) async fn keep(
        &self,
        claim: &Claim,
        lease: Duration,
        patience: Duration,
    ) -> Result<Renewal, Failure> {
        let mut call = match claim.kind {
            Kind::Reentrant | Kind::Fenced | Kind::Fair => {
                return self.renew(&claim.name, claim.owner, lease, patience).await;
            }
            Kind::Read => {
                let mut call = READ_WRITE_RENEW.key(claim.name.key());
                call.key(claim.holds());
                call
            }
            Kind::Write => READ_WRITE_RENEW.key(claim.name.key()),
        };
        call.arg(millis(lease)).arg(claim.field());
        let patience = patience.min(self.timeout());
        let reply: i64 =
            self.bounded(patience, async |mut c, _| call.invoke_async(&mut c).await).await?;
        Ok(Renewal::from(reply))
    }

    /// Free the lock whoever holds it. `true`: there was one, or may have been.
    pub(super) async fn free(&self, name: &LockName, kind: Kind) -> Result<bool, Failure> {
        let (side, message) = match kind {
            Kind::Reentrant | Kind::Fenced => return self.force_unlock(name).await,
            Kind::Fair => (None, UNLOCK_MESSAGE),
            Kind::Read => (Some("read"), UNLOCK_MESSAGE),
            Kind::Write => (Some("write"), UNLOCK_ALL_MESSAGE),
        };
        let call = match side {
            None => self.fair(&FAIR_FORCE, name),
            Some(side) => {
                let mut call = READ_WRITE_FORCE.key(name.key());
                call.key(name.prefixed("redisson_rwlock")).key(name.suffixed());
                call.arg(self.announce()).arg(message).arg(side);
                call
            }
        };
        self.bounded(self.timeout(), async |mut c, again| {
            let freed: bool = call.invoke_async(&mut c).await?;
            Ok(freed || again)
        })
        .await
    }

    /// The owner's depth on the server, `None` when it holds nothing.
    pub(super) async fn depth_of(&self, claim: &Claim) -> Result<Option<u32>, Failure> {
        let mut cmd = redis::cmd("HGET");
        cmd.arg(claim.name.key()).arg(claim.field());
        self.bounded(self.timeout(), async |mut c, _| cmd.query_async(&mut c).await).await
    }

    /// Whether anybody holds the lock in this way.
    pub(super) async fn is_held(&self, name: &LockName, kind: Kind) -> Result<bool, Failure> {
        if !matches!(kind, Kind::Read | Kind::Write) {
            return self.exists(name).await;
        }
        // A writer may read as well, so the mode alone does not tell.
        let mut cmd = redis::cmd("HKEYS");
        cmd.arg(name.key());
        let fields: Vec<String> =
            self.bounded(self.timeout(), async |mut c, _| cmd.query_async(&mut c).await).await?;
        let mut owners = fields.iter().filter(|field| *field != "mode");
        let writes = |field: &String| field.ends_with(":write");
        Ok(match kind {
            Kind::Write => owners.any(writes),
            _ => owners.any(|field| !writes(field)),
        })
    }

    /// A fair script with what all of them are given first.
    fn fair<'a>(&self, script: &'a Script, name: &LockName) -> ScriptInvocation<'a> {
        let mut call = script.key(name.key());
        call.key(name.prefixed("redisson_lock_queue"));
        call.key(name.prefixed("redisson_lock_timeout"));
        call.key(name.prefixed("lock_waiters_alive"));
        call.key(&**name.channel());
        call.arg(self.announce()).arg(UNLOCK_MESSAGE).arg(FAIR_ALLOWANCE);
        call
    }

    /// The commands that announce a release, separated by blanks.
    fn announce(&self) -> String {
        self.publishing().join(" ")
    }

    async fn ask<T: redis::FromRedisValue>(
        &self,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, Failure> {
        self.bounded(self.timeout(), async |mut c, _| call.invoke_async(&mut c).await).await
    }
}
