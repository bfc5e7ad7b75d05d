//! Group commit: purchases that arrive while a commit runs share the next one, so that many orders cost one
//! transaction and one wait for the disk. Safe on any number of nodes without any lock: the database's unique index
//! drops second orders, and the stock falls once, by the number really inserted, where it suffices. Each buyer is
//! answered after the commit all the same.
//!
//! The idea is as old as the log manager of a database (Gawlick and Kinkade, "Varieties of Concurrency Control in
//! IMS/VS Fast Path", 1985).
//!
//! - [`queue`]: the queue of all sales, and the workers that empty it; `queues`: when a worker starts and ends.
//! - [`batch`]: one batch, from the queue to every buyer's answer.

pub mod batch;
pub mod queue;
mod queues;
