//! [`Purchase`]: one purchase, and the steps that most strategies begin with. [`PurchaseContext`]: what all of them work with.

use std::sync::Arc;
use std::time::Duration;

use super::deadline::{Deadline, until};
use super::model::{Buyer, NewOrder};
use super::process_locks::{ProcessGuard, ProcessLocks};
use super::steps;
use super::store::{OrderStore, OrderTransaction};
use super::strategy::group_commit::queue::GroupCommit;
use super::strategy::stream::OrderStream;
use crate::connection::redis::RoutedConnection;
use crate::error::Error;
use crate::id::IdGenerator;
use crate::request::trace;
use crate::voucher::sales::Sale;
use lock::Locks;

/// What a strategy works with.
pub struct PurchaseContext {
    /// The SQL.
    pub store: OrderStore,
    /// The same, on the connections of reads.
    pub reads: OrderStore,
    /// Order ids.
    pub ids: Arc<IdGenerator>,
    /// The queues of the group-commit strategy.
    pub group_commit: GroupCommit,
    /// The stream strategy: admission, and the consumer that commits.
    pub stream: OrderStream,
    /// Locks shared by all nodes.
    pub locks: Locks,
    /// Commands to Redis, for the lock that is a strategy's own.
    pub redis: RoutedConnection,
    /// Locks within this process, by user.
    pub process_locks: ProcessLocks,
    /// Lease of the setnx lock.
    pub setnx_lease: Duration,
    /// Whether setnx-unowned compares the lock's value before it deletes it.
    pub setnx_unowned_compare: bool,
    /// Longest time one database step may take.
    pub database_timeout: Duration,
    /// Longest time from a purchase's beginning to that of its commit.
    pub commits_within: Duration,
}

/// One purchase, as its strategy sees it.
#[derive(Clone, Copy)]
pub struct Purchase<'a> {
    /// What the strategy works with.
    pub context: &'a PurchaseContext,
    /// Who buys what.
    pub buyer: Buyer,
    /// The sale, which is on.
    pub sale: &'a Sale,
    /// Nothing is committed that has not begun to be by then; what waits before that waits no longer.
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
        Ok(NewOrder { id, buyer: self.buyer, unguarded: self.sale.strategy.is_unsafe() })
    }

    /// The buyer's lock within this process.
    pub async fn lock_in_process(&self) -> Result<ProcessGuard, Error> {
        let lock = self.context.process_locks.acquire(self.buyer.user_id.cast_unsigned());
        until(self.deadline, trace::step(lock, steps::locked_in_memory)).await
    }

    /// A transaction, which sends nothing yet.
    pub async fn begin(&self) -> Result<OrderTransaction, Error> {
        self.context.store.begin_until(self.deadline).await
    }
}
