//! Generations: an acquire or a release that Redis executes late has no effect.
//!
//! A command without an answer may still be on its way: on a connection that broke or was given up, the
//! system goes on retransmitting. Executed late, an acquire would take the lock for nobody, for a whole
//! lease, and a release would end what the same owner has acquired since. So each of them carries its
//! *generation*. After one that was not answered, the generation of this lock and owner is raised: the new
//! one is written to a key, and confirmed, before anything else is sent for this owner. From then on the
//! scripts ignore what is older.
//!
//! Renewals carry none: late, they prolong the lease of what their owner holds then, at the most.
//!
//! The key is declared, as some clusters ask for. So while a cluster moves the slot, where a script with
//! two keys needs both on one node, it refuses these commands (TRYAGAIN): until the slot has moved, a lock
//! in it is renewed, but neither acquired nor released.
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

/// How long a generation is kept, in command timeouts and at least: longer than the system retransmits on
/// a connection, which is five command timeouts on Linux.
const KEEP: (u32, Duration) = (20, Duration::from_secs(120));

/// The generation of one lock and owner. Whoever sends a command that carries it keeps other commands of
/// this owner from being sent meanwhile.
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

    /// Make sure that what was sent and not answered has no effect from now on.
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

    /// How long a generation is kept, after which nothing older comes.
    pub(crate) fn generations_kept(&self) -> Duration {
        KEEP.1.max(self.timeout().saturating_mul(KEEP.0))
    }
}
