//! Guards: what a caller holds, released once.

pub(crate) mod armed;
pub(crate) mod guard;
