//! Commits a batch of orders in one transaction: of several sales for group commit, of one for the consumers of the stream.
//!
//! A batch is one text that commits ([`Text`]). Where it stops, everything is rolled back, the orders that are in its way
//! leave the batch, and the others are sent again, until a text commits:
//!
//! - An order leaves it whose id is a row already, whose buyer has an order, or for which the sale has nothing left. Where the
//!   stock suffices for some orders of a sale, those that came first keep their place.
//! - Sales whose rows cannot be changed end the batch ([`BatchError::Sales`]); the caller tries the others without them.
//!
//! No outcome is known before a text has committed: an order may only be told "sold out" because of others in its batch.

use std::collections::{BTreeSet, HashMap};

use backon::Retryable;
use tokio::time::Instant;

use super::model::NewOrder;
use super::retry::{conflict_pauses, is_conflict};
use super::store::batch::Found;
use super::store::{Ended, Kind, Obstacle, OrderStore, OrderTransaction, Text};
use crate::error::{Cause, Error};

/// Each order's outcome: its id once it is committed.
pub type Outcomes = Vec<Result<i64, Error>>;

/// Why a batch could not be committed. Nothing was done.
pub enum BatchError {
    /// An order could not be inserted, and perhaps only that one.
    Order(Error),
    /// The rows of these sales could not be changed; the orders of other sales can be committed without them.
    Sales(BTreeSet<i64>, Error),
    /// An error that concerns all orders.
    All(Error),
}

/// The outcomes, by id, of orders that left their batch.
type Left = HashMap<i64, Result<i64, Error>>;

/// Commits batches. Cheap to clone.
#[derive(Clone)]
pub struct BatchCommitter {
    store: OrderStore,
    kind: Kind,
}

impl BatchCommitter {
    /// Commits to `store`; retries conflicts for at most as long as one step may take.
    pub fn new(store: OrderStore, kind: Kind) -> Self {
        BatchCommitter { store, kind }
    }

    /// Commits these orders; returns the outcome of each. A commit that has not begun at `deadline` does not begin. Conflicts
    /// are retried if they concern all orders, or if the batch is of one sale or one order and they concern that.
    ///
    /// With [`Kind::Entries`], an order whose outcome is [`Error::Unavailable`] may have been committed all the same.
    ///
    /// # Errors
    /// Nothing was done.
    pub async fn commit(
        &self,
        orders: &[NewOrder],
        deadline: Instant,
    ) -> Result<Outcomes, BatchError> {
        (|| self.commit_once(orders, deadline))
            .retry(conflict_pauses(self.store.time_limit()))
            .when(|error| match error {
                BatchError::All(error) => is_conflict(error),
                BatchError::Order(error) => is_conflict(error) && orders.len() == 1,
                BatchError::Sales(..) => false,
            })
            .await
    }

    /// As [`BatchCommitter::commit`], of one order; its outcome.
    pub async fn commit_one(&self, order: NewOrder, deadline: Instant) -> Result<i64, Error> {
        match self.commit(&[order], deadline).await {
            Ok(mut outcomes) => outcomes.pop().unwrap_or(Err(Error::OutcomeUnknown(None))),
            Err(
                BatchError::Order(error) | BatchError::Sales(_, error) | BatchError::All(error),
            ) => Err(error),
        }
    }

