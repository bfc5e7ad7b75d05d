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
use super::store::batch::BatchError;
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
        let inserted = match transaction.insert_batch(sorted).await {
            Ok(inserted) => inserted,
            Err(error) => {
                if matches!(error, BatchError::Insert(_)) {
                    // Rolled back and waited for: what follows inserts the same orders again, and must not
                    // meet the locks of this transaction, nor deadlock when they go.
                    rollback(transaction).await;
                }
                return Err(error);
            }
        };
        let mut places = vec![Place::Kept; orders.len()];
        if inserted < orders.len() {
            let kept = transaction.inserted_of(orders).await.map_err(BatchError::All)?;
            if kept.len() != inserted {
                let detail =
                    format!("{inserted} orders were inserted and {} are there", kept.len());
                return Err(BatchError::All(Error::Internal(detail)));
            }
            for (place, order) in places.iter_mut().zip(orders) {
                if !kept.contains(&order.id) {
                    *place = Place::Dropped;
                }
            }
        }
        let committed = match take_and_commit(transaction, orders, &places).await? {
            Taken::Ended(committed) => committed,
            Taken::Short(mut open) => {
                fit(&mut open, voucher_id, orders, &mut places).await.map_err(BatchError::All)?;
                match take_and_commit(open, orders, &places).await? {
                    Taken::Ended(committed) => committed,
                    Taken::Short(open) => {
                        rollback(open).await;
                        let detail = "the locked stock did not suffice".to_owned();
                        return Err(BatchError::All(Error::Internal(detail)));
                    }
                }
            }
        };
        self.outcomes(voucher_id, orders, &places, &committed).await
    }

    async fn outcomes(
        &self,
        voucher_id: i64,
        orders: &[NewOrder],
        places: &[Place],
        committed: &Result<(), Error>,
    ) -> Result<Outcomes, BatchError> {
        let of_place = |wanted| move |(_, place): &(&NewOrder, &Place)| **place == wanted;
        let dropped = orders.iter().zip(places).filter(of_place(Place::Dropped));
        let dropped: Vec<i64> = dropped.map(|(order, _)| order.buyer.user_id).collect();
        // For buyers whose order the unique index dropped: the order that they have.
        let existing = self.store.orders_by_user(voucher_id, &dropped).await;
        let outcome = |(order, place): (&NewOrder, &Place)| match (place, committed, &existing) {
            (Place::Kept, Ok(()), _) => Ok(order.id),
            (Place::Kept, Err(Error::OutcomeUnknown(_)), _) => {
                Err(Error::OutcomeUnknown(Some(order.id)))
            }
            (Place::Kept, Err(error), _) => Err(error.clone()),
            // Sold out because of those that were kept: only true once they are committed.
            (Place::Surplus, Ok(()), _) => Err(Error::SoldOut),
            (Place::Surplus, Err(_), _) => Err(Error::Unavailable("the database")),
            (Place::Dropped, _, Ok(existing)) => Err(existing
                .get(&order.buyer.user_id)
                .map_or(Error::DuplicateId, |id| Error::AlreadyOrdered(Some(*id)))),
            (Place::Dropped, _, Err(error)) => Err(error.clone()),
        };
        Ok(orders.iter().zip(places).map(outcome).collect())
    }
}

/// What becomes of one order of a batch.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// It is inserted.
    Kept,
    /// The unique keys refused it.
    Dropped,
    /// It was inserted, and deleted because the stock does not suffice.
    Surplus,
}

enum Taken {
    /// The transaction has ended so.
    Ended(Result<(), Error>),
    /// The stock does not suffice; nothing was done.
    Short(OrderTransaction),
}

/// Takes the stock of the kept orders and commits; rolls back where there are none. Conflicts are errors: nothing was done,
/// and all can be tried again.
async fn take_and_commit(
    transaction: OrderTransaction,
    orders: &[NewOrder],
    places: &[Place],
) -> Result<Taken, BatchError> {
    let kept = || orders.iter().zip(places).filter(|(_, place)| **place == Place::Kept);
    let Some((first, _)) = kept().next() else {
        let ended = transaction.rollback().await.map_err(|_| Error::Unavailable("the database"));
        return Ok(Taken::Ended(ended));
    };
    match transaction.take_and_commit(first, kept().count()).await {
        Ok(None) => Ok(Taken::Ended(Ok(()))),
        Ok(Some(open)) => Ok(Taken::Short(open)),
        Err(error) if is_conflict(&error) => Err(BatchError::All(error)),
        Err(error) => Ok(Taken::Ended(Err(error))),
    }
}

/// Locks the stock, and deletes the latest orders for which it does not suffice.
async fn fit(
    transaction: &mut OrderTransaction,
    voucher_id: i64,
    orders: &[NewOrder],
    places: &mut [Place],
) -> Result<(), Error> {
    let stock = usize::try_from(transaction.lock_stock(voucher_id).await?).unwrap_or(0);
    let kept = orders.iter().zip(places).filter(|(_, place)| **place == Place::Kept);
    let mut surplus = HashSet::new();
    for (order, place) in kept.skip(stock) {
        *place = Place::Surplus;
        surplus.insert(order.id);
    }
    // Where nothing is left for any of them, the transaction is rolled back.
    if stock == 0 { Ok(()) } else { transaction.delete_inserted(&surplus).await }
}

async fn rollback(transaction: OrderTransaction) {
    if let Err(error) = transaction.rollback().await {
        tracing::debug!(%error, "a batch's connection is closed instead of rolled back");
    }
}
