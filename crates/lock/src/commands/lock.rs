//! Commands of the lock kinds that have an owner and a hold count: acquire, release, renew, force
//! unlock, and the queries. Which script is run depends on the [`Kind`].

use std::time::Duration;

use redis::{Script, ScriptInvocation};

use crate::commands::Try;
use crate::commands::generation::Generation;
use crate::config::millis;
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::error::LostReason;
use crate::kind::Kind;
use crate::name::Name;
use crate::request::{LockRequest, channel};
use crate::scripts::script;

/// The message that wakes one waiter. Redisson's `UNLOCK_MESSAGE`.
pub(crate) const UNLOCK_MESSAGE: &str = "0";

/// The message that wakes every waiter of a read-write lock. Redisson's `READ_UNLOCK_MESSAGE`.
pub(crate) const UNLOCK_ALL_MESSAGE: &str = "1";

/// How long a waiter of a fair lock counts as alive for Redisson's clients, in milliseconds, for each
/// position in the queue (`RedissonFairLock`; `fairLockWaitTimeout` since 3.24).
const FAIR_WAIT_TIMEOUT_MS: u64 = 5 * 60 * 1000;

/// Bit of a script's reply: the user may not publish, so that nobody was notified.
const DENIED: i64 = 2;

script!(ACQUIRE = "generation.lua", "acquire.lua");
script!(RELEASE = "generation.lua", "notify.lua", "release.lua");
script!(RENEW = "renew.lua");
script!(FORCE_UNLOCK = "notify.lua", "force_unlock.lua");
script!(FENCED_ACQUIRE = "generation.lua", "fenced_acquire.lua");
script!(READ_ACQUIRE = "generation.lua", "read_acquire.lua");
script!(
    READ_RELEASE = "generation.lua",
    "notify.lua",
    "read_release.lua"
);
script!(WRITE_ACQUIRE = "generation.lua", "write_acquire.lua");
script!(
    WRITE_RELEASE = "generation.lua",
    "notify.lua",
    "write_release.lua"
);
script!(READ_WRITE_RENEW = "read_write_renew.lua");
script!(
    READ_WRITE_FORCE_UNLOCK = "notify.lua",
    "read_write_force_unlock.lua"
);
script!(
    FAIR_ACQUIRE = "generation.lua",
    "notify.lua",
    "fair_queue.lua",
    "fair_acquire.lua"
);
script!(
    FAIR_RELEASE = "generation.lua",
    "notify.lua",
    "fair_queue.lua",
    "fair_release.lua"
);
script!(
    FAIR_FORCE_UNLOCK = "notify.lua",
    "fair_queue.lua",
    "fair_force_unlock.lua"
);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenewReply {
    /// The key has its full lease again.
    Renewed,
    /// The same, and another client had shortened the lease, so that this much was left.
    Shortened(Duration),
    Lost(LostReason),
}

impl CommandConnection {
    /// Acquire the lock up to hold count `depth`. With `queue_timeout` the owner joins the queue of a
    /// fair lock that is not free, for so long. Returns the fencing token, 0 for kinds without one, or
    /// the key's PTTL (-1: no expiry; -2: there is no key).
    pub(crate) async fn acquire(
        &self,
        request: &LockRequest,
        lease: Duration,
        depth: u32,
        queue_timeout: Option<Duration>,
        generation: &Generation,
    ) -> Result<Try<u64>, Failure> {
        let script = || self.acquire_script(request, lease, depth, queue_timeout);
        if request.kind == Kind::Fenced {
            let ((acquired, token_or_pttl), _): ((bool, i64), bool) =
                self.invoke_in(generation, script).await?;
            return Ok(match acquired {
                true => Try::Acquired(u64::try_from(token_or_pttl).unwrap_or(0)),
                false => Try::Refused(token_or_pttl),
            });
        }
        let (pttl, _): (Option<i64>, bool) = self.invoke_in(generation, script).await?;
        Ok(pttl.map_or(Try::Acquired(0), Try::Refused))
    }