    async fn commit_once(
        &self,
        orders: &[NewOrder],
        deadline: Instant,
    ) -> Result<Outcomes, BatchError> {
        let mut left = Left::new();
        loop {
            let mut remaining = orders.to_vec();
            remaining.retain(|order| !left.contains_key(&order.id));
            // In the same order on every node: then two batches cannot wait for each other's buyers.
            remaining.sort_unstable_by_key(|order| (order.buyer.voucher_id, order.buyer.user_id));
            let Some(first) = remaining.first() else {
                return Ok(outcomes(orders, left, &Ok(())));
            };
            let transaction = self.store.begin_until(deadline).await;
            let transaction = transaction.map_err(BatchError::All)?;
            let text = text_of(&remaining);
            let (mut open, obstacle) = match transaction.commit_with(text, first, self.kind).await {
                Ok(Ended::Committed) => return Ok(outcomes(orders, left, &Ok(()))),
                Ok(Ended::Stopped(open, obstacle)) => (open, obstacle),
                Err(error) => return ended_by(error, orders, left),
            };
            match obstacle {
                // Perhaps the fault of one order: the caller can try each order alone.
                Obstacle::InsertConflict => {
                    roll_back(*open).await;
                    return Err(BatchError::Order(Error::Conflict));
                }
                Obstacle::Conflict | Obstacle::NoFreeUnit => {
                    return Err(in_conflict(*open, orders, &remaining).await);
                }
                Obstacle::Inserted(_) | Obstacle::DuplicateKey | Obstacle::SoldOut => {}
            }
            let found = match open.roll_back_and_find(orders).await {
                Ok(found) => found,
                // The rows in the way may be these orders, inserted by an earlier copy of the text.
                Err(error)
                    if matches!(obstacle, Obstacle::Inserted(0) | Obstacle::DuplicateKey)
                        && matches!(self.kind, Kind::Purchases) =>
                {
                    return match Box::pin(open.decided(first, error)).await {
                        Ok(_) => Ok(outcomes(orders, left, &Ok(()))),
                        Err(error) => ended_by(error, orders, left),
                    };
                }
                Err(error) => return Err(BatchError::All(error)),
            };
            let in_the_way = in_the_way(orders, found, &obstacle);
            if in_the_way.len() <= left.len() {
                return Err(match obstacle {
                    // The stock was given back meanwhile.
                    Obstacle::SoldOut => BatchError::All(Error::Conflict),
                    // Whatever was in the way has gone, or it is nothing of the above: each order alone shows it.
                    _ => BatchError::Order(Error::Conflict),
                });
            }
            left = in_the_way;
        }
    }
}

fn text_of(orders: &[NewOrder]) -> Text {
    let text = match orders {
        // Without IGNORE the server says why it refuses the row.
        [order] => Text::default().insert(order),
        _ => Text::default().insert_all(orders),
    };
    text.take(orders)
}

/// The orders that cannot be committed with the others, as far as what was read shows it.
fn in_the_way(orders: &[NewOrder], mut found: Found, obstacle: &Obstacle) -> Left {
    let is_refused = matches!(obstacle, Obstacle::DuplicateKey);
    let mut left = Left::new();
    for order in orders {
        let outcome = match found.outcome_of(order, is_refused) {
            Some(outcome) => outcome,
            None => match found.stocks.get_mut(&order.buyer.voucher_id) {
                Some(stock) if *stock > 0 => {
                    *stock -= 1;
                    continue;
                }
                Some(_) => Err(Error::SoldOut),
                None => Err(Error::VoucherNotFound),
            },
        };
        left.insert(order.id, outcome);
    }
    left
}

/// Which sales were in the way of a text that met a locked row.
async fn in_conflict(
    mut open: OrderTransaction,
    orders: &[NewOrder],
    remaining: &[NewOrder],
) -> BatchError {
    let sale = |order: &NewOrder| order.buyer.voucher_id;
    if orders.iter().all(|order| sale(order) == sale(&orders[0])) {
        roll_back(open).await;
        return BatchError::All(Error::Conflict);
    }
    let sales: BTreeSet<i64> = remaining.iter().map(sale).collect();
    match open.roll_back_and_find_locked(&sales).await {
        Ok(locked) if locked.is_empty() => BatchError::All(Error::Conflict),
        Ok(locked) => BatchError::Sales(locked, Error::Conflict),
        Err(error) => BatchError::All(error),
    }
}

/// What an error of the commit means for the batch.
fn ended_by(error: Error, orders: &[NewOrder], left: Left) -> Result<Outcomes, BatchError> {
    match error {
        // About the server, not about a sale: this is the outcome of each order.
        Error::Unavailable(_) | Error::OutcomeUnknown(_) => Ok(outcomes(orders, left, &Err(error))),
        Error::RowRefused(_) => Err(BatchError::Order(error)),
        error => Err(BatchError::All(error)),
    }
}

fn outcomes(orders: &[NewOrder], mut left: Left, committed: &Result<(), Error>) -> Outcomes {
    let outcome = |order: &NewOrder| match (left.remove(&order.id), committed) {
        // Perhaps because of those that were to be committed.
        (Some(Err(Error::SoldOut)), Err(_)) => Err(Error::Unavailable(Cause::Database)),
        (Some(outcome), _) => outcome,
        (None, Ok(())) => Ok(order.id),
        (None, Err(Error::OutcomeUnknown(_))) => Err(Error::OutcomeUnknown(Some(order.id))),
        (None, Err(error)) => Err(error.clone()),
    };
    orders.iter().map(outcome).collect()
}

/// Rolls back and waits for it: the next try inserts the same orders, and must not wait for the locks of this transaction,
/// nor deadlock when they are released.
async fn roll_back(transaction: OrderTransaction) {
    if let Err(error) = transaction.rollback().await {
        tracing::debug!(%error, "a batch's connection is closed instead of rolled back");
    }
}
