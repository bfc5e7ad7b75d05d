//! Commits a batch of orders in one transaction: of several sales for group commit, of one for the consumers of the stream.
//!
//! - The outcomes are what was committed: none is known before the commit.
//! - Where a sale's stock does not suffice, its orders are served by their position in the batch.
//! - A sale whose row cannot be changed ends the batch ([`BatchError::Sale`]); the caller tries the others without it.
//! - A commit whose outcome is unknown is resolved by looking up one of its orders: the transaction happened for
//!   all or for none.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use backon::Retryable;
use tokio::time::Instant;

use super::model::{Buyer, NewOrder};
use super::retry::{conflict_pauses, is_conflict};
use super::store::batch::BatchError;
use super::store::{OrderStore, OrderTransaction, Taken};
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

    /// Commits these orders; returns each one's outcome. Conflicts that concern all are retried, and so are those of a batch
    /// of one. On an error, nothing was done; likewise where the commit has not begun at `deadline`.
    /// [`Error::DuplicateId`] of all says that some of these orders were there before.
    pub async fn commit(
        &self,
        orders: &[NewOrder],
        deadline: Instant,
    ) -> Result<Outcomes, BatchError> {
        // In the same order on every node: then two batches cannot wait for each other's buyers.
        let mut sorted = orders.to_vec();
        sorted.sort_unstable_by_key(|order| (order.buyer.voucher_id, order.buyer.user_id));
        let sales = sorted.chunk_by(|a, b| a.buyer.voucher_id == b.buyer.voucher_id).count();
        (|| self.commit_once(orders, &sorted, deadline))
            .retry(conflict_pauses(self.timeout))
            .when(|error| match error {
                BatchError::All(error) => is_conflict(error),
                BatchError::Sale(_, error) => is_conflict(error) && sales == 1,
                BatchError::Insert(error) => is_conflict(error) && orders.len() == 1,
            })
            .await
    }

    async fn commit_once(
        &self,
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
            let rows = transaction.rows_of(orders).await.map_err(BatchError::All)?;
            for (state, order) in states.iter_mut().zip(orders) {
                if rows.get(&order.id).is_none_or(|(buyer, _)| *buyer != order.buyer) {
                    *state = State::Dropped;
                }
            }
            if of_state(State::Inserted, orders, &states).count() != inserted {
                // Some were there before.
                return Err(BatchError::All(Error::DuplicateId));
            }
        }
        let committed = match take_and_commit(transaction, orders, &mut states).await {
            // Answered order by order.
            Err(BatchError::All(error @ (Error::Unavailable(_) | Error::OutcomeUnknown(_)))) => {
                Err(error)
            }
            committed => {
                committed?;
                Ok(())
            }
        };
        Ok(self.outcomes(orders, &states, &committed).await)
    }

    async fn outcomes(
        &self,
        orders: &[NewOrder],
        states: &[State],
        committed: &Result<(), Error>,
    ) -> Outcomes {
        let dropped: Vec<Buyer> =
            of_state(State::Dropped, orders, states).map(|order| order.buyer).collect();
        // For buyers whose order the unique index dropped: the order that they have.
        let existing = self.store.orders_of(&dropped).await;
        let outcome = |(order, state): (&NewOrder, &State)| match (state, committed, &existing) {
            (State::Inserted, Ok(()), _) => Ok(order.id),
            (State::Inserted, Err(Error::OutcomeUnknown(_)), _) => {
                Err(Error::OutcomeUnknown(Some(order.id)))
            }
            (State::Inserted, Err(error), _) => Err(error.clone()),
            // Sold out because of those that were inserted: only true once they are committed.
            (State::Surplus, Ok(()), _) => Err(Error::SoldOut),
            (State::Surplus, Err(_), _) => Err(Error::Unavailable("the database")),
            (State::NoSale, ..) => Err(Error::VoucherNotFound),
            (State::Dropped, _, Ok(existing)) => Err(existing
                .get(&order.buyer)
                .map_or(Error::DuplicateId, |id| Error::AlreadyOrdered(Some(*id)))),
            (State::Dropped, _, Err(error)) => Err(error.clone()),
        };
        orders.iter().zip(states).map(outcome).collect()
    }
}

