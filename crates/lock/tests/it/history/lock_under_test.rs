//! The locks whose histories are checked: those of this crate, and two that are broken on purpose.

use std::pin::Pin;
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use redisson_lock::kind::{Fenced, LockKind};
use redisson_lock::{Error, Guard, Lock, LockConfig, LockUsage, Locks, Owner, Server};
use serde::{Deserialize, Serialize};

use testkit::redis_sentinel::MASTER;

/// The name of the lock that all processes of a history share.
pub const NAME: &str = "lock:history";

/// The lease of most histories, but for [`Kind::ReleasesUnchecked`].
pub const LEASE: Duration = Duration::from_millis(600);

/// The command timeout: short, so that faults exceed it.
pub const COMMAND: Duration = Duration::from_millis(300);

/// The lease of [`Kind::ReleasesUnchecked`]: shorter than the work.
const TOO_SHORT: Duration = Duration::from_millis(8);

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
    /// Broken: acquires by SET NX, but deletes the key without checking its owner.
    ReleasesUnchecked,
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
    Broken { conn: MultiplexedConnection, kind: Kind },
}

/// A held lock.
pub enum Held {
    Ours { guard: Box<dyn AnyGuard>, fence: Option<u64> },
    Broken { until: Instant, token: String },
}

/// A guard of any kind of lock of this crate.
pub trait AnyGuard: Send + Sync {
    fn valid_for(&self) -> Duration;
    fn release(self: Box<Self>) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;
}

impl<K: LockKind> AnyGuard for Guard<K> {
    fn valid_for(&self) -> Duration {
        Self::valid_for(self)
    }

    fn release(self: Box<Self>) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        Box::pin(Self::release(*self))
    }
}

/// The outcome of a release.
pub enum ReleaseOutcome {
    Released,
    NotHeld,
    Unknown,
}

impl LockUnderTest {
    pub async fn connect(settings: &Settings) -> Self {
        let Settings { kind, target, lease, replicas } = settings;
        let kind = *kind;
        match (kind, target) {
            (Kind::ChecksThenSets | Kind::ReleasesUnchecked, Target::Single(url)) => {
                let conn = client(url).get_multiplexed_async_connection().await.expect("connect");
                Self::Broken { conn, kind }
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

    /// A new owner; the broken locks have none.
    pub fn owner(&self) -> Option<Owner> {
        match self {
            Self::Ours { locks, .. } => Some(locks.owner()),
            Self::Broken { .. } => None,
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
                    Kind::Fenced => {
                        acquire_kind(locks.fenced(NAME), owner, limit, |guard| {
                            Some(Guard::<Fenced>::fence(guard))
                        })
                        .await
                    }
                    Kind::Fair => acquire_kind(locks.fair(NAME), owner, limit, |_| None).await,
                    Kind::Write => {
                        let write = locks.read_write(NAME).write().clone();
                        acquire_kind(write, owner, limit, |_| None).await
                    }
                    _ => acquire_kind(locks.lock(NAME), owner, limit, |_| None).await,
                };
                held.map_err(|error| error.to_string())
            }
            (Self::Ours { .. }, None) => Err("no owner".to_owned()),
            (Self::Broken { conn, kind }, _) => broken_acquire(conn.clone(), *kind, limit).await,
        }
    }

    pub async fn release(&self, held: Held) -> ReleaseOutcome {
        match (self, held) {
            (_, Held::Ours { guard, .. }) => match guard.release().await {
                Ok(()) => ReleaseOutcome::Released,
                Err(Error::Lost(_)) => ReleaseOutcome::NotHeld,
                Err(_) => ReleaseOutcome::Unknown,
            },
            (Self::Broken { conn, kind }, Held::Broken { token, .. }) => {
                let mut conn = conn.clone();
                let held = match kind {
                    Kind::ReleasesUnchecked => true,
                    _ => conn.get::<_, Option<String>>(NAME).await.expect("GET") == Some(token),
                };
                if !held {
                    return ReleaseOutcome::NotHeld;
                }
                let _: i64 = conn.del(NAME).await.expect("DEL");
                // Without a check the outcome is unknown.
                if *kind == Kind::ReleasesUnchecked {
                    ReleaseOutcome::Unknown
                } else {
                    ReleaseOutcome::Released
                }
            }
            (Self::Ours { .. }, Held::Broken { .. }) => ReleaseOutcome::Unknown,
        }
    }

    /// Whether nothing is left in this process: no entry, no renewal, no subscription.
    pub fn is_clean(&self) -> bool {
        match self {
            Self::Ours { locks, .. } => locks.usage() == LockUsage::default(),
            Self::Broken { .. } => true,
        }
    }
}

impl Held {
    pub fn valid_for(&self) -> Duration {
        match self {
            Self::Ours { guard, .. } => guard.valid_for(),
            Self::Broken { until, .. } => until.saturating_duration_since(Instant::now()),
        }
    }

    /// The fencing token, if the lock has one.
    pub fn fence(&self) -> Option<u64> {
        match self {
            Self::Ours { fence, .. } => *fence,
            Self::Broken { .. } => None,
        }
    }
}

async fn acquire_kind<K: LockKind>(
    lock: Lock<K>,
    owner: Owner,
    limit: Duration,
    fence: impl FnOnce(&Guard<K>) -> Option<u64>,
) -> Result<Option<Held>, Error> {
    let guard = lock.acquire_within_as(&owner, limit).await?;
    Ok(guard.map(|guard| {
        let fence = fence(&guard);
        Held::Ours { guard: Box::new(guard), fence }
    }))
}

async fn broken_acquire(
    mut conn: MultiplexedConnection,
    kind: Kind,
    limit: Duration,
) -> Result<Option<Held>, String> {
    let give_up = Instant::now() + limit;
    let token = format!("{:032x}", rand::random::<u128>());
    loop {
        let sent = Instant::now();
        let (lease, set): (_, Option<String>) = if kind == Kind::ReleasesUnchecked {
            let mut set = redis::cmd("SET");
            set.arg(NAME).arg(&token).arg("NX").arg("PX").arg(TOO_SHORT.as_millis() as u64);
            (TOO_SHORT, set.query_async(&mut conn).await.expect("SET NX"))
        } else if conn.exists(NAME).await.expect("EXISTS") {
            (LEASE, None)
        } else {
            let mut set = redis::cmd("SET");
            set.arg(NAME).arg(&token).arg("PX").arg(LEASE.as_millis() as u64);
            (LEASE, set.query_async(&mut conn).await.expect("SET"))
        };
        if set.is_some() {
            return Ok(Some(Held::Broken { until: sent + lease, token }));
        }
        if Instant::now() >= give_up {
            return Ok(None);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
