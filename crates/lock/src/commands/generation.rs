//! Generations: an acquire or a release that Redis executes late has no effect.
//!
//! A command without an answer may still be on its way: on a connection that broke or was given up, the
//! system goes on retransmitting. Executed late, an acquire would take the lock for nobody, for a whole
//! lease, and a release would end what the same owner has acquired since. So each acquire and release
//! carries a *generation*. After one that was not answered, the generation of this lock and owner is
//! raised: the new one is written to a key, and confirmed, before anything else is sent for this owner.
//! From then on the scripts ignore commands of older generations.
//!
//! Renewals carry no generation: one that arrives late prolongs at most the lease of what its owner holds
//! by then.
//!
//! The key of the generation is declared in `KEYS`, as some clusters require. A script with two keys needs
//! both on one node, so a cluster refuses these commands (TRYAGAIN) while it moves the slot: until then, a
//! lock in it is renewed, but neither acquired nor released.
//!
//! Redisson's releases have a key of this kind too (from 3.24 on), with the answer in it; here it is written
//! only when it is needed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::{FromRedisValue, RedisResult, ScriptInvocation};
use redis_link::RoutedConnection;

use crate::config::millis;
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::name::Name;
use crate::scripts::script;

script!(RAISE = "raise_generation.lua");

/// How many command timeouts a generation is kept: longer than the system retransmits on a connection,
/// which is five command timeouts on Linux.
const KEPT_COMMAND_TIMEOUTS: u32 = 20;

/// How long a generation is kept at least.
const KEPT_AT_LEAST: Duration = Duration::from_secs(120);

/// The generation of one lock and owner. While a command that carries it is under way, no other command
/// of this owner may be sent: the caller sees to that.
#[derive(Debug)]
pub(crate) struct Generation {
    key: String,
    number: AtomicU64,
    /// Whether a command of this generation was sent and has not been answered.
    unanswered: AtomicBool,
}

impl Generation {
    /// `owner` is its field in the lock's hash, or the token of a `SET NX` lock.
    pub(crate) fn new(name: &Name, owner: &str) -> Self {
        let prefix = name.prefixed("redisson_unlock_latch");
        Self {
            key: format!("{prefix}:{owner}"),
            number: AtomicU64::new(next_number()),
            unanswered: AtomicBool::new(false),
        }
    }
}

/// Higher than every generation of this process before.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl CommandConnection {
    /// Run a script that `generation.lua` is a part of, with its key and argument as the last ones. The second
    /// value says whether an earlier sending of it may have been executed.
    pub(crate) async fn invoke_in<T: FromRedisValue>(
        &self,
        generation: &Generation,
        script: impl Fn() -> ScriptInvocation<'static>,
    ) -> Result<(T, bool), Failure> {
        self.bounded(async |mut c, resent| {
            self.raise_on(&mut c, generation).await?;
            let mut call = script();
            call.key(&generation.key)
                .arg(generation.number.load(Ordering::Relaxed));
            generation.unanswered.store(true, Ordering::Relaxed);
            let reply: RedisResult<T> = call.invoke_async(&mut c).await;
            let failure = reply.as_ref().err().map(Failure::from_redis_error);
            if !matches!(failure, Some(Failure::Unknown(_))) {
                generation.unanswered.store(false, Ordering::Relaxed);
            }
            Ok((reply?, resent))
        })
        .await
    }

    /// Make sure that a command that was sent and not answered has no effect from now on.
    pub(crate) async fn raise(&self, generation: &Generation) -> Result<(), Failure> {
        let raised = self.bounded(async |mut c, _| self.raise_on(&mut c, generation).await);
        raised
            .await
            .map_err(|failure| Failure::NotExecuted(failure.cause()))
    }

    async fn raise_on(
        &self,
        connection: &mut RoutedConnection,
        generation: &Generation,
    ) -> RedisResult<()> {
        if !generation.unanswered.load(Ordering::Relaxed) {
            return Ok(());
        }
        let number = next_number();
        let mut raise = RAISE.key(&generation.key);
        raise.arg(number).arg(millis(self.generations_kept()));
        let () = raise.invoke_async(connection).await?;
        generation.number.store(number, Ordering::Relaxed);
        generation.unanswered.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// How long a generation is kept. No command of an older one can arrive after that.
    pub(crate) fn generations_kept(&self) -> Duration {
        let command_timeouts = self.timeout().saturating_mul(KEPT_COMMAND_TIMEOUTS);
        command_timeouts.max(KEPT_AT_LEAST)
    }
}
