//! Waiting for a lock: subscribe, try, sleep until a message or a timeout, try again.
//!
//! - [`wait`]: the wait loop; [`acquirer`]: what locks do in it
//! - [`fair_queue_ticket`]: membership in the queue of a fair lock
//! - [`patience`]: how long one call waits, also for Redis, and its random pauses

pub(crate) mod acquirer;
pub(crate) mod fair_queue_ticket;
pub(crate) mod patience;
pub(crate) mod wait;
