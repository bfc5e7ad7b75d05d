//! [`PurchaseContext`]: what every strategy works with, and the two steps that most of them begin with.

use std::sync::Arc;
use std::time::Duration;

use super::deadline::{Deadline, until};
use super::model::{Buyer, NewOrder};
use super::process_locks::ProcessLocks;
use super::steps;
use super::store::OrderStore;
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

impl PurchaseContext {
    /// Refuses a buyer who has an order, or for whom nothing is left, by a plain read: a later check may find
    /// otherwise.
    pub async fn check_buyer(&self, buyer: Buyer) -> Result<(), Error> {
        let status = trace::step(self.store.buyer_status(buyer), steps::status_read).await?;
        status.ok_or(Error::VoucherNotFound)?.require_chance()
    }

    /// An order for this buyer under a fresh id.
    pub async fn new_order(
        &self,
        buyer: Buyer,
        sale: &Sale,
        deadline: Deadline,
    ) -> Result<NewOrder, Error> {
        let id = until(deadline, self.ids.next()).await??;
        Ok(NewOrder { id, buyer, unguarded: sale.strategy.is_unsafe() })
    }
}
