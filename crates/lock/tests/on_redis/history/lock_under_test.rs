//! The lock whose histories are checked.

use std::any::Any;
use std::pin::Pin;
use std::time::Duration;

use redisson_lock::kind::{Fenced, LockKind};
use redisson_lock::{Error, Guard, Lock, LockConfig, Locks, Owner, Server};
use serde::{Deserialize, Serialize};

/// The name of the lock that all processes of a history share.
pub const NAME: &str = "lock:history";

/// The lease of most histories.
pub const LEASE: Duration = Duration::from_millis(600);

/// The command timeout: short, so that faults exceed it.
pub const COMMAND: Duration = Duration::from_millis(300);

/// The kind of lock.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Kind {
    Reentrant,
    Fenced,
    Fair,
    Write,
}

/// Which lock, and how it is used.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    pub kind: Kind,
    /// The address of its Redis, as [`Server::from_url`] reads it.
    pub redis: String,
    pub lease: Duration,
}

/// A guard of any kind of lock.
pub trait AnyGuard: Send + Sync {
    fn valid_for(&self) -> Duration;
    /// The fencing token, if the lock has one.
    fn fence(&self) -> Option<u64>;
    fn release(self: Box<Self>) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;
}

impl<K: LockKind> AnyGuard for Guard<K> {
    fn valid_for(&self) -> Duration {
        Self::valid_for(self)
    }

    fn fence(&self) -> Option<u64> {
        (self as &dyn Any)
            .downcast_ref()
            .map(Guard::<Fenced>::fence)
    }

    fn release(self: Box<Self>) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        Box::pin(Self::release(*self))
    }
}

impl Settings {
    /// The locks of one process.
    pub fn locks(&self) -> Locks {
        let config = LockConfig::default()
            .with_lease(self.lease)
            .with_command_timeout(COMMAND)
            .with_connect_timeout(COMMAND);
        let server = Server::from_url(&self.redis).expect("an address");
        Locks::lazy(server, config).expect("locks")
    }
}

impl Kind {
    /// Acquires the lock, waiting up to `limit`. After an error it may or may not be held.
    pub async fn acquire(
        self,
        locks: &Locks,
        owner: &Owner,
        limit: Duration,
    ) -> Result<Option<Box<dyn AnyGuard>>, Error> {
        match self {
            Self::Reentrant => acquire_kind(&locks.lock(NAME), owner, limit).await,
            Self::Fenced => acquire_kind(&locks.fenced(NAME), owner, limit).await,
            Self::Fair => acquire_kind(&locks.fair(NAME), owner, limit).await,
            Self::Write => acquire_kind(locks.read_write(NAME).write(), owner, limit).await,
        }
    }
}

async fn acquire_kind<K: LockKind>(
    lock: &Lock<K>,
    owner: &Owner,
    limit: Duration,
) -> Result<Option<Box<dyn AnyGuard>>, Error> {
    let guard = lock.acquire_within_as(owner, limit).await?;
    Ok(guard.map(|guard| -> Box<dyn AnyGuard> { Box::new(guard) }))
}
