//! Distributed locks on Redis, compatible with Redisson.
#![doc = include_str!("../README.md")]
//!
//! # Map of the source
//! - `locks`: the entry point
//! - `kinds`: the locks that callers use; `kind`: their kinds as types and values
//! - `request`: what a call asks for; `waiting`: the wait loop; `holding`: guards
//! - `tasks`: renewal, subscriptions, and reconciliation after unknown outcomes
//! - `state`: what calls and tasks share
//! - `commands`: one method for each script of `lua/`; `connection`: sends them over `redis_link`

#![warn(clippy::missing_errors_doc)]

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
mod request;
mod scripts;
mod state;
mod stats;
mod tasks;
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
