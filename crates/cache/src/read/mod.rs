//! Reads: the strategies, and the rebuild that they share.

pub(crate) mod rebuild;
pub(crate) mod strategies;
