//! Distributed locks on Redis, compatible with Redisson.
#![doc = include_str!("../README.md")]
//!
//! # Map of the source
//! - `locks`, `shared`: the entry point, and the state behind it
//! - `kinds`: the locks that callers use; `kind`: their kinds as types and values
//! - `holding`: requests, holds, guards, and the registry of (lock, owner) pairs, which lets one
//!   command per pair be under way at a time
//! - `waiting`: wait loops, the wake-up registry, Pub/Sub subscriptions
//! - `renewal`: the watchdog and its schedule
//! - `cleanup`: work that outlives its caller, and reconciliation after unknown outcomes
//! - `commands`: one method for each script of `lua/`; `connection`: sends them over `redis_link`

#![warn(clippy::missing_errors_doc)]

mod cleanup;
mod commands;
mod config;
mod connection;
mod error;
mod holding;
pub mod kind;
mod kinds;
mod locks;
mod name;
mod owner;
mod renewal;
mod scripts;
mod shared;
mod stats;
mod supervise;
mod waiting;

pub use config::LockConfig;
pub use connection::refusals::ChannelRefusals;
pub use error::{Cause, Error, Lost, LostReason};
pub use holding::guard::Guard;
pub use kinds::fair::FairLock;
pub use kinds::fenced::FencedLock;
pub use kinds::lock::Lock;
pub use kinds::multi::MultiLock;
pub use kinds::multi_guard::MultiGuard;
pub use kinds::read_write::{ReadLock, ReadWriteLock, WriteLock};
pub use kinds::reentrant::ReentrantLock;
pub use kinds::setnx::{SetNxGuard, SetNxLock};
pub use locks::{LockUsage, Locks};
pub use owner::Owner;
pub use redis;
pub use redis_link::{AddressError, Redis, RoutedConnection, Server};
pub use stats::{DurationHistogram, LockStats, Losses};
