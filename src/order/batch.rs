//! Commits a batch of orders in one transaction: of several sales for group commit, of one for the consumers of the stream.
//!
//! - Usually a batch is one text that commits ([`Text`]). If the text stops, the reason is found out in its open transaction.
//! - No outcome is told before the commit: the outcomes are what was committed.
//! - Where a sale's stock does not suffice, its orders are served by their position in the batch.
//! - Sales whose rows cannot be changed end the batch ([`BatchError::Sales`]); the caller tries the others without them.

use std::collections::{BTreeSet, HashSet};

use backon::Retryable;
use tokio::time::Instant;

use super::model::NewOrder;
use super::retry::{conflict_pauses, is_conflict};
use super::store::batch::BatchError;
use super::store::{Ended, Kind, Obstacle, OrderStore, OrderTransaction, Text};
use crate::error::{Cause, Error};

/// Each order's outcome: its id once it is committed.
pub type Outcomes = Vec<Result<i64, Error>>;

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
    /// Nothing was done. [`BatchError::All`] with [`Error::DuplicateId`]: some of these orders were rows before.
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
            .retry(conflict_pauses(self.store.time_limit()))
            .when(|error| match error {
                BatchError::All(error) => is_conflict(error),
                BatchError::Sales(_, error) => is_conflict(error) && sales == 1,
                BatchError::Order(error) => is_conflict(error) && orders.len() == 1,
            })
            .await
    }

    /// Tries the batch as one text. If the sales' rows are in the way, a second try locks the sales one by one, and so finds
    /// those with too little stock, or all those whose rows are locked. After a conflict, the second try waits for no lock.
    async fn commit_once(
        &self,
        orders: &[NewOrder],
        sorted: &[NewOrder],
        deadline: Instant,
    ) -> Result<Outcomes, BatchError> {
        let blocked_by = match self.commit_text(orders, sorted, deadline).await? {
            Attempt::Done(outcomes) => return Ok(outcomes),
            Attempt::Blocked(error) => error,
        };
        let sales: BTreeSet<i64> = sorted.iter().map(|order| order.buyer.voucher_id).collect();
        let waits = match blocked_by {
            Error::Conflict if sales.len() == 1 => {
                return Err(BatchError::Sales(sales, Error::Conflict));
            }
            Error::Conflict => false,
            _ => true,
        };
        match self.commit_locked(orders, sorted, deadline, waits).await? {
            Attempt::Done(outcomes) => Ok(outcomes),
            Attempt::Blocked(error) => Err(BatchError::Order(error)),
        }
    }

    /// Tries the whole batch as one text. If the keys refuse some of the orders, goes on with the others in the same
    /// transaction.
    async fn commit_text(
        &self,
        orders: &[NewOrder],
        sorted: &[NewOrder],
        deadline: Instant,
    ) -> Result<Attempt, BatchError> {
        let Some(first) = sorted.first() else {
            return Ok(Attempt::Done(Outcomes::new()));
        };
        let transaction = self.begin(deadline).await?;
        let text = Text::default().insert_all(sorted).take(sorted);
        let ended = transaction.commit_with(text, first, self.kind).await;
        let states = orders.iter().map(|_| State::Inserted).collect();
        match ended {
            Ok(Ended::Stopped(mut open, Obstacle::Inserted(count))) => {
                match find_refused(&mut open, orders, states, count).await {
                    Ok(states) => self.commit_states(*open, orders, states).await,
                    // The rows in the way may be these orders, inserted by an earlier copy of the text.
                    Err(BatchError::All(error @ Error::Unavailable(_)))
                        if count == 0 && matches!(self.kind, Kind::Purchases) =>
                    {
                        let decided = open.decided(first, error).await;
                        let states = orders.iter().map(|_| State::Inserted).collect();
                        attempt_of(orders, states, decided.map(|_| Ended::Committed)).await
                    }
                    Err(error) => Err(roll_back_unless_all(*open, error).await),
                }
            }
            ended => attempt_of(orders, states, ended).await,
        }
    }

    /// Commits the batch step by step: the sales are locked, in the order of their ids, and then their stock is known.
    async fn commit_locked(
        &self,
        orders: &[NewOrder],
        sorted: &[NewOrder],
        deadline: Instant,
        waits: bool,
    ) -> Result<Attempt, BatchError> {
        let mut transaction = self.begin(deadline).await?;
        match insert_within_stock(&mut transaction, orders, sorted, waits).await {
            Ok(states) => self.commit_states(transaction, orders, states).await,
            Err(error) => Err(roll_back_unless_all(transaction, error).await),
        }
    }

    /// Takes the inserted orders' units from the stock, and commits.
    async fn commit_states(
        &self,
        transaction: OrderTransaction,
        orders: &[NewOrder],
        states: Vec<State>,
    ) -> Result<Attempt, BatchError> {
        let ended = match inserted(orders, &states).next() {
            None => transaction.rollback().await.map(|()| Ended::Committed),
            Some(first) => {
                let text = Text::default().take(inserted(orders, &states));
                transaction.commit_with(text, first, self.kind).await
            }
        };
        attempt_of(orders, states, ended).await
    }

    async fn begin(&self, deadline: Instant) -> Result<OrderTransaction, BatchError> {
        let beginning = self.store.begin_until(deadline);
        beginning.await.map_err(BatchError::All)
    }
}

/// How a try ended.
enum Attempt {
    Done(Outcomes),
    /// The stock could not be taken, for this reason; all is rolled back.
    Blocked(Error),
}

