//! Locks that several processes share through Redis, and one that stays inside a process.
//!
//! A small library of its own: it names nothing of the crate outside this folder, no feature and
//! no web framework.
//!
//! | Lock | Held in | Waits | Renewed | For |
//! |---|---|---|---|---|
//! | [`ReentrantLock`] | Redis, a hash | yes, woken by pub/sub | yes, by the watchdog | the default |
//! | [`FencedLock`] | the same and a counter | yes | yes | resources that can refuse late holders |
//! | [`FairLock`] | the same and a queue | yes, in order | yes | first come, first served |
//! | [`ReadWriteLock`] | a hash and a key a reader | yes | yes | many readers or one writer |
//! | [`MultiLock`] | several reentrant locks, on one Redis or more | yes, holding nothing | yes | all or none of several names |
//! | [`Majority`] | the same on most of N independent Redis servers | yes, holding nothing | yes | a lock that survives a minority of servers |
//! | [`Semaphore`] | Redis, a counter | yes, woken by pub/sub | – (no lease) | so many at once |
//! | [`LeasedSemaphore`] | Redis, a counter and a sorted set | yes, woken by pub/sub | no, [extended](LeasedPermit::extend) | so many at once, crashes included |
//! | [`SetNxLock`] | Redis, a string | no | no | work that is surely shorter than its lease |
//! | [`ProcessLocks`] | this process | yes, in order | – | excluding the tasks of one process |
//!
//! # On the wire
//! The format of Redisson's locks (3.13 to 4.7), so that Java and Rust nodes share them: the key is
//! the lock's name, a hash with one field `<client uuid>:<owner id>` whose value is the hold count;
//! it expires with its lease; a release publishes `0` on `redisson_lock__channel:{name}`. What the
//! others add is told by their scripts, `lua/*.lua`. One deviation, invisible to others: counts
//! are written as absolute numbers, so that a command sent twice counts once.
//!
//! # On which Redis
//! One server, a Redis Cluster or a master kept by Sentinel: see [`Server`]. On a cluster a release
//! is announced and listened for both by PUBLISH and, from Redis 7 on, by SPUBLISH: Redisson
//! changed from one to the other in 3.22. (A waiter may be woken twice; the second time costs one
//! needless try.) Slots that move, masters that are replaced and nodes that hang are followed, each
//! without holding up the others. Redis 6 or later.
//!
//! A failover can forget what the replica had not yet received: that is how Redis replicates, and
//! no lock on one Redis can mend it. [`LockConfig::replicas`] makes it rarer.
//!
//! # The parts
//! [`Lock`] is what callers see (`family`), whichever `kind` it is of · `wait` tries and waits ·
//! `claim` who wants what, and its names in Redis · `commands` which script does it · [`Guard`] is
//! what is held · `hold` the state of one span of holding · `registry` who is doing what, one command
//! per lock and owner at a time · `place` a place in the fair lock's queue · `watchdog` renews ·
//! `wake`, `listener` and `ear` hear of releases · `janitor` finishes what callers leave behind,
//! `settle` being the most of it · `stats` counts · `conn` the connection · `locks` puts them
//! together.
//!
//! [`MultiLock`] and [`Majority`] only take and hold such guards, in a `bundle`. The semaphores have
//! their commands in `semaphore_calls` and `permit_calls`, and wait in `line`.
//!
//! # What may be relied upon
//! - At most one owner holds a lock while its lease runs and Redis keeps its data. A guard tells by
//!   [`lost`](Guard::lost) and [`valid_for`](Guard::valid_for) when that can no longer be believed;
//!   it is *not* a fence: what must never happen twice belongs under a constraint of the database.
//! - Every call ends within its limit, whatever Redis does. Dropping a future at any point, or a
//!   guard anywhere, leaves nothing behind: a command on its way is seen through in the background
//!   and undone after its reply, not before.
//! - After an unknown outcome the owner-checked clean-up goes on until it is answered. A command
//!   that is carried out only after a broken connection was replaced and the clean-up answered
//!   twice can leave a key for one lease, never longer.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use redisson_lock::{LockConfig, Locks};
//!
//! let client = redis::Client::open("redis://127.0.0.1/")?;
//! let locks = Locks::connect(client, LockConfig::default()).await?;
//! let me = locks.owner();
//! if let Some(guard) = locks.reentrant("lock:order:1010")?.try_acquire(&me).await? {
//!     // ... the work, which may also watch `guard.lost()` ...
//!     guard.release().await?;
//! }
//! locks.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod bundle;
mod claim;
mod commands;
mod config;
mod conn;
mod ear;
mod error;
mod family;
mod guard;
mod hold;
mod janitor;
pub mod kind;
mod leased_semaphore;
mod limit;
mod line;
mod listener;
mod locks;
mod majority;
mod multi;
mod name;
mod owner;
mod permit_calls;
mod permits;
mod place;
mod process;
mod read_write;
mod registry;
mod scripts;
mod semaphore;
mod semaphore_calls;
mod setnx;
mod settle;
mod stats;
mod supervise;
mod wait;
mod wake;
mod watchdog;

pub use bundle::MultiGuard;
pub use config::{LockConfig, Replicas};
pub use conn::Server;
pub use error::{Error, LostReason};
pub use family::{FairLock, FencedLock, Lock, ReadLock, ReentrantLock, WriteLock};
pub use guard::Guard;
pub use leased_semaphore::{LeasedPermit, LeasedSemaphore};
pub use locks::{LockUsage, Locks};
pub use majority::Majority;
pub use multi::MultiLock;
pub use owner::Owner;
pub use permits::Permits;
pub use process::{ProcessGuard, ProcessLocks};
pub use read_write::ReadWriteLock;
pub use scripts::SCRIPTS;
pub use semaphore::Semaphore;
pub use setnx::{SetNxGuard, SetNxLock};
pub use stats::{Histogram, Stats};
