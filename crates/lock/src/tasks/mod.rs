//! What runs in the background.
//!
//! - [`watchdog`]: renews what is held
//! - [`subscriber`], [`pubsub`]: the Pub/Sub connections that deliver messages to waiters
//! - [`reconcile`]: releases what the server may have granted, after an unknown outcome
//! - [`supervise`]: starts a task again that has panicked

pub(crate) mod pubsub;
pub(crate) mod reconcile;
pub(crate) mod subscriber;
pub(crate) mod supervise;
pub(crate) mod watchdog;
