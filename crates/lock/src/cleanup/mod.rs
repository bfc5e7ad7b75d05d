//! Work that is finished in the background: the queue for it, guards that release when they are dropped,
//! and the reconciliation with the server after an outcome that never became known.

pub(crate) mod armed;
pub(crate) mod limits;
pub(crate) mod queue;
pub(crate) mod reconcile;
