//! The kinds of locks: what callers use.
//!
//! - [`lock`]: the calls that all kinds with an owner share; [`reentrant`], [`fenced`], [`fair`] and
//!   [`read_write`]: what is particular to each
//! - [`multi`]: several locks, all or none, held as one [`multi_guard`]
//! - [`setnx`]: `SET NX` without waiting

pub(crate) mod fair;
pub(crate) mod fenced;
pub(crate) mod lock;
pub(crate) mod multi;
pub(crate) mod multi_guard;
pub(crate) mod read_write;
pub(crate) mod reentrant;
pub(crate) mod setnx;
