//! Locks that several processes share through Redis, and one that stays inside a process.
//!
//! A small library of its own: it names nothing of the crate outside this folder, no feature and
//! no web framework.
//!
//! | Lock | Held in | Waits | Renewed | For |
//! |---|---|---|---|---|
//! | [`ReentrantLock`] | Redis, a hash | yes, woken by pub/sub | yes, by the watchdog | the default |
//! | [`SetNxLock`] | Redis, a string | no | no | work that is surely shorter than its lease |
//! | [`ProcessLocks`] | this process | yes, in order | – | excluding the tasks of one process |
//!
//! # The reentrant lock on the wire
//! The format of Redisson's `RLock` (3.13 to 4.7), so that Java and Rust nodes share locks: the
//! key is the lock's name, a hash with one field `<client uuid>:<owner id>` whose value is the hold
//! count; it expires with its lease; a release publishes `0` on `redisson_lock__channel:{name}`.
//! The scripts are in `lua/lock_*.lua`. One deviation, invisible to others: the count is written
//! as an absolute number, so that a command sent twice counts once.
//!
//! # The parts
//! [`ReentrantLock`] acquires and waits · [`Guard`] is what is held · `hold` the state of one span
//! of holding · `registry` who is doing what, one command per lock and owner at a time · `watchdog`
//! renews · `wake` and `listener` hear of releases · `janitor` finishes what callers leave behind ·
//! `conn` the commands · `locks` puts them together.
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
//! use seckill::lock::{LockConfig, Locks};
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
mod listener;
mod locks;
mod name;
mod owner;
mod place;
mod process;
mod read_write;
mod registry;
mod setnx;
mod settle;
mod supervise;
mod wait;
mod wake;
mod watchdog;

pub use config::{LockConfig, Replicas};
pub use conn::Server;
pub use error::{Error, LostReason};
pub use family::{FairLock, FencedLock, Lock, ReadLock, ReentrantLock, WriteLock};
pub use guard::Guard;
pub use locks::{LockUsage, Locks};
pub use owner::Owner;
pub use process::{ProcessGuard, ProcessLocks};
pub use read_write::ReadWriteLock;
pub use setnx::{SetNxGuard, SetNxLock};
