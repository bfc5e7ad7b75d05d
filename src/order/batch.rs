//! Commits a batch of orders in one transaction: of several sales for group commit, of one for the consumers of the stream.
//!
//! - The outcomes are what was committed: none is known before the commit.
//! - Where a sale's stock does not suffice, its orders are served by their position in the batch.
//! - Sales whose rows cannot be changed end the batch ([`BatchError::Sales`]); the caller tries the others without them.
//! - A commit whose outcome is unknown is resolved by looking up one of its orders: the transaction happened for
//!   all or for none.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use backon::Retryable;
use tokio::time::Instant;

use super::model::NewOrder;
use super::retry::{conflict_pauses, is_conflict};
use super::store::batch::BatchError;
use super::store::{OrderStore, OrderTransaction, Taken};
use crate::error::{Cause, Error};

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
        let sales = sorted
            .chunk_by(|a, b| a.buyer.voucher_id == b.buyer.voucher_id)
            .count();
        (|| self.commit_once(orders, &sorted, deadline))
            .retry(conflict_pauses(self.timeout))
            .when(|error| match error {
                BatchError::All(error) => is_conflict(error),
                BatchError::Sales(_, error) => is_conflict(error) && sales == 1,
                BatchError::Order(error) => is_conflict(error) && orders.len() == 1,
            })
            .await
    }

    /// The second try locks the sales one by one, and so finds the one with too little left, or all whose rows cannot be
    /// changed: after a lock wait it waits no more.
    async fn commit_once(
        &self,
        orders: &[NewOrder],
        sorted: &[NewOrder],
        deadline: Instant,
    ) -> Result<Outcomes, BatchError> {
        let error = match self
            .try_once(orders, sorted, deadline, Locking::Last)
            .await?
        {
            Ok(outcomes) => return Ok(outcomes),
            Err(error) => error,
        };
        let sales: BTreeSet<i64> = sorted.iter().map(|order| order.buyer.voucher_id).collect();
        let locking = match error {
            Error::Conflict if sales.len() == 1 => return Err(BatchError::Sales(sales, error)),
            Error::Conflict => Locking::FirstWithoutWaiting,
            _ => Locking::First,
        };
        self.try_once(orders, sorted, deadline, locking)
            .await?
            .map_err(BatchError::Order)
    }

    /// The inner error is what was in the way of taking from the stock; all is rolled back then.
    async fn try_once(
        &self,
        orders: &[NewOrder],
        sorted: &[NewOrder],
        deadline: Instant,
        locking: Locking,
    ) -> Result<Result<Outcomes, Error>, BatchError> {
        let mut transaction = self
            .store
            .begin_until(deadline)
            .await
            .map_err(BatchError::All)?;
        let states = match insert(&mut transaction, orders, sorted, locking).await {
            Ok(states) => states,
            Err(error) => {
                if !matches!(error, BatchError::All(_)) {
                    roll_back(transaction).await;
                }
                return Err(error);
            }
        };
        let mut counts: BTreeMap<i64, usize> = BTreeMap::new();
        for order in inserted(orders, &states) {
            *counts.entry(order.buyer.voucher_id).or_default() += 1;
        }
        let ended = match inserted(orders, &states).next() {
            Some(first) => transaction.take_and_commit(first, &counts).await,
            None => transaction.rollback().await.map(|()| Taken::Committed),
        };
        let committed = match ended {
            Ok(Taken::Committed) => Ok(()),
            // The server's state, which concerns all sales, and is answered order by order.
            Ok(Taken::Not(_, error @ Error::Unavailable(_)))
            | Err(error @ (Error::Unavailable(_) | Error::OutcomeUnknown(_))) => Err(error),
            Ok(Taken::Not(open, error)) => {
                roll_back(*open).await;
                return Ok(Err(error));
            }
            Err(error) => return Err(BatchError::All(error)),
        };
        Ok(Ok(outcomes(orders, states, &committed)))
    }
}

fn outcomes(orders: &[NewOrder], states: Vec<State>, committed: &Result<(), Error>) -> Outcomes {
    let outcome = |(order, state): (&NewOrder, State)| match (state, committed) {
        (State::Inserted, Ok(())) => Ok(order.id),
        (State::Inserted, Err(Error::OutcomeUnknown(_))) => {
            Err(Error::OutcomeUnknown(Some(order.id)))
        }
        (State::Inserted, Err(error)) => Err(error.clone()),
        // Sold out because of those that were inserted: only true once they are committed.
        (State::Surplus, Ok(())) => Err(Error::SoldOut),
        (State::Surplus, Err(_)) => Err(Error::Unavailable(Cause::Database)),
        (State::NoSale, _) => Err(Error::VoucherNotFound),
        (State::Refused(refusal), _) => Err(refusal),
    };
    orders.iter().zip(states).map(outcome).collect()
}

