//! Strategies: how each one sells, in a file or folder of its own. Their names, ideas and guarantees are the table in
//! [`strategies`]; the strategy belongs to the sale.
//!
//! Two rules hold for all: the order is inserted first and the hot stock row is changed last, so
//! that it stays locked for one statement and the commit; and nothing but the database is waited for
//! while a row is locked.

use std::pin::Pin;

use super::steps;
use crate::error::Error;
use crate::request::trace;
use strategies::Strategy;

pub mod compare_and_set;
pub mod conditional;
pub mod context;
pub mod group_commit;
pub mod lock_in_transaction;
pub mod memory_queue;
pub mod naive;
pub mod process_lock;
mod redis_lock;
pub mod reentrant_lock;
pub mod row_lock;
pub mod setnx_lock;
pub mod setnx_unowned;
pub mod stream;
pub mod unit_rows;

use context::Purchase;
use group_commit::batch::BatchAnswer;

/// Buys by the sale's strategy; returns the id of the order, which is committed, except where the strategy
/// [`Strategy::is_deferred`] or [`Strategy::can_lose`] it.
pub async fn buy(purchase: Purchase<'_>) -> Result<i64, Error> {
    let Purchase {
        context,
        buyer,
        sale,
        deadline,
    } = purchase;
    // Boxed, because an unboxed future would have the size of the largest strategy for all of them.
    let buying: Pin<Box<dyn Future<Output = _> + Send>> = match sale.strategy {
        Strategy::Stream => {
            let admitting = context.stream.order(buyer, sale, deadline);
            Box::pin(trace::step(admitting, steps::ended("admitted")))
        }
        Strategy::GroupCommit => {
            let ordering = context.group_commit.order(buyer, sale, deadline);
            let committed =
                |answer: &BatchAnswer| steps::batch_committed(&answer.outcome, answer.committed);
            return trace::step(ordering, committed).await.outcome;
        }
        Strategy::Naive => Box::pin(naive::buy(purchase)),
        Strategy::CompareAndSet => Box::pin(compare_and_set::buy(purchase)),
        Strategy::Conditional => Box::pin(conditional::buy(purchase)),
        Strategy::RowLock => Box::pin(row_lock::buy(purchase)),
        Strategy::LockInTransaction => Box::pin(lock_in_transaction::buy(purchase)),
        Strategy::ProcessLock => Box::pin(process_lock::buy(purchase)),
        Strategy::SetnxUnowned => Box::pin(setnx_unowned::buy(purchase)),
        Strategy::SetnxLock => Box::pin(setnx_lock::buy(purchase)),
        Strategy::ReentrantLock => Box::pin(reentrant_lock::buy(purchase)),
        Strategy::MemoryQueue => Box::pin(async move {
            let order = purchase.new_order().await?;
            context.memory_queue.order(order, deadline).await
        }),
        Strategy::UnitRows => Box::pin(unit_rows::buy(purchase)),
    };
    buying.await
}
