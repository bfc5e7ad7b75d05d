//! [`Purchase`]: one purchase, and the steps that most strategies begin with. [`PurchaseContext`]: what all of them work with.

use std::sync::Arc;
use std::time::Duration;

use lock::Locks;

use super::group_commit::queue::GroupCommit;
use super::memory_queue::MemoryQueue;
use super::stream::OrderStream;
use crate::connection::redis::RoutedConnection;
use crate::error::Error;
use crate::id::IdGenerator;
use crate::order::deadline::{Deadline, until};
use crate::order::model::{Buyer, NewOrder};
use crate::order::process_locks::{ProcessGuard, ProcessLocks};
use crate::order::steps;
use crate::order::store::{OrderStore, OrderTransaction};
use crate::request::trace;
use crate::voucher::sales::Sale;

/// What a strategy works with.
#[allow(missing_docs)] // the parts under their names
pub struct PurchaseContext {
    /// Commands to the master.
    pub redis: RoutedConnection,
    /// On the connections of purchases.
    pub store: OrderStore,
    pub ids: Arc<IdGenerator>,
    pub locks: Locks,
    pub setnx_lease: Duration,
    /// Longest time from a purchase's beginning to that of its commit.
    pub commits_within: Duration,
    /// Whether strategies that are unsafe on purpose may sell.
    pub lab: bool,
    pub group_commit: GroupCommit,
    pub memory_queue: MemoryQueue,
    pub stream: OrderStream,
    /// A lock for each user.
    pub process_locks: ProcessLocks,
}

/// One purchase, as its strategy sees it.
#[derive(Clone, Copy)]
#[allow(missing_docs)] // the parts under their names
pub struct Purchase<'a> {
    pub context: &'a PurchaseContext,
    pub buyer: Buyer,
    /// The sale, which is on.
    pub sale: &'a Sale,
    /// A commit that has not begun by then does not begin, and a wait before it ends then.
    pub deadline: Deadline,
}

impl Purchase<'_> {
    /// Refuses a buyer who has an order, or for whom nothing is left, by a plain read: a later check may find
    /// otherwise.
    pub async fn check_buyer(&self) -> Result<(), Error> {
        let status = self.context.store.buyer_status(self.buyer);
        let status = trace::step(status, steps::status_read).await?;
        status.ok_or(Error::VoucherNotFound)?.require_chance()
    }

    /// An order for this buyer under a fresh id.
    pub async fn new_order(&self) -> Result<NewOrder, Error> {
        let id = until(self.deadline, self.context.ids.next()).await??;
        Ok(NewOrder {
            id,
            buyer: self.buyer,
            unguarded: self.sale.strategy.is_unguarded(),
        })
    }

    /// The buyer's lock within this process.
    pub async fn lock_in_process(&self) -> Result<ProcessGuard, Error> {
        let lock = self
            .context
            .process_locks
            .acquire(self.buyer.user_id.cast_unsigned());
        until(self.deadline, trace::step(lock, steps::locked_in_memory)).await
    }

    /// A transaction, which sends nothing yet.
    pub async fn begin(&self) -> Result<OrderTransaction, Error> {
        self.context.store.begin_until(self.deadline).await
    }
}
