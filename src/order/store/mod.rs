//! The SQL of orders.
//!
//! - [`orders`]: reads, and [`OrderStore`] itself.
//! - [`transaction`]: [`OrderTransaction`]; each statement that is sent by itself is a method.
//! - [`commit`]: the text that commits a purchase, which is usually the whole transaction. [`decide`]: what became of a text
//!   whose reply was lost, and whether an order that is not found may still come.
//! - [`batch`]: many orders in one transaction.
//! - [`units`]: the rows of the strategy `unit-rows`.
//! - [`lifetime`]: payment, cancellation, and the transactional outbox of returned stock.
//! - [`count`]: what the stream's stock counters and claims are counted from.
//! - [`totals`]: sums for the audit.

pub mod batch;
pub mod commit;
pub mod count;
pub mod decide;
pub mod lifetime;
pub mod orders;
pub mod totals;
pub mod transaction;
pub mod units;

pub use commit::{Ended, Kind, Obstacle, Text};
pub use orders::OrderStore;
pub use transaction::OrderTransaction;
