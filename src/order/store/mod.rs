//! The SQL of orders.
//!
//! - [`orders`]: reads, and [`OrderStore`] itself.
//! - [`transaction`]: [`OrderTransaction`], in which one purchase places its order; each conditional statement is a method.
//! - [`commit`]: its end.
//! - [`batch`]: many orders in one transaction.
//! - [`units`]: the rows of the strategy `unit-rows`.
//! - [`lifetime`]: payment, cancellation, and the transactional outbox of returned stock.
//! - [`count`]: what the stream's stock counters and claims are counted from. [`refusals`]: refusals of pending orders.
//! - [`totals`]: sums for the audit. [`id_offsets`]: the time zones of order ids, for `doctor`.

pub mod batch;
pub mod commit;
pub mod count;
pub mod id_offsets;
pub mod lifetime;
pub mod orders;
pub mod refusals;
pub mod totals;
pub mod transaction;
pub mod units;

pub use commit::Taken;
pub use orders::OrderStore;
pub use transaction::OrderTransaction;
