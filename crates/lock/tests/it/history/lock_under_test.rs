//! The locks whose histories are checked: those of this crate, and one that is broken on purpose.

use std::any::Any;
use std::pin::Pin;
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::kind::{Fenced, LockKind};
use redisson_lock::{Error, Guard, Lock, LockConfig, LockUsage, Locks, Owner, Server};
use serde::{Deserialize, Serialize};

use testkit::redis_sentinel::MASTER;

use super::event::EventKind;

/// The name of the lock that all processes of a history share.
pub const NAME: &str = "lock:history";

/// The lease of most histories.
pub const LEASE: Duration = Duration::from_millis(600);

/// The command timeout: short, so that faults exceed it.
pub const COMMAND: Duration = Duration::from_millis(300);

/// The kind of lock.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Kind {
    /// [`redisson_lock::ReentrantLock`].
    Reentrant,
    /// [`redisson_lock::FencedLock`].
    Fenced,
    /// [`redisson_lock::FairLock`].
    Fair,
    /// [`redisson_lock::WriteLock`].
    Write,
    /// Broken: checks whether the key exists, then sets it; two may check before either sets it.
    ChecksThenSets,
}

/// Where the lock is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Target {
    /// The URL of one server.
    Single(String),
    /// The URLs of a cluster's nodes.
    Cluster(Vec<String>),
    /// The URLs of the sentinels that monitor the master.
    Sentinel(Vec<String>),
}

impl Target {
    /// The server, or the proxy, at `address`.
    pub fn single(address: &str) -> Self {
        Self::Single(format!("redis://{address}/"))
    }

    fn server(&self) -> Server {
        match self {
            Self::Single(url) => Server::from(client(url)),
            Self::Cluster(urls) => Server::cluster(urls.clone()).expect("a cluster"),
            Self::Sentinel(urls) => {
                let login = redis::RedisConnectionInfo::default();
                Server::sentinel(urls.clone(), MASTER, login).expect("sentinels")
            }
        }
    }
}

fn client(url: &str) -> redis::Client {
    redis::Client::open(url).expect("a valid address")
}

/// Which lock, and how it is used.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    pub kind: Kind,
    pub target: Target,
    pub lease: Duration,
    /// How many replicas have to acknowledge an acquire.
    pub replicas: u32,
}

/// One process's access to the lock.
#[derive(Clone)]
pub enum LockUnderTest {
    Ours { locks: Locks, kind: Kind },
    Broken(MultiplexedConnection),
}

/// A held lock.
pub enum Held {
    Ours(Box<dyn AnyGuard>),
    Broken { until: Instant, token: String },
}

/// A guard of any kind of lock of this crate.
pub trait AnyGuard: Send + Sync {
    fn valid_for(&self) -> Duration;
    fn fence(&self) -> Option<u64>;
    fn release(self: Box<Self>) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;
}

impl<K: LockKind> AnyGuard for Guard<K> {
    fn valid_for(&self) -> Duration {
        Self::valid_for(self)
    }

    fn fence(&self) -> Option<u64> {
        (self as &dyn Any).downcast_ref().map(Guard::<Fenced>::fence)
    }

    fn release(self: Box<Self>) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        Box::pin(Self::release(*self))
    }
}

impl LockUnderTest {
    pub async fn connect(settings: &Settings) -> Self {
        let Settings { kind, target, lease, replicas } = settings;
        let kind = *kind;
        match (kind, target) {
            (Kind::ChecksThenSets, Target::Single(url)) => {
                let conn = client(url).get_multiplexed_async_connection().await;
                Self::Broken(conn.expect("connect"))
            }
            _ => {
                let config = LockConfig::default()
                    .with_lease(*lease)
                    .with_command_timeout(COMMAND)
                    .with_connect_timeout(COMMAND)
                    .with_replicas(*replicas, COMMAND);
                let locks = Locks::lazy(target.server(), config).expect("locks");
                Self::Ours { locks, kind }
            }
        }
    }

    /// A new owner; the broken lock has none.
    pub fn owner(&self) -> Option<Owner> {
        match self {
            Self::Ours { locks, .. } => Some(locks.owner()),
            Self::Broken(_) => None,
        }
    }

    /// Acquires the lock, waiting up to `limit`. After an error it may or may not be held.
    pub async fn acquire(
        &self,
        owner: Option<Owner>,
        limit: Duration,
    ) -> Result<Option<Held>, String> {
        match (self, owner) {
            (Self::Ours { locks, kind }, Some(owner)) => {
                let held = match kind {
                    Kind::Fenced => acquire_kind(&locks.fenced(NAME), owner, limit).await,
                    Kind::Fair => acquire_kind(&locks.fair(NAME), owner, limit).await,
                    Kind::Write => acquire_kind(locks.read_write(NAME).write(), owner, limit).await,
                    _ => acquire_kind(&locks.lock(NAME), owner, limit).await,
                };
                held.map_err(|error| error.to_string())
            }
            (Self::Ours { .. }, None) => Err("no owner".to_owned()),
            (Self::Broken(conn), _) => Ok(broken_acquire(conn.clone(), limit).await),
        }
    }

    /// Releases it; what became of that.
    pub async fn release(&self, held: Held) -> EventKind {
        match (self, held) {
            (_, Held::Ours(guard)) => match guard.release().await {
                Ok(()) => EventKind::Released,
                Err(Error::Lost(_)) => EventKind::NotHeld,
                Err(_) => EventKind::Unknown,
            },
            (Self::Broken(conn), Held::Broken { token, .. }) => {
                let mut conn = conn.clone();
                if conn.get::<_, Option<String>>(NAME).await.expect("GET") != Some(token) {
                    return EventKind::NotHeld;
                }
                let _: i64 = conn.del(NAME).await.expect("DEL");
                EventKind::Released
            }
            (Self::Ours { .. }, Held::Broken { .. }) => EventKind::Unknown,
        }
    }

    /// Whether nothing is left in this process: no entry, no renewal, no subscription.
    pub fn is_clean(&self) -> bool {
        match self {
            Self::Ours { locks, .. } => locks.usage() == LockUsage::default(),
            Self::Broken(_) => true,
        }
    }
}

impl Held {
    pub fn valid_for(&self) -> Duration {
        match self {
            Self::Ours(guard) => guard.valid_for(),
            Self::Broken { until, .. } => until.saturating_duration_since(Instant::now()),
        }
    }

    /// The fencing token, if the lock has one.
    pub fn fence(&self) -> Option<u64> {
        match self {
            Self::Ours(guard) => guard.fence(),
            Self::Broken { .. } => None,
        }
    }
}

async fn acquire_kind<K: LockKind>(
    lock: &Lock<K>,
    owner: Owner,
    limit: Duration,
) -> Result<Option<Held>, Error> {
    let guard = lock.acquire_within_as(&owner, limit).await?;
    Ok(guard.map(|guard| Held::Ours(Box::new(guard))))
}

async fn broken_acquire(mut conn: MultiplexedConnection, limit: Duration) -> Option<Held> {
    let give_up = Instant::now() + limit;
    let token = format!("{:032x}", rand::random::<u128>());
    loop {
        let sent = Instant::now();
        if !conn.exists::<_, bool>(NAME).await.expect("EXISTS") {
            let lease = LEASE.as_millis() as u64;
            let _: () = conn.pset_ex(NAME, &token, lease).await.expect("PSETEX");
            return Some(Held::Broken { until: sent + LEASE, token });
        }
        if Instant::now() >= give_up {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