/// What became of the orders, which were in these states before the transaction `ended`.
async fn attempt_of(
    orders: &[NewOrder],
    states: Vec<State>,
    ended: Result<Ended, Error>,
) -> Result<Attempt, BatchError> {
    let committed = match ended {
        Ok(Ended::Committed) => Ok(()),
        // About the server, not about a sale: this is the outcome of each order.
        Err(error @ (Error::Unavailable(_) | Error::OutcomeUnknown(_))) => Err(error),
        Err(error @ Error::RowRefused(_)) => return Err(BatchError::Order(error)),
        Err(error) => return Err(BatchError::All(error)),
        Ok(Ended::Stopped(open, obstacle)) => {
            roll_back(*open).await;
            return match obstacle {
                Obstacle::SoldOut => Ok(Attempt::Blocked(Error::SoldOut)),
                // Perhaps the fault of one order: the caller can try each order alone.
                Obstacle::InsertConflict => Err(BatchError::Order(Error::Conflict)),
                _ => Ok(Attempt::Blocked(Error::Conflict)),
            };
        }
    };
    Ok(Attempt::Done(outcomes(orders, states, &committed)))
}

fn outcomes(orders: &[NewOrder], states: Vec<State>, committed: &Result<(), Error>) -> Outcomes {
    let of_each = orders.iter().zip(states);
    of_each
        .map(|(order, state)| outcome(order, state, committed))
        .collect()
}

fn outcome(order: &NewOrder, state: State, committed: &Result<(), Error>) -> Result<i64, Error> {
    match (state, committed) {
        (State::Inserted, Ok(())) => Ok(order.id),
        (State::Inserted, Err(Error::OutcomeUnknown(_))) => {
            Err(Error::OutcomeUnknown(Some(order.id)))
        }
        (State::Inserted, Err(error)) => Err(error.clone()),
        // Sold out because of those that were inserted: only true once they are committed.
        (State::Surplus, Ok(())) => Err(Error::SoldOut),
        (State::Surplus, Err(_)) => Err(Error::Unavailable(Cause::Database)),
        (State::ThereBefore, _) => Ok(order.id),
        (State::NoSale, _) => Err(Error::VoucherNotFound),
        (State::Refused(refusal), _) => Err(refusal),
    }
}

/// What becomes of one order of a batch.
enum State {
    Inserted,
    /// An earlier copy of the text has committed it.
    ThereBefore,
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

/// The orders that are inserted.
fn inserted<'a>(orders: &'a [NewOrder], states: &'a [State]) -> impl Iterator<Item = &'a NewOrder> {
    let pairs = orders.iter().zip(states);
    pairs
        .filter(|(_, state)| state.is_inserted())
        .map(|(order, _)| order)
}

/// Inserts the orders, locks their sales in the order of the sales' ids, and deletes the last orders of each sale whose stock
/// does not suffice. Returns what became of each order.
async fn insert_within_stock(
    transaction: &mut OrderTransaction,
    orders: &[NewOrder],
    sorted: &[NewOrder],
    waits: bool,
) -> Result<Vec<State>, BatchError> {
    let count = transaction.insert_batch(sorted).await?;
    let mut states: Vec<State> = orders.iter().map(|_| State::Inserted).collect();
    if count < orders.len() {
        states = find_refused(transaction, orders, states, count).await?;
    }
    let sale = |order: &NewOrder| order.buyer.voucher_id;
    let sales: BTreeSet<i64> = inserted(orders, &states).map(sale).collect();
    let mut stocks = transaction.lock_stocks(&sales, waits).await?;
    let mut to_delete = HashSet::new();
    for (state, order) in states
        .iter_mut()
        .zip(orders)
        .filter(|(state, _)| state.is_inserted())
    {
        *state = match stocks.get_mut(&sale(order)) {
            Some(Some(left)) if *left > 0 => {
                *left -= 1;
                continue;
            }
            Some(Some(_)) => State::Surplus,
            _ => State::NoSale,
        };
        to_delete.insert(order.id);
    }
    // If no order is left, the caller rolls all back.
    if !to_delete.is_empty() && states.iter().any(State::is_inserted) {
        transaction
            .delete_inserted(&to_delete)
            .await
            .map_err(BatchError::All)?;
    }
    Ok(states)
}

/// Finds out which orders are not among the `count` that were inserted, and why.
async fn find_refused(
    transaction: &mut OrderTransaction,
    orders: &[NewOrder],
    mut states: Vec<State>,
    count: usize,
) -> Result<Vec<State>, BatchError> {
    let rows = transaction.rows_of(orders).await.map_err(BatchError::All)?;
    let mut without_row = Vec::new();
    for (state, order) in states.iter_mut().zip(orders) {
        match rows.get(&order.id) {
            Some((buyer, _)) if *buyer == order.buyer => {}
            Some(_) => *state = State::Refused(Error::DuplicateId),
            None => without_row.push(*order),
        }
    }
    let present = inserted(orders, &states).count() - without_row.len();
    if present == orders.len() && count == 0 {
        return Ok(orders.iter().map(|_| State::ThereBefore).collect());
    }
    if present != count {
        // Some of the orders were rows before.
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
    Ok(states)
}

/// Rolls back, unless the error concerns all orders: then the connection may be in any state, and is closed.
async fn roll_back_unless_all(transaction: OrderTransaction, error: BatchError) -> BatchError {
    if !matches!(error, BatchError::All(_)) {
        roll_back(transaction).await;
    }
    error
}

/// Rolls back and waits for it: the next try inserts the same orders, and must not wait for the locks of this transaction,
/// nor deadlock when they are released.
async fn roll_back(transaction: OrderTransaction) {
    if let Err(error) = transaction.rollback().await {
        tracing::debug!(%error, "a batch's connection is closed instead of rolled back");
    }
}
