//! Which script does what for which member of the family: one call each for taking, giving back,
//! renewing and freeing by force. The scripts' own comments say what they promise.
//!
//! Every script is idempotent for the same arguments, as [`Connection::bounded`] demands.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Script, ScriptInvocation};

use super::claim::{Claim, channel};
use super::conn::{Connection, Failure, millis};
use super::kind::Kind;
use super::name::LockName;

/// The text that tells a waiter of a release. Redisson's `UNLOCK_MESSAGE`.
pub(super) const UNLOCK_MESSAGE: &str = "0";

/// Tells every waiter of a read-write lock to look. Redisson's `READ_UNLOCK_MESSAGE`.
pub(super) const UNLOCK_ALL_MESSAGE: &str = "1";

/// How long Redisson's clients believe a waiter of a fair lock to be alive, in milliseconds, for
/// each place in the queue (`RedissonFairLock`; `fairLockWaitTimeout` since 3.24).
const FAIR_ALLOWANCE: u64 = 5 * 60 * 1000;

macro_rules! script {
    ($($file:literal),+) => {
        LazyLock::new(|| Script::new(concat!($(include_str!(concat!("../lua/", $file))),+)))
    };
}

static ACQUIRE: LazyLock<Script> = script!("acquire.lua");
static RELEASE: LazyLock<Script> = script!("tell.lua", "release.lua");
static RENEW: LazyLock<Script> = script!("renew.lua");
static FORCE: LazyLock<Script> = script!("tell.lua", "force_unlock.lua");
static FENCED_ACQUIRE: LazyLock<Script> = script!("fenced_acquire.lua");
static READ_ACQUIRE: LazyLock<Script> = script!("read_acquire.lua");
static READ_RELEASE: LazyLock<Script> = script!("tell.lua", "read_release.lua");
static WRITE_ACQUIRE: LazyLock<Script> = script!("write_acquire.lua");
static WRITE_RELEASE: LazyLock<Script> = script!("tell.lua", "write_release.lua");
static READ_WRITE_RENEW: LazyLock<Script> = script!("read_write_renew.lua");
static READ_WRITE_FORCE: LazyLock<Script> = script!("tell.lua", "read_write_force_unlock.lua");
static FAIR_ACQUIRE: LazyLock<Script> = script!("tell.lua", "fair_queue.lua", "fair_acquire.lua");
static FAIR_RELEASE: LazyLock<Script> = script!("tell.lua", "fair_queue.lua", "fair_release.lua");
static FAIR_FORCE: LazyLock<Script> =
    script!("tell.lua", "fair_queue.lua", "fair_force_unlock.lua");

/// How an acquire ended.
pub(super) enum Taken {
    /// The owner holds it; with the new token where there is one, else 0.
    Yes { fence: u64 },
    /// Somebody else does: the key's PTTL (-1: nothing to wait for but a message; -2: no key).
    No(i64),
}

/// How a release ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    /// It was this owner's until now.
    Yes,
    /// This owner did not hold it.
    No,
    /// It was not this owner's any more when asked again after a lost reply: that is what a first
    /// sending that was carried out leaves behind, and also what a lost lock does.
    Gone,
}