/// What becomes of one order of a batch.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Inserted,
    /// The unique keys refused it.
    Dropped,
    /// It was inserted, and deleted because the stock does not suffice.
    Surplus,
    /// It was inserted, and deleted because its sale is gone.
    NoSale,
}

fn of_state<'a>(
    wanted: State,
    orders: &'a [NewOrder],
    states: &'a [State],
) -> impl Iterator<Item = &'a NewOrder> {
    let pairs = orders.iter().zip(states);
    pairs.filter(move |(_, state)| **state == wanted).map(|(order, _)| order)
}

/// Takes one for each inserted order from the stock of its sale, and commits. Where that does not suffice, the latest orders
/// of the sale are deleted first; where none is left, all is rolled back.
async fn take_and_commit(
    mut transaction: OrderTransaction,
    orders: &[NewOrder],
    states: &mut [State],
) -> Result<(), BatchError> {
    let mut counts: BTreeMap<i64, usize> = BTreeMap::new();
    for order in of_state(State::Inserted, orders, states) {
        *counts.entry(order.buyer.voucher_id).or_default() += 1;
    }
    let mut counts: Vec<(i64, usize)> = counts.into_iter().collect();
    let (mut taken, mut trimmed) = (0, None);
    loop {
        let Some(first) = of_state(State::Inserted, orders, states).next() else {
            let rolled_back = transaction.rollback().await;
            return rolled_back.map_err(|_| BatchError::All(Error::Unavailable("the database")));
        };
        let ended = transaction.take_and_commit(first, &counts[taken..]).await;
        let (open, at) = match ended.map_err(BatchError::All)? {
            Taken::Committed => return Ok(()),
            // The server's state, which concerns all sales.
            Taken::Blocked(_, _, error @ Error::Unavailable(_)) => {
                return Err(BatchError::All(error));
            }
            Taken::Blocked(open, at, error) => {
                rollback(open).await;
                return Err(BatchError::Sale(counts[taken + at].0, error));
            }
            Taken::Short(open, at) => (open, at),
        };
        (transaction, taken) = (open, taken + at);
        let voucher_id = counts[taken].0;
        if trimmed.replace(voucher_id) == Some(voucher_id) {
            rollback(transaction).await;
            let detail = "the locked stock did not suffice".to_owned();
            return Err(BatchError::All(Error::Internal(detail)));
        }
        let trim = trim_to_stock(&mut transaction, voucher_id, orders, states);
        match trim.await.map_err(BatchError::All)? {
            0 => drop(counts.remove(taken)),
            left => counts[taken].1 = left,
        }
    }
}

/// Locks the sale's stock, and deletes the latest of its orders, for which it does not suffice; returns how many stay.
async fn trim_to_stock(
    transaction: &mut OrderTransaction,
    voucher_id: i64,
    orders: &[NewOrder],
    states: &mut [State],
) -> Result<usize, Error> {
    let (stock, surplus) = match transaction.lock_stock(voucher_id).await {
        Ok(stock) => (usize::try_from(stock).unwrap_or(0), State::Surplus),
        Err(Error::VoucherNotFound) => (0, State::NoSale),
        Err(error) => return Err(error),
    };
    let (mut stay, mut delete) = (0, HashSet::new());
    let inserted = orders.iter().zip(states.iter_mut());
    let inserted = inserted.filter(|(order, state)| {
        order.buyer.voucher_id == voucher_id && **state == State::Inserted
    });
    for (order, state) in inserted {
        if stay < stock {
            stay += 1;
        } else {
            *state = surplus;
            delete.insert(order.id);
        }
    }
    // Where no order is left, all is rolled back.
    if !delete.is_empty() && states.contains(&State::Inserted) {
        transaction.delete_inserted(&delete).await?;
    }
    Ok(stay)
}

async fn rollback(transaction: OrderTransaction) {
    if let Err(error) = transaction.rollback().await {
        tracing::debug!(%error, "a batch's connection is closed instead of rolled back");
    }
}
