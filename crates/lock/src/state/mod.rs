//! What all handles and tasks of one [`Locks`](crate::Locks) share.
//!
//! - [`shared`]: all of it
//! - [`registry`]: the (lock, owner) pairs of this process, each with one command under way at a time;
//!   [`hold`]: a pair that is held
//! - [`renewal_schedule`]: which hold is due when
//! - [`wakeups`]: which waiters are woken by which channel
//! - [`cleanup_queue`]: work that outlives its caller; [`node_limits`]: how many commands the background
//!   sends to one node at once

pub(crate) mod cleanup_queue;
pub(crate) mod hold;
pub(crate) mod node_limits;
pub(crate) mod registry;
pub(crate) mod renewal_schedule;
pub(crate) mod shared;
pub(crate) mod wakeups;
