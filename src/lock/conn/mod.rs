//! The command connection: each lock command as one bounded call, over whatever kind of Redis.
//! Nothing here remembers who holds what.
//!
//! - [`server`]: one server, a cluster or a master kept by Sentinel, and where to listen
//! - [`link`]: takes a command to its node; [`cluster`], [`slots`] and [`sentinel`] find the node
//! - [`acknowledge`]: waits until replicas have what was acquired
//! - [`failure`]: what is known after a command failed
//!
//! Every script is idempotent for the same arguments, so a command whose connection broke under it
//! is sent once more straight away: an idle connection that a restarted server closed costs no
//! caller an error.

mod acknowledge;
mod cluster;
mod failure;
mod link;
mod sentinel;
mod server;
mod slots;

use std::future::Future;
use std::time::Duration;

use redis::{ErrorKind, RedisResult, Script, ServerErrorKind};

use super::name::LockName;
use super::{LockConfig, Owner};
use acknowledge::Acknowledging;
use link::Link;

pub(super) use failure::Failure;
pub use server::Server;
pub(super) use server::{Backend, Channels};
pub(super) use slots::Address;

/// The text that tells waiters of a release. Redisson's `UNLOCK_MESSAGE`.
const UNLOCK_MESSAGE: &str = "0";

/// How many commands may queue for the socket before callers wait. The default of 50 is below the
/// number of purchases that one instance has in flight.
const PIPELINE_BUFFER: usize = 1024;

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

/// The command connection and its scripts. Reconnects by itself; commands are multiplexed over it,
/// in the order in which they are sent.
pub(super) struct Connection {
    backend: Backend,
    link: Link,
    acknowledging: Option<Acknowledging>,
    timeout: Duration,
    acquire: Script,
    release: Script,
    renew: Script,
    force_unlock: Script,
    setnx_release: Script,
}

impl Connection {
    /// A connection that is opened by its first command.
    ///
    /// # Errors
    /// When an address cannot be used, or settings contradict each other.
    pub(super) fn lazy(server: Server, config: &LockConfig) -> RedisResult<Self> {
        let backend = Backend::new(server.clone(), config)?;
        Ok(Self {
            link: backend.link()?,
            backend,
            acknowledging: Acknowledging::new(server, config)?,
            timeout: config.command_timeout,
            acquire: Script::new(include_str!("../../../lua/lock_acquire.lua")),
            release: Script::new(include_str!("../../../lua/lock_release.lua")),
            renew: Script::new(include_str!("../../../lua/lock_renew.lua")),
            force_unlock: Script::new(include_str!("../../../lua/lock_force_unlock.lua")),
            setnx_release: Script::new(include_str!("../../../lua/lock_setnx_release.lua")),
        })
    }

    /// What is behind it, for the listener.
    pub(super) fn backend(&self) -> &Backend {
        &self.backend
    }

