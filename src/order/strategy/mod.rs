//! Strategies: how each one sells, in a file or folder of its own. Their names, ideas and guarantees are the table in
//! [`workload::ladder`]; the strategy belongs to the sale.
//!
//! Two rules hold for all: the order is inserted first and the hot stock row is changed last, so
//! that it stays locked for one statement and the commit; and nothing but the database is waited for
//! while a row is locked.

use std::pin::Pin;

use super::context::PurchaseContext;
use super::deadline::Deadline;
use super::model::Buyer;
use super::steps;
use crate::error::Error;
use crate::request::trace;
use crate::voucher::sales::Sale;
use workload::ladder::Strategy;

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
/// [`Strategy::is_deferred`]. Nothing is committed that has not begun to be at `deadline`; what waits before that waits no
/// longer.
pub async fn buy(
    context: &PurchaseContext,
    buyer: Buyer,
    sale: &Sale,
    deadline: Deadline,
) -> Result<i64, Error> {
    // Boxed: group-commit, and refusals, would move the size of the largest.
    let buying: Pin<Box<dyn Future<Output = _> + Send>> = match sale.strategy {
        Strategy::Stream => {
            Box::pin(trace::step(context.stream.order(buyer, sale, deadline), steps::admitted))
        }
        Strategy::GroupCommit => return group_commit::buy(context, buyer, sale, deadline).await,
        Strategy::Naive => Box::pin(naive::buy(context, buyer, sale, deadline)),
        Strategy::CompareAndSet => Box::pin(compare_and_set::buy(context, buyer, sale, deadline)),
        Strategy::Conditional => Box::pin(conditional::buy(context, buyer, sale, deadline)),
        Strategy::RowLock => Box::pin(row_lock::buy(context, buyer, sale, deadline)),
        Strategy::LockInTransaction => {
            Box::pin(lock_in_transaction::buy(context, buyer, sale, deadline))
        }
        Strategy::ProcessLock => Box::pin(process_lock::buy(context, buyer, sale, deadline)),
        Strategy::SetnxUnowned => Box::pin(setnx_unowned::buy(context, buyer, sale, deadline)),
        Strategy::SetnxLock => Box::pin(setnx_lock::buy(context, buyer, sale, deadline)),
        Strategy::ReentrantLock => Box::pin(reentrant_lock::buy(context, buyer, sale, deadline)),
        Strategy::UnitRows => Box::pin(unit_rows::buy(context, buyer, sale, deadline)),
    };
    buying.await
}
