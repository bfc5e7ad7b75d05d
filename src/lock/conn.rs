//! The command connection: each lock command as one bounded call, and failures sorted by what they
//! leave known. Nothing here remembers who holds what.
//!
//! Every script is idempotent for the same arguments, so a command whose connection broke under it
//! is sent once more straight away: an idle connection that a restarted server closed costs no
//! caller an error.

use std::future::Future;
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::{Client, ErrorKind, RedisError, RedisResult, Script, ServerErrorKind};

use super::name::LockName;
use super::{Error, LockConfig, Owner};

/// The text that tells waiters of a release. Redisson's `UNLOCK_MESSAGE`.
pub(super) const UNLOCK_MESSAGE: &str = "0";

/// How many commands may queue for the socket before callers wait. The default of 50 is below the
/// number of purchases that one instance has in flight.
const PIPELINE_BUFFER: usize = 1024;

/// What is known after a command failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// It was never carried out: no connection, or the server cannot serve now.
    NotDone(String),
    /// The server refused it.
    Rejected(String),
    /// It may have been carried out.
    Unknown(String),
}

impl Failure {
    /// The error of an operation that changes nothing, or whose possible effect is undone.
    pub(super) fn unavailable(self, operation: &'static str) -> Error {
        match self {
            Self::NotDone(cause) | Self::Unknown(cause) => Error::Unavailable { operation, cause },
            Self::Rejected(cause) => Error::Rejected { operation, cause },
        }
    }

    /// The error of an operation whose effect matters to the caller.
    pub(super) fn outcome(self, operation: &'static str) -> Error {
        match self {
            Self::NotDone(cause) => Error::Unavailable { operation, cause },
            Self::Rejected(cause) => Error::Rejected { operation, cause },
            Self::Unknown(cause) => Error::Unknown { operation, cause },
        }
    }

    fn of(error: &RedisError) -> Self {
        let words = error.to_string();
        // A refused connection is the one I/O error that can only come before anything is sent.
        if error.is_connection_refusal() {
            return Self::NotDone(words);
        }
        match error.kind() {
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::NoScript,
            ) => Self::NotDone(words),
            ErrorKind::Server(_) => Self::Rejected(words),
            ErrorKind::Extension => match error.code() {
                Some("BUSY" | "OOM" | "MISCONF" | "NOREPLICAS") => Self::NotDone(words),
                _ => Self::Rejected(words),
            },
            ErrorKind::AuthenticationFailed
            | ErrorKind::InvalidClientConfig
            | ErrorKind::Client
            | ErrorKind::RESP3NotSupported => Self::NotDone(words),
            _ => Self::Unknown(words),
        }
    }
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

impl From<i64> for Renewal {
    fn from(reply: i64) -> Self {
        match reply {
            1 => Self::Done,
            0 => Self::Gone,
            _ => Self::Taken,
        }
    }
}

/// A client for the same server with the socket settings a lock needs: no Nagle delay, and a
/// connection whose peer vanished is given up after `patience` (where the system can do that).
///
/// # Errors
/// When the address cannot be used.
pub(super) fn tuned(client: &Client, patience: Duration) -> RedisResult<Client> {
    let settings = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(patience);
    #[cfg(not(target_os = "linux"))]
    let _ = patience;
    Client::open(client.get_connection_info().clone().set_tcp_settings(settings))
}

/// The command connection and its scripts. Reconnects by itself; commands are multiplexed over it,
/// in the order in which they are sent.
pub(super) struct Connection {
    manager: ConnectionManager,
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
    /// When the client's settings contradict each other.
    pub(super) fn lazy(client: Client, config: &LockConfig) -> RedisResult<Self> {
        let settings = ConnectionManagerConfig::new()
            .set_response_timeout(Some(config.command_timeout))
            .set_connection_timeout(Some(config.connect_timeout))
            // Each command tries to connect once and then fails: callers learn at once that Redis
            // is away, and the next command is the next try.
            .set_number_of_retries(0)
            .set_pipeline_buffer_size(PIPELINE_BUFFER);
        Ok(Self {
            manager: ConnectionManager::new_lazy_with_config(client, settings)?,
            timeout: config.command_timeout,
            acquire: Script::new(include_str!("../../lua/lock_acquire.lua")),
            release: Script::new(include_str!("../../lua/lock_release.lua")),
            renew: Script::new(include_str!("../../lua/lock_renew.lua")),
            force_unlock: Script::new(include_str!("../../lua/lock_force_unlock.lua")),
            setnx_release: Script::new(include_str!("../../lua/lock_setnx_release.lua")),
        })
    }

    /// The commands by which a script announces a release.
    pub(super) fn publishing(&self) -> &'static [&'static str] {
        &["PUBLISH"]
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
        self.bounded(self.timeout, async |mut c, _| call.invoke_async(&mut c).await).await
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
        call.key(&**name.channel()).arg(UNLOCK_MESSAGE);
        call.arg(millis(lease)).arg(owner.to_string()).arg(left);
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
        Ok(reply.into())
    }

    /// Free the lock whoever holds it. `true`: there was one, or may have been.
    pub(super) async fn force_unlock(&self, name: &LockName) -> Result<bool, Failure> {
        let mut call = self.force_unlock.key(name.key());
        call.key(&**name.channel()).arg(UNLOCK_MESSAGE);
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
        self.bounded(self.timeout, async |mut c, again| {
            let set: Option<String> = set.query_async(&mut c).await?;
            if set.is_some() || !again {
                return Ok(set.is_some());
            }
            let now: Option<String> = redis::cmd("GET").arg(key).query_async(&mut c).await?;
            Ok(now.as_deref() == Some(token))
        })
        .await
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
        mut command: impl FnMut(ConnectionManager, bool) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let run = async {
            let first = match command(self.manager.clone(), false).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let failure = Failure::of(&first);
            let again = matches!(failure, Failure::Unknown(_));
            let scripts_flushed = first.kind() == ErrorKind::Server(ServerErrorKind::NoScript);
            if !first.is_connection_dropped() && !scripts_flushed {
                return Err(failure);
            }
            match (command(self.manager.clone(), again).await, again) {
                (Ok(value), _) => Ok(value),
                // The second try came to nothing, but the first may have gone through.
                (Err(second), true) => Err(Failure::Unknown(second.to_string())),
                (Err(second), false) => Err(Failure::of(&second)),
            }
        };
        match tokio::time::timeout(patience, run).await {
            Ok(result) => result,
            Err(_) => Err(Failure::Unknown(format!("no answer within {patience:?}"))),
        }
    }
}

/// Whole milliseconds, as Redis counts them.
pub(super) fn millis(lease: Duration) -> u64 {
    u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)
}
