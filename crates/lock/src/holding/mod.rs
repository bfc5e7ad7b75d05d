//! Guards: what a caller holds, and releases once.

pub(crate) mod armed;
pub(crate) mod guard;
