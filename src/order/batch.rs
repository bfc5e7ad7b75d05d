//! Commits a batch of orders of one sale in one transaction, for group commit and for the consumers of the stream.
//!
//! - The outcomes are what was committed: none is known before the commit.
//! - Where the stock does not suffice, orders are served by their position in the batch.
//! - A commit whose outcome is unknown is resolved by looking up one of its orders: the transaction happened for
//!   all or for none.

use std::collections::HashSet;
use std::time::Duration;

use backon::Retryable;
use tokio::time::Instant;

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
    /// so are those of a batch of one. On an error, nothing was done; likewise where the commit has not begun at `deadline`.
    /// [`Error::DuplicateId`] of all says that some of these orders were there before.
    pub async fn commit(
        &self,
        voucher_id: i64,
        orders: &[NewOrder],
        deadline: Instant,
    ) -> Result<Outcomes, BatchError> {
        // In the same order on every node: then two batches cannot wait for each other's buyers.
        let mut sorted = orders.to_vec();
        sorted.sort_unstable_by_key(|order| order.buyer.user_id);
        (|| self.commit_once(voucher_id, orders, &sorted, deadline))
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
        deadline: Instant,
    ) -> Result<Outcomes, BatchError> {
        let mut transaction = self.store.begin_until(deadline).await.map_err(BatchError::All)?;
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
        let mut states = vec![State::Inserted; orders.len()];
        if inserted < orders.len() {
            let kept = transaction.inserted_of(orders).await.map_err(BatchError::All)?;
            if kept.len() != inserted {
                // Some were there before.
                return Err(BatchError::All(Error::DuplicateId));
            }
            for (state, order) in states.iter_mut().zip(orders) {
                if !kept.contains(&order.id) {
                    *state = State::Dropped;
                }
            }
        }
        let mut taken = take_and_commit(transaction, orders, &states).await;
        if let Ok(Some(mut open)) = taken {
            fit(&mut open, voucher_id, orders, &mut states).await.map_err(BatchError::All)?;
            taken = take_and_commit(open, orders, &states).await;
        }
        let committed = match taken {
            Ok(None) => Ok(()),
            Ok(Some(open)) => {
                rollback(open).await;
                let detail = "the locked stock did not suffice".to_owned();
                return Err(BatchError::All(Error::Internal(detail)));
            }
            // Answered order by order.
            Err(error @ (Error::Unavailable(_) | Error::OutcomeUnknown(_))) => Err(error),
            Err(error) => return Err(BatchError::All(error)),
        };
        Ok(self.outcomes(voucher_id, orders, &states, &committed).await)
    }

    async fn outcomes(
        &self,
        voucher_id: i64,
        orders: &[NewOrder],
        states: &[State],
        committed: &Result<(), Error>,
    ) -> Outcomes {
        let dropped: Vec<i64> =
            of_state(State::Dropped, orders, states).map(|order| order.buyer.user_id).collect();
        // For buyers whose order the unique index dropped: the order that they have.
        let existing = self.store.orders_by_user(voucher_id, &dropped).await;
        let outcome = |(order, state): (&NewOrder, &State)| match (state, committed, &existing) {
            (State::Inserted, Ok(()), _) => Ok(order.id),
            (State::Inserted, Err(Error::OutcomeUnknown(_)), _) => {
                Err(Error::OutcomeUnknown(Some(order.id)))
            }
            (State::Inserted, Err(error), _) => Err(error.clone()),
            // Sold out because of those that were inserted: only true once they are committed.
            (State::Surplus, Ok(()), _) => Err(Error::SoldOut),
            (State::Surplus, Err(_), _) => Err(Error::Unavailable("the database")),
            (State::Dropped, _, Ok(existing)) => Err(existing
                .get(&order.buyer.user_id)
                .map_or(Error::DuplicateId, |id| Error::AlreadyOrdered(Some(*id)))),
            (State::Dropped, _, Err(error)) => Err(error.clone()),
        };
        orders.iter().zip(states).map(outcome).collect()
    }
}

/// What becomes of one order of a batch.
#[derive(Clone, Copy, PartialEq)]
enum State {
    /// It is inserted.
    Inserted,
    /// The unique keys refused it.
    Dropped,
    /// It was inserted, and deleted because the stock does not suffice.
    Surplus,
}

/// The orders in this state.
fn of_state<'a>(
    wanted: State,
    orders: &'a [NewOrder],
    states: &'a [State],
) -> impl Iterator<Item = &'a NewOrder> {
    let pairs = orders.iter().zip(states);
    pairs.filter(move |(_, state)| **state == wanted).map(|(order, _)| order)
}

/// As [`OrderTransaction::take_and_commit`], of all inserted orders; rolls back where there are none.
async fn take_and_commit(
    transaction: OrderTransaction,
    orders: &[NewOrder],
    states: &[State],
) -> Result<Option<OrderTransaction>, Error> {
    let inserted = || of_state(State::Inserted, orders, states);
    match inserted().next() {
        Some(first) => transaction.take_and_commit(first, inserted().count()).await,
        None => {
            transaction.rollback().await.map_err(|_| Error::Unavailable("the database"))?;
            Ok(None)
        }
    }
}

/// Locks the stock, and deletes the latest orders for which it does not suffice.
async fn fit(
    transaction: &mut OrderTransaction,
    voucher_id: i64,
    orders: &[NewOrder],
    states: &mut [State],
) -> Result<(), Error> {
    let stock = usize::try_from(transaction.lock_stock(voucher_id).await?).unwrap_or(0);
    let inserted = orders.iter().zip(states).filter(|(_, state)| **state == State::Inserted);
    let mut surplus = HashSet::new();
    for (order, state) in inserted.skip(stock) {
        *state = State::Surplus;
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
