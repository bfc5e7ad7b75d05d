//! Commits a batch of orders of one sale in one transaction, for group commit and for the consumers of the stream.
//!
//! - The outcomes are what was committed: none is known before the commit.
//! - Where the stock does not suffice, orders are served by their position in the batch.
//! - A commit whose outcome is unknown is resolved by looking up one of its orders: the transaction happened for
//!   all or for none.

use std::collections::HashSet;
use std::time::Duration;

use backon::Retryable;

use super::model::NewOrder;
use super::retry::{conflict_pauses, is_conflict};
use super::store::batch::{BatchError, InsertedBatch};
use super::store::{OrderStore, OrderTransaction};
use crate::error::Error;

/// Each order's outcome: its id once it is committed.
pub type Outcomes = Vec<Result<i64, Error>>;

/// Commits batches. Cheap to clone.
#[derive(Clone)]
pub struct BatchCommitter {
    store: OrderStore,
    /// No retry begins later than this after the first try.
    timeout: Duration,
}

impl BatchCommitter {
    /// Commits to `store`; retries conflicts for at most `timeout`.
    pub fn new(store: OrderStore, timeout: Duration) -> Self {
        BatchCommitter { store, timeout }
    }

    /// Commits these orders of one sale; returns each one's outcome. Conflicts that concern all are retried, and
    /// so are those of a batch of one. On an error, nothing was done.
    pub async fn commit(
        &self,
        voucher_id: i64,
        orders: &[NewOrder],
    ) -> Result<Outcomes, BatchError> {
        // In the same order on every node: then two batches cannot wait for each other's buyers.
        let mut sorted = orders.to_vec();
        sorted.sort_unstable_by_key(|order| order.buyer.user_id);
        (|| self.commit_once(voucher_id, orders, &sorted))
            .retry(conflict_pauses(self.timeout))
            .when(|error| match error {
                BatchError::All(error) => is_conflict(error),
                BatchError::Insert(error) => is_conflict(error) && orders.len() == 1,
            })
            .await
    }

    async fn commit_once(
        &self,
        voucher_id: i64,
        orders: &[NewOrder],
        sorted: &[NewOrder],
    ) -> Result<Outcomes, BatchError> {
        let mut transaction = self.store.begin().await.map_err(BatchError::All)?;
        let InsertedBatch { inserted, decremented } =
            match transaction.insert_batch(voucher_id, sorted).await {
                Ok(batch) => batch,
                Err(error) => {
                    if matches!(error, BatchError::Insert(_)) {
                        // Rolled back and waited for: what follows inserts the same orders again, and must not
                        // meet the locks of this transaction, nor deadlock when they go.
                        rollback(transaction).await;
                    }
                    return Err(error);
                }
            };
        if inserted == orders.len() && decremented {
            let committed = transaction.commit(&orders[0]).await;
            return Ok(orders.iter().map(|order| outcome_of(order.id, &committed)).collect());
        }
        self.commit_some(voucher_id, orders, transaction, inserted, decremented).await
    }

    /// Commits a batch of which the unique keys dropped some, or for which the stock does not suffice.
    async fn commit_some(
        &self,
        voucher_id: i64,
        orders: &[NewOrder],
        mut transaction: OrderTransaction,
        inserted: usize,
        decremented: bool,
    ) -> Result<Outcomes, BatchError> {
        let mut kept = transaction.inserted_of(orders).await.map_err(BatchError::All)?;
        if kept.len() != inserted {
            let detail = format!("{inserted} orders were inserted and {} are there", kept.len());
            return Err(BatchError::All(Error::Internal(detail)));
        }
        let dropped: Vec<i64> = orders
            .iter()
            .filter(|order| !kept.contains(&order.id))
            .map(|order| order.buyer.user_id)
            .collect();
        if !decremented {
            let stock = transaction.lock_stock(voucher_id).await.map_err(BatchError::All)?;
            let stock = usize::try_from(stock).unwrap_or(0);
            let arrived = orders.iter().map(|order| order.id).filter(|id| kept.contains(id));
            let surplus: HashSet<i64> = arrived.skip(stock).collect();
            if surplus.len() < kept.len() {
                transaction.delete_inserted(&surplus).await.map_err(BatchError::All)?;
                let count = kept.len() - surplus.len();
                if !transaction.decrement_by(voucher_id, count).await.map_err(BatchError::All)? {
                    let detail = format!("stock of {stock} did not suffice for {count}");
                    return Err(BatchError::All(Error::Internal(detail)));
                }
            }
            kept.retain(|id| !surplus.contains(id));
        }
        let first = orders.iter().find(|order| kept.contains(&order.id));
        let committed = match first {
            Some(first) => transaction.commit(first).await,
            // Nothing to keep, and the stock is what it was.
            None => transaction.rollback().await.map_err(|_| Error::Unavailable("the database")),
        };
        // For buyers whose order the unique index dropped: the order that they have.
        let existing = self.store.orders_by_user(voucher_id, &dropped).await;
        let dropped: HashSet<i64> = dropped.into_iter().collect();
        let outcome = |order: &NewOrder| {
            let user = order.buyer.user_id;
            if kept.contains(&order.id) {
                return outcome_of(order.id, &committed);
            }
            if !dropped.contains(&user) {
                // Sold out because of those that were kept: only true once they are committed.
                return Err(committed
                    .clone()
                    .err()
                    .map_or(Error::SoldOut, |_| Error::Unavailable("the database")));
            }
            match &existing {
                Ok(existing) => Err(existing
                    .get(&user)
                    .map_or(Error::DuplicateId, |id| Error::AlreadyOrdered(Some(*id)))),
                Err(error) => Err(error.clone()),
            }
        };
        Ok(orders.iter().map(outcome).collect())
    }
}

async fn rollback(transaction: OrderTransaction) {
    if let Err(error) = transaction.rollback().await {
        tracing::debug!(%error, "a batch's connection is closed instead of rolled back");
    }
}

/// The outcome of order `id`, given that of the commit.
fn outcome_of(id: i64, committed: &Result<(), Error>) -> Result<i64, Error> {
    match committed {
        Ok(()) => Ok(id),
        Err(Error::OutcomeUnknown(_)) => Err(Error::OutcomeUnknown(Some(id))),
        Err(error) => Err(error.clone()),
    }
}
