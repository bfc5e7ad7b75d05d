//! Reads: the strategies, and what they share.

pub(crate) mod load;
pub(crate) mod rebuild;
pub(crate) mod single_flight;
pub(crate) mod strategies;
