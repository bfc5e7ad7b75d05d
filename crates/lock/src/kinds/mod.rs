//! The kinds of locks and semaphores: what callers use.
//!
//! - [`lock`]: the calls of all kinds with an owner; [`reentrant`], [`fenced`], [`fair`] and
//!   [`read_write`] are what differs
//! - [`multi`]: several locks, all or none, held as one [`multi_guard`]
//! - [`semaphore`] and its [`permits`], [`leased_semaphore`] and [`leased_permits`]: what differs with leases
//! - [`setnx`]: `SET NX` without waiting

pub(crate) mod fair;
pub(crate) mod fenced;
pub(crate) mod leased_permits;
pub(crate) mod leased_semaphore;
pub(crate) mod lock;
pub(crate) mod multi;
pub(crate) mod multi_guard;
pub(crate) mod permits;
pub(crate) mod read_write;
pub(crate) mod reentrant;
pub(crate) mod semaphore;
pub(crate) mod setnx;
