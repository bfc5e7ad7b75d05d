//! The ladder: one file a rung, in the order a learner meets them. What each guarantees is the table
//! in `voucher/strategy.rs`; the strategy belongs to the sale.
//!
//! | rung | the idea |
//! |---|---|
//! | [`naive`] | read the stock, then decrement it |
//! | [`compare_and_set`] | decrement where the stock is what was read |
//! | [`conditional`] | decrement where there is stock left |
//! | [`row_lock`] | lock the sale's row first |
//! | [`process_lock`] | conditional, under a per-user lock inside the process |
//! | [`setnx_lock`] | conditional, under a per-user SET NX lock in Redis |
//! | [`reentrant_lock`] | conditional, under a per-user Redisson-compatible lock in Redis |
//! | [`stream`] | a script in Redis admits, a consumer group commits |
//! | [`group_commit`] | those who arrive while a commit runs share the next one |
//!
//! Two rules hold for all: the order is inserted first and the hot stock row is changed last, so
//! that it stays locked for one statement and the commit; and nothing but the database is waited for
//! while a row is locked.

use super::model::Buyer;
use super::purchase::Tools;
use crate::error::Error;
use crate::voucher::sales::Sale;
use crate::voucher::strategy::Strategy;

pub mod compare_and_set;
pub mod conditional;
pub mod group_commit;
pub mod naive;
pub mod process_lock;
pub mod reentrant_lock;
pub mod row_lock;
pub mod setnx_lock;
pub mod stream;

/// Buys by the sale's strategy; returns the id of the order, which is committed, except where the strategy
/// [`Strategy::is_deferred`].
pub async fn buy(tools: &Tools, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
    match sale.strategy {
        Strategy::Naive => naive::buy(tools, buyer, sale).await,
        Strategy::CompareAndSet => compare_and_set::buy(tools, buyer, sale).await,
        Strategy::Conditional => conditional::buy(tools, buyer, sale).await,
        Strategy::RowLock => row_lock::buy(tools, buyer, sale).await,
        Strategy::ProcessLock => process_lock::buy(tools, buyer, sale).await,
        Strategy::SetnxLock => setnx_lock::buy(tools, buyer, sale).await,
        Strategy::ReentrantLock => reentrant_lock::buy(tools, buyer, sale).await,
        Strategy::Stream => stream::buy(tools, buyer, sale).await,
        Strategy::GroupCommit => group_commit::buy(tools, buyer, sale).await,
    }
}