/// When a try locks the rows of its sales.
#[derive(Clone, Copy, PartialEq)]
enum Locking {
    /// In the statement that takes from their stock, just before the commit.
    Last,
    /// Before that, one by one.
    First,
    /// The same, and what is locked by others is not waited for.
    FirstWithoutWaiting,
}

/// What becomes of one order of a batch.
enum State {
    Inserted,
    /// The keys of the table refused it.
    Refused(Error),
    /// It was inserted, and deleted because the stock does not suffice.
    Surplus,
    /// It was inserted, and deleted because its sale is gone.
    NoSale,
}

impl State {
    fn is_inserted(&self) -> bool {
        matches!(self, State::Inserted)
    }
}

/// Those that are inserted.
fn inserted<'a>(orders: &'a [NewOrder], states: &'a [State]) -> impl Iterator<Item = &'a NewOrder> {
    let pairs = orders.iter().zip(states);
    pairs
        .filter(|(_, state)| state.is_inserted())
        .map(|(order, _)| order)
}

/// Inserts the orders; returns what became of each. Where the sales are locked first, it also does that, in the order of their
/// ids, and deletes the latest orders of those whose stock does not suffice.
async fn insert(
    transaction: &mut OrderTransaction,
    orders: &[NewOrder],
    sorted: &[NewOrder],
    locking: Locking,
) -> Result<Vec<State>, BatchError> {
    let count = transaction.insert_batch(sorted).await?;
    let mut states: Vec<State> = orders.iter().map(|_| State::Inserted).collect();
    if count < orders.len() {
        find_refused(transaction, orders, &mut states, count).await?;
    }
    if locking == Locking::Last {
        return Ok(states);
    }
    let sale = |order: &NewOrder| order.buyer.voucher_id;
    let sales: BTreeSet<i64> = inserted(orders, &states).map(sale).collect();
    let waits = locking == Locking::First;
    let mut stocks = transaction.lock_stocks(&sales, waits).await?;
    let mut delete = HashSet::new();
    for (state, order) in states
        .iter_mut()
        .zip(orders)
        .filter(|(state, _)| state.is_inserted())
    {
        match stocks.get_mut(&sale(order)) {
            Some(Some(left)) if *left > 0 => *left -= 1,
            stock => {
                *state = if let Some(Some(_)) = stock {
                    State::Surplus
                } else {
                    State::NoSale
                };
                delete.insert(order.id);
            }
        }
    }
    // Where no order is left, all is rolled back.
    if !delete.is_empty() && states.iter().any(State::is_inserted) {
        transaction
            .delete_inserted(&delete)
            .await
            .map_err(BatchError::All)?;
    }
    Ok(states)
}

/// Finds out which orders are not among the `count` that were inserted, and why.
async fn find_refused(
    transaction: &mut OrderTransaction,
    orders: &[NewOrder],
    states: &mut [State],
    count: usize,
) -> Result<(), BatchError> {
    let rows = transaction.rows_of(orders).await.map_err(BatchError::All)?;
    let mut without_row = Vec::new();
    for (state, order) in states.iter_mut().zip(orders) {
        match rows.get(&order.id) {
            Some((buyer, _)) if *buyer == order.buyer => {}
            Some(_) => *state = State::Refused(Error::DuplicateId),
            None => without_row.push(*order),
        }
    }
    let present = inserted(orders, states).count() - without_row.len();
    if present != count {
        // Some were there before.
        return Err(BatchError::All(Error::DuplicateId));
    }
    let mut refusals = transaction
        .refusals(&without_row)
        .await
        .map_err(BatchError::All)?;
    for (state, order) in states.iter_mut().zip(orders) {
        match refusals.remove(&order.id) {
            Some(Some(error @ Error::RowRefused(_))) => return Err(BatchError::Order(error)),
            Some(Some(refusal)) => *state = State::Refused(refusal),
            _ => {}
        }
    }
    Ok(())
}

/// Waits for it: what follows inserts the same orders again, and must not meet the locks of this transaction, nor deadlock
/// when they go.
async fn roll_back(transaction: OrderTransaction) {
    if let Err(error) = transaction.rollback().await {
        tracing::debug!(%error, "a batch's connection is closed instead of rolled back");
    }
}
