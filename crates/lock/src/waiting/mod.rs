//! Waiting for a lock: subscribe, try, sleep until a message or a timeout, try again.
//!
//! - [`wait`]: the wait loop; [`acquirer`]: the tries that it makes
//! - [`fair_queue_ticket`]: membership in the queue of a fair lock
//! - [`patience`]: how long one call goes on waiting, also through an outage, and its random pauses

pub(crate) mod acquirer;
pub(crate) mod fair_queue_ticket;
pub(crate) mod patience;
pub(crate) mod wait;
