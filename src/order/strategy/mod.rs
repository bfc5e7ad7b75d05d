//! Strategies: how each one sells, in a file or folder of its own. Their names, ideas and guarantees are the table in
//! the crate [`ladder`]; the strategy belongs to the sale.
//!
//! Two rules hold for all: the order is inserted first and the hot stock row is changed last, so
//! that it stays locked for one statement and the commit; and nothing but the database is waited for
//! while a row is locked.

use super::context::PurchaseContext;
use super::model::Buyer;
use crate::error::Error;
use crate::voucher::sales::Sale;
use ladder::Strategy;

pub mod compare_and_set;
pub mod conditional;
pub mod group_commit;
pub mod lock_in_transaction;
pub mod naive;
pub mod process_lock;
mod redis_lock;
pub mod reentrant_lock;
pub mod row_lock;
pub mod setnx_lock;
pub mod setnx_unowned;
pub mod stream;
pub mod unit_rows;

/// Buys by the sale's strategy; returns the id of the order, which is committed, except where the strategy
/// [`Strategy::is_deferred`].
pub async fn buy(context: &PurchaseContext, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
    match sale.strategy {
        Strategy::Naive => naive::buy(context, buyer, sale).await,
        Strategy::CompareAndSet => compare_and_set::buy(context, buyer, sale).await,
        Strategy::Conditional => conditional::buy(context, buyer, sale).await,
        Strategy::RowLock => row_lock::buy(context, buyer, sale).await,
        Strategy::LockInTransaction => lock_in_transaction::buy(context, buyer, sale).await,
        Strategy::ProcessLock => process_lock::buy(context, buyer, sale).await,
        Strategy::SetnxUnowned => setnx_unowned::buy(context, buyer, sale).await,
        Strategy::SetnxLock => setnx_lock::buy(context, buyer, sale).await,
        Strategy::ReentrantLock => reentrant_lock::buy(context, buyer, sale).await,
        Strategy::Stream => stream::buy(context, buyer, sale).await,
        Strategy::GroupCommit => group_commit::buy(context, buyer, sale).await,
        Strategy::UnitRows => unit_rows::buy(context, buyer, sale).await,
    }
}