    /// How a script announces a release, its last arguments: channel, message, and the commands to
    /// publish by.
    fn announcement<'a>(&self, name: &'a LockName) -> Vec<&'a str> {
        [&[&**name.channel(), UNLOCK_MESSAGE], self.backend.publishing()].concat()
    }

    /// How long one command may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Ask for any answer at all.
    pub(super) async fn ping(&self) -> Result<(), Failure> {
        self.bounded(self.timeout, async |mut c, _| redis::cmd("PING").query_async(&mut c).await)
            .await
    }

    /// Take the lock to `depth`. `None`: taken. `Some`: the key's PTTL (-1 no expiry, -2 no key).
    pub(super) async fn acquire(
        &self,
        name: &LockName,
        owner: Owner,
        lease: Duration,
        depth: u32,
    ) -> Result<Option<i64>, Failure> {
        let mut call = self.acquire.key(name.key());
        call.arg(millis(lease)).arg(owner.to_string()).arg(depth);
        let held: Option<i64> =
            self.bounded(self.timeout, async |mut c, _| call.invoke_async(&mut c).await).await?;
        if held.is_none() {
            let undo = self.release(name, owner, lease, depth.saturating_sub(1));
            self.kept_if_acknowledged(name.key(), undo).await?;
        }
        Ok(held)
    }

    /// Set the depth that remains; 0 frees the lock. `None`: this owner does not hold it.
    pub(super) async fn release(
        &self,
        name: &LockName,
        owner: Owner,
        lease: Duration,
        left: u32,
    ) -> Result<Option<i64>, Failure> {
        let mut call = self.release.key(name.key());
        call.arg(millis(lease)).arg(owner.to_string()).arg(left);
        call.arg(self.announcement(name));
        self.bounded(self.timeout, async |mut c, again| {
            let reply: Option<i64> = call.invoke_async(&mut c).await?;
            // What the first sending has removed, the second cannot find.
            Ok(if again && left == 0 { reply.or(Some(1)) } else { reply })
        })
        .await
    }

    /// Renew the lease, waiting for the answer no longer than `patience`.
    pub(super) async fn renew(
        &self,
        name: &LockName,
        owner: Owner,
        lease: Duration,
        patience: Duration,
    ) -> Result<Renewal, Failure> {
        let mut call = self.renew.key(name.key());
        call.arg(millis(lease)).arg(owner.to_string());
        let patience = patience.min(self.timeout);
        let reply: i64 =
            self.bounded(patience, async |mut c, _| call.invoke_async(&mut c).await).await?;
        Ok(match reply {
            1 => Renewal::Done,
            0 => Renewal::Gone,
            _ => Renewal::Taken,
        })
    }

    /// Free the lock whoever holds it. `true`: there was one, or may have been.
    pub(super) async fn force_unlock(&self, name: &LockName) -> Result<bool, Failure> {
        let mut call = self.force_unlock.key(name.key());
        call.arg(self.announcement(name));
        self.bounded(self.timeout, async |mut c, again| {
            let freed: bool = call.invoke_async(&mut c).await?;
            Ok(freed || again)
        })
        .await
    }

    /// The key's PTTL.
    pub(super) async fn remaining(&self, name: &LockName) -> Result<i64, Failure> {
        let mut cmd = redis::cmd("PTTL");
        cmd.arg(name.key());
        self.bounded(self.timeout, async |mut c, _| cmd.query_async(&mut c).await).await
    }

    /// The owner's depth on the server, `None` when it holds nothing.
    pub(super) async fn depth(
        &self,
        name: &LockName,
        owner: Owner,
    ) -> Result<Option<u32>, Failure> {
        let mut cmd = redis::cmd("HGET");
        cmd.arg(name.key()).arg(owner.to_string());
        self.bounded(self.timeout, async |mut c, _| cmd.query_async(&mut c).await).await
    }

    /// Whether anybody holds the lock.
    pub(super) async fn exists(&self, name: &LockName) -> Result<bool, Failure> {
        let mut cmd = redis::cmd("EXISTS");
        cmd.arg(name.key());
        self.bounded(self.timeout, async |mut c, _| cmd.query_async(&mut c).await).await
    }

    /// `SET key token NX PX lease`. `true`: the key is ours.
    ///
    /// SET NX is not idempotent: when an earlier, broken attempt did set the key, the repeated one
    /// finds it set. So a refusal is compared with our own token before it is believed.
    pub(super) async fn set_nx(
        &self,
        key: &str,
        token: &str,
        lease: Duration,
    ) -> Result<bool, Failure> {
        let mut set = redis::cmd("SET");
        set.arg(key).arg(token).arg("NX").arg("PX").arg(millis(lease));
        let set = self.bounded(self.timeout, async |mut c, again| {
            let set: Option<String> = set.query_async(&mut c).await?;
            if set.is_some() || !again {
                return Ok(set.is_some());
            }
            let now: Option<String> = redis::cmd("GET").arg(key).query_async(&mut c).await?;
            Ok(now.as_deref() == Some(token))
        });
        let set = set.await?;
        if set {
            self.kept_if_acknowledged(key, self.setnx_release(key, token)).await?;
        }
        Ok(set)
    }

    /// Delete the key if it holds `token`. `true`: deleted.
    pub(super) async fn setnx_release(&self, key: &str, token: &str) -> Result<bool, Failure> {
        let mut call = self.setnx_release.key(key);
        call.arg(token);
        self.bounded(self.timeout, async |mut c, again| {
            let deleted: bool = call.invoke_async(&mut c).await?;
            Ok(deleted || again)
        })
        .await
    }

    /// Run a command within `patience`, once more if its connection broke under it. The command is
    /// told whether an earlier sending may have been carried out.
    async fn bounded<T, F>(
        &self,
        patience: Duration,
        command: impl FnMut(Link, bool) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = RedisResult<T>>,
    {
        bounded(&self.link, patience, command).await
    }
}

/// See [`Connection::bounded`].
async fn bounded<T, F>(
    link: &Link,
    patience: Duration,
    mut command: impl FnMut(Link, bool) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = RedisResult<T>>,
{
    let run = async {
        let first = match command(link.clone(), false).await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let failure = Failure::of(&first);
        let again = matches!(failure, Failure::Unknown(_));
        // Scripts may have been flushed, and the master replaced: the link knows better by now.
        let answered = matches!(
            first.kind(),
            ErrorKind::Server(ServerErrorKind::NoScript | ServerErrorKind::ReadOnly)
        );
        if !first.is_connection_dropped() && !answered {
            return Err(failure);
        }
        match (command(link.clone(), again).await, again) {
            (Ok(value), _) => Ok(value),
            // The second try came to nothing, but the first may have gone through.
            (Err(second), true) => Err(Failure::Unknown(second.to_string())),
            (Err(second), false) => Err(Failure::of(&second)),
        }
    };
    match tokio::time::timeout(patience, run).await {
        Ok(result) => result,
        Err(_) => {
            link.doubt();
            Err(Failure::Unknown(format!("no answer within {patience:?}")))
        }
    }
}

/// Whole milliseconds, as Redis counts them.
fn millis(lease: Duration) -> u64 {
    u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)
}
