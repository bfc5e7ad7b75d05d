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

use super::LockConfig;
use acknowledge::Acknowledging;
use link::Link;

pub(super) use failure::Failure;
pub use server::Server;
pub(super) use server::{Backend, Channels};
pub(super) use slots::Address;

/// How many commands may queue for the socket before callers wait. The default of 50 is below the
/// number of purchases that one instance has in flight.
const PIPELINE_BUFFER: usize = 1024;

/// The command connection and its scripts. Reconnects by itself; commands are multiplexed over it,
/// in the order in which they are sent.
pub(super) struct Connection {
    backend: Backend,
    link: Link,
    acknowledging: Option<Acknowledging>,
    timeout: Duration,
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
            setnx_release: Script::new(include_str!("../../lua/setnx_release.lua")),
        })
    }

    /// What is behind it, for the listener.
    pub(super) fn backend(&self) -> &Backend {
        &self.backend
    }

    /// The commands by which a script announces a release.
    pub(super) fn publishing(&self) -> &'static [&'static str] {
        self.backend.publishing()
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
    pub(super) async fn bounded<T, F>(
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
pub(super) fn millis(lease: Duration) -> u64 {
    u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)
}