    /// The script that acquires, without the key and argument of its generation.
    fn acquire_script(
        &self,
        request: &LockRequest,
        lease: Duration,
        depth: u32,
        queue_timeout: Option<Duration>,
    ) -> ScriptInvocation<'static> {
        let name = &request.name;
        let mut call = match request.kind {
            Kind::Reentrant => ACQUIRE.key(name.key()),
            Kind::Fenced => FENCED_ACQUIRE.key(name.key()),
            Kind::Fair => self.fair_script(&FAIR_ACQUIRE, name),
            Kind::Read => READ_ACQUIRE.key(name.key()),
            Kind::Write => WRITE_ACQUIRE.key(name.key()),
        };
        call.arg(millis(lease)).arg(request.field()).arg(depth);
        match request.kind {
            Kind::Fenced => {
                call.key(name.prefixed("redisson_lock_token"));
            }
            Kind::Fair => {
                call.arg(queue_timeout.map_or(0, millis));
            }
            Kind::Read => {
                call.arg(&*name.hash_tagged());
            }
            Kind::Reentrant | Kind::Write => {}
        }
        call
    }

    /// Set the hold count to `depth`; 0 releases the lock. Of several holds of a reader, the one with
    /// `hold_number` ends. With `leave_queue` the owner also leaves the queue of a fair lock.
    ///
    /// `false`: the owner does not hold the lock. If the reply of a first sending was lost, a full release
    /// returns `true` all the same: either the first sending was executed, or the lock had been lost.
    pub(crate) async fn release(
        &self,
        request: &LockRequest,
        lease: Duration,
        depth: u32,
        hold_number: u32,
        leave_queue: bool,
        generation: &Generation,
    ) -> Result<bool, Failure> {
        let (reply, resent): (Option<i64>, bool) = self
            .invoke_in(generation, || {
                self.release_script(request, lease, depth, hold_number, leave_queue)
            })
            .await?;
        if reply.is_some_and(|reply| reply & DENIED != 0) {
            self.refusals
                .notification(&channel(&request.name, request.kind));
        }
        Ok(reply.is_some() || (resent && depth == 0))
    }

    /// The script that sets the hold count, without the key and argument of its generation.
    fn release_script(
        &self,
        request: &LockRequest,
        lease: Duration,
        depth: u32,
        hold_number: u32,
        leave_queue: bool,
    ) -> ScriptInvocation<'static> {
        let name = &request.name;
        let mut call = match request.kind {
            Kind::Reentrant | Kind::Fenced => self.notifying_script(&RELEASE, request.kind, name),
            Kind::Fair => self.fair_script(&FAIR_RELEASE, name),
            Kind::Read => self.notifying_script(&READ_RELEASE, request.kind, name),
            Kind::Write => self.notifying_script(&WRITE_RELEASE, request.kind, name),
        };
        call.arg(millis(lease)).arg(request.field()).arg(depth);
        match request.kind {
            Kind::Fair => {
                call.arg(u8::from(leave_queue));
            }
            Kind::Read => {
                call.arg(&*name.hash_tagged()).arg(hold_number);
            }
            Kind::Reentrant | Kind::Fenced | Kind::Write => {}
        }
        call
    }

    /// Set the key's expiry to the full lease, waiting no longer than `timeout` for the reply.
    /// `remaining_lease` is what this process believes is left of the lease.
    pub(crate) async fn renew(
        &self,
        request: &LockRequest,
        lease: Duration,
        timeout: Duration,
        remaining_lease: Duration,
    ) -> Result<RenewReply, Failure> {
        let script = match request.kind {
            Kind::Reentrant | Kind::Fenced | Kind::Fair => &RENEW,
            Kind::Read | Kind::Write => &READ_WRITE_RENEW,
        };
        let mut call = script.key(request.name.key());
        call.arg(millis(lease)).arg(request.field());
        if request.kind == Kind::Read {
            // An answered command took no longer than its timeout; a tenth more, as clocks differ in speed.
            let allowance = timeout.min(self.timeout()) + remaining_lease / 10;
            let least_remaining = remaining_lease.saturating_sub(allowance);
            call.arg(&*request.name.hash_tagged())
                .arg(millis(least_remaining));
        }
        let reply: i64 = self.invoke_within(timeout, &call).await?;
        Ok(match reply {
            1 => RenewReply::Renewed,
            0 => RenewReply::Lost(LostReason::Expired),
            2.. => RenewReply::Shortened(Duration::from_millis((reply - 1).unsigned_abs())),
            _ => RenewReply::Lost(LostReason::Taken),
        })
    }

    /// Release the lock, or one side of it, for every owner. `true`: it was held, or may have been.
    pub(crate) async fn force_unlock(&self, name: &Name, kind: Kind) -> Result<bool, Failure> {
        let call = match kind {
            Kind::Reentrant | Kind::Fenced => self.notifying_script(&FORCE_UNLOCK, kind, name),
            Kind::Fair => self.fair_script(&FAIR_FORCE_UNLOCK, name),
            Kind::Read | Kind::Write => {
                let mut call = self.notifying_script(&READ_WRITE_FORCE_UNLOCK, kind, name);
                call.arg(kind.to_string()).arg(&*name.hash_tagged());
                call
            }
        };
        self.bounded(async |mut c, resent| {
            let reply: i64 = call.invoke_async(&mut c).await?;
            if reply & DENIED != 0 {
                self.refusals.notification(&channel(name, kind));
            }
            Ok(reply != 0 || resent)
        })
        .await
    }

    /// The key's PTTL in ms (-1: no expiry; -2: there is no key).
    pub(crate) async fn pttl(&self, name: &Name) -> Result<i64, Failure> {
        self.query(redis::cmd("PTTL").arg(name.key())).await
    }

    /// The owner's hold count on the server, `None` when it holds nothing.
    pub(crate) async fn hold_count(&self, request: &LockRequest) -> Result<Option<u32>, Failure> {
        self.query(
            redis::cmd("HGET")
                .arg(request.name.key())
                .arg(request.field()),
        )
        .await
    }

    /// Whether any owner holds the lock, or this side of a read-write lock.
    pub(crate) async fn is_held(&self, name: &Name, kind: Kind) -> Result<bool, Failure> {
        if !matches!(kind, Kind::Read | Kind::Write) {
            return self.query(redis::cmd("EXISTS").arg(name.key())).await;
        }
        // A writer may read as well, so the mode alone does not tell who holds this side.
        let fields: Vec<String> = self.query(redis::cmd("HKEYS").arg(name.key())).await?;
        let mut owners = fields.iter().filter(|field| *field != "mode");
        Ok(owners.any(|field| field.ends_with(":write") == (kind == Kind::Write)))
    }

    /// A script with the arguments of `notify.lua`.
    fn notifying_script<'a>(
        &self,
        script: &'a Script,
        kind: Kind,
        name: &Name,
    ) -> ScriptInvocation<'a> {
        let message = if kind == Kind::Write {
            UNLOCK_ALL_MESSAGE
        } else {
            UNLOCK_MESSAGE
        };
        let mut call = script.key(name.key());
        call.arg(self.publish_commands().join(" "))
            .arg(message)
            .arg(channel(name, kind));
        call
    }

    /// A script with the keys and arguments of `notify.lua` and `fair_queue.lua`.
    fn fair_script<'a>(&self, script: &'a Script, name: &Name) -> ScriptInvocation<'a> {
        let mut call = self.notifying_script(script, Kind::Fair, name);
        call.key(name.prefixed("redisson_lock_queue"));
        call.key(name.prefixed("redisson_lock_timeout"));
        call.key(name.prefixed("lock_waiters_alive"));
        call.arg(FAIR_WAIT_TIMEOUT_MS);
        call
    }
}