/// What a renewal found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renewal {
    /// The lease is full again.
    Done,
    /// The key is gone.
    Gone,
    /// The key belongs to somebody else.
    Taken,
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
        let taken = self.send_take(claim, lease, depth, patience).await?;
        if matches!(taken, Taken::Yes { .. }) {
            let undo = self.give(claim, lease, depth.saturating_sub(1), false);
            self.kept_if_acknowledged(claim.name.key(), undo).await?;
        }
        Ok(taken)
    }

    async fn send_take(
        &self,
        claim: &Claim,
        lease: Duration,
        depth: u32,
        patience: Option<Duration>,
    ) -> Result<Taken, Failure> {
        let name = &claim.name;
        let mut call = match claim.kind {
            Kind::Reentrant => ACQUIRE.key(name.key()),
            Kind::Fenced => FENCED_ACQUIRE.key(name.key()),
            Kind::Fair => self.fair(&FAIR_ACQUIRE, name),
            Kind::Read => READ_ACQUIRE.key(name.key()),
            Kind::Write => WRITE_ACQUIRE.key(name.key()),
        };
        call.arg(millis(lease)).arg(claim.field()).arg(depth);
        match claim.kind {
            Kind::Fenced => {
                call.key(name.prefixed("redisson_lock_token"));
                let (won, number): (bool, i64) = self.ask(&call).await?;
                let fence = u64::try_from(number).unwrap_or(0);
                return Ok(if won { Taken::Yes { fence } } else { Taken::No(number) });
            }
            Kind::Fair => {
                call.arg(patience.map_or(0, millis));
            }
            Kind::Read => {
                call.arg(&*name.suffixed());
            }
            Kind::Reentrant | Kind::Write => {}
        }
        let held: Option<i64> = self.ask(&call).await?;
        Ok(held.map_or(Taken::Yes { fence: 0 }, Taken::No))
    }

    /// Set the depth that remains; with 0 the owner holds the lock no longer, and with `leave` it
    /// does not wait for it either.
    pub(super) async fn give(
        &self,
        claim: &Claim,
        lease: Duration,
        left: u32,
        leave: bool,
    ) -> Result<Given, Failure> {
        let name = &claim.name;
        let mut call = match claim.kind {
            Kind::Reentrant | Kind::Fenced => self.telling(&RELEASE, claim.kind, name),
            Kind::Fair => self.fair(&FAIR_RELEASE, name),
            Kind::Read => self.telling(&READ_RELEASE, claim.kind, name),
            Kind::Write => self.telling(&WRITE_RELEASE, claim.kind, name),
        };
        call.arg(millis(lease)).arg(claim.field()).arg(left);
        match claim.kind {
            Kind::Fair => {
                call.arg(u8::from(leave));
            }
            Kind::Read => {
                call.arg(&*name.suffixed());
            }
            Kind::Reentrant | Kind::Fenced | Kind::Write => {}
        }
        self.bounded(self.timeout(), async |mut c, again| {
            let reply: Option<i64> = call.invoke_async(&mut c).await?;
            Ok(match reply {
                Some(_) => Given::Yes,
                None if again && left == 0 => Given::Gone,
                None => Given::No,
            })
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
        let script = match claim.kind {
            Kind::Reentrant | Kind::Fenced | Kind::Fair => &RENEW,
            Kind::Read | Kind::Write => &READ_WRITE_RENEW,
        };
        let mut call = script.key(claim.name.key());
        call.arg(millis(lease)).arg(claim.field());
        if claim.kind == Kind::Read {
            call.arg(&*claim.name.suffixed());
        }
        let patience = patience.min(self.timeout());
        let reply: i64 =
            self.bounded(patience, async |mut c, _| call.invoke_async(&mut c).await).await?;
        Ok(match reply {
            1 => Renewal::Done,
            0 => Renewal::Gone,
            _ => Renewal::Taken,
        })
    }

    /// Free the lock, or one side of it, whoever holds it. `true`: it was held, or may have been.
    pub(super) async fn free(&self, name: &LockName, kind: Kind) -> Result<bool, Failure> {
        let call = match kind {
            Kind::Reentrant | Kind::Fenced => self.telling(&FORCE, kind, name),
            Kind::Fair => self.fair(&FAIR_FORCE, name),
            Kind::Read | Kind::Write => {
                let mut call = self.telling(&READ_WRITE_FORCE, kind, name);
                call.arg(kind.to_string()).arg(&*name.suffixed());
                call
            }
        };
        self.bounded(self.timeout(), async |mut c, again| {
            let freed: bool = call.invoke_async(&mut c).await?;
            Ok(freed || again)
        })
        .await
    }

    /// The key's PTTL.
    pub(super) async fn remaining(&self, name: &LockName) -> Result<i64, Failure> {
        self.query(redis::cmd("PTTL").arg(name.key())).await
    }

    /// The owner's depth on the server, `None` when it holds nothing.
    pub(super) async fn depth(&self, claim: &Claim) -> Result<Option<u32>, Failure> {
        self.query(redis::cmd("HGET").arg(claim.name.key()).arg(claim.field())).await
    }

    /// Whether anybody holds the lock in this way.
    pub(super) async fn is_held(&self, name: &LockName, kind: Kind) -> Result<bool, Failure> {
        if !matches!(kind, Kind::Read | Kind::Write) {
            return self.query(redis::cmd("EXISTS").arg(name.key())).await;
        }
        // A writer may read as well, so the mode alone does not tell.
        let fields: Vec<String> = self.query(redis::cmd("HKEYS").arg(name.key())).await?;
        let mut owners = fields.iter().filter(|field| *field != "mode");
        Ok(owners.any(|field| field.ends_with(":write") == (kind == Kind::Write)))
    }

    /// A script with what those that announce a release are given first.
    fn telling<'a>(&self, script: &'a Script, kind: Kind, name: &LockName) -> ScriptInvocation<'a> {
        let message = if kind == Kind::Write { UNLOCK_ALL_MESSAGE } else { UNLOCK_MESSAGE };
        let mut call = script.key(name.key());
        call.arg(self.publishing().join(" ")).arg(message).arg(&*channel(name, kind));
        call
    }

    /// A script with what those of the fair lock are given first.
    fn fair<'a>(&self, script: &'a Script, name: &LockName) -> ScriptInvocation<'a> {
        let mut call = self.telling(script, Kind::Fair, name);
        call.key(name.prefixed("redisson_lock_queue"));
        call.key(name.prefixed("redisson_lock_timeout"));
        call.key(name.prefixed("lock_waiters_alive"));
        call.arg(FAIR_ALLOWANCE);
        call
    }

    async fn ask<T: FromRedisValue>(&self, call: &ScriptInvocation<'_>) -> Result<T, Failure> {
        self.bounded(self.timeout(), async |mut c, _| call.invoke_async(&mut c).await).await
    }

    async fn query<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T, Failure> {
        self.bounded(self.timeout(), async |mut c, _| cmd.query_async(&mut c).await).await
    }
}
