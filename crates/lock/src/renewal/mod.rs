//! Renewal of held locks: the schedule of what is due when, and the watchdog task that works it off.

pub(crate) mod schedule;
pub(crate) mod watchdog;
