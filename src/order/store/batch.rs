//! Many orders, of one sale or of several, in one transaction: the statements for batches that meet a buyer who has an order
//! already, or more buyers than stock. Every other batch is one text that commits ([`super::commit`]).
//!
//! Statements with lists of ids or rows are text, not prepared: one statement then fits a batch of any size, where prepared
//! ones would need one shape per size. Everything put into the text is an integer.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::transaction::{OrderTransaction, Reply, Sent, insert_sql, stock_sql};
use crate::connection::server_error::{Meaning, is_duplicate, meaning_of};
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};

/// Why a batch could not be committed. Nothing was done.
pub enum BatchError {
    /// An order could not be inserted, or not taken from the stock, and perhaps only that one.
    Order(Error),
    /// The rows of these sales could not be changed; the orders of other sales can be committed without them.
    Sales(BTreeSet<i64>, Error),
    /// An error that concerns all orders.
    All(Error),
}

impl OrderTransaction {
    /// Inserts those of `orders` that no key refuses; returns how many those are. One round trip, which also opens the
    /// transaction.
    ///
    /// Concurrent batches that insert in the same order cannot deadlock: `orders` should be sorted by user and sale.
    pub async fn insert_batch(&mut self, orders: &[NewOrder]) -> Result<usize, BatchError> {
        let Sent { replies, error } = self.send(&insert_batch_sql(orders)).await;
        match (error, &replies[..]) {
            (None, [inserted]) => Ok(inserted.changed() as usize),
            // Perhaps the fault of one order: the caller can try each order alone.
            (Some(error), _) if matches!(meaning_of(&error), Meaning::Row | Meaning::Conflict) => {
                Err(BatchError::Order(error.into()))
            }
            (Some(error), _) => Err(BatchError::All(error.into())),
            (None, other) => {
                let detail = format!("a statement gave {} results", other.len());
                Err(BatchError::All(Error::Internal(detail)))
            }
        }
    }

    /// Why the keys refused these orders, although their ids are free: the order that the buyer has already, or what the server
    /// says when the order is inserted alone. `None` if it is inserted by that.
    pub async fn refusals(
        &mut self,
        orders: &[NewOrder],
    ) -> Result<HashMap<i64, Option<Error>>, Error> {
        let buyers: Vec<Buyer> = orders.iter().map(|order| order.buyer).collect();
        let existing = self.orders_of(&buyers).await?;
        let mut refusals = HashMap::with_capacity(orders.len());
        for order in orders {
            let refusal = match existing.get(&order.buyer) {
                Some(id) => Some(Error::AlreadyOrdered(Some(*id))),
                None => self.insert_alone(order).await?,
            };
            refusals.insert(order.id, refusal);
        }
        Ok(refusals)
    }

    /// Inserts an order that IGNORE dropped, this time without IGNORE, which also hides refusals by foreign keys. Returns the
    /// refusal; `None` if the order is inserted.
    async fn insert_alone(&mut self, order: &NewOrder) -> Result<Option<Error>, Error> {
        let Some(error) = self.send(&insert_sql(order)).await.error else {
            return Ok(None);
        };
        if meaning_of(&error) != Meaning::Row {
            return Err(error.into());
        }
        // A unique key refuses it: an order is in the way that `orders_of` did not see.
        Ok(Some(if is_duplicate(&error) {
            Error::Conflict
        } else {
            error.into()
        }))
    }

    /// The orders that keep these buyers from buying again: for each buyer the order that is not cancelled, else the last
    /// cancelled one, which may still count for a unique key that somebody else added.
    pub async fn orders_of(&mut self, buyers: &[Buyer]) -> Result<HashMap<Buyer, i64>, Error> {
        if buyers.is_empty() {
            return Ok(HashMap::new());
        }
        let condition = |buyer: &Buyer| {
            let Buyer {
                user_id,
                voucher_id,
            } = buyer;
            format!("(user_id = {user_id} AND voucher_id = {voucher_id})")
        };
        let conditions: Vec<String> = buyers.iter().map(condition).collect();
        let sql = format!(
            "SELECT CAST(user_id AS SIGNED), CAST(voucher_id AS SIGNED), id \
             FROM tb_voucher_order WHERE {} ORDER BY status <> 4, id",
            conditions.join(" OR ")
        );
        let rows: Vec<(i64, i64, i64)> = self.rows(&sql).await?;
        let mut orders = HashMap::with_capacity(rows.len());
        for (user_id, voucher_id, id) in rows {
            let buyer = Buyer {
                user_id,
                voucher_id,
            };
            // The last row of a buyer replaces those before.
            orders.insert(buyer, id);
        }
        Ok(orders)
    }

    /// Locks the rows of these sales, in the order of their ids; returns the stock of each, `None` if the sale is gone. One
    /// round trip, if no row is locked by others. If `waits`, waits for the first row that is; further locked rows are found
    /// without waiting, in a round trip each.
    pub async fn lock_stocks(
        &mut self,
        sales: &BTreeSet<i64>,
        mut waits: bool,
    ) -> Result<HashMap<i64, Option<i64>>, BatchError> {
        let mut stocks = HashMap::with_capacity(sales.len());
        let mut locked_by_others = BTreeSet::new();
        let mut failure = None;
        let mut unlocked: Vec<i64> = sales.iter().copied().collect();
        while !unlocked.is_empty() {
            let wait = if waits { "" } else { " NOWAIT" };
            let text: String = unlocked
                .iter()
                .map(|sale| format!("{} FOR UPDATE{wait}; ", stock_sql(*sale)))
                .collect();
            let Sent { replies, error } = self.send(&text).await;
            for (sale, reply) in unlocked.iter().zip(&replies) {
                stocks.insert(*sale, reply.number().map_err(BatchError::All)?);
            }
            let Some(error) = error.map(Error::from) else {
                break;
            };
            match unlocked.get(replies.len()) {
                Some(sale) if !matches!(error, Error::Unavailable(_)) => {
                    locked_by_others.insert(*sale);
                    failure = Some(error);
                    waits = false;
                    unlocked.drain(..=replies.len());
                }
                _ => return Err(BatchError::All(error)),
            }
        }
        match failure {
            None => Ok(stocks),
            Some(error) => Err(BatchError::Sales(locked_by_others, error)),
        }
    }

    /// Deletes orders that this transaction inserted; they must be there.
    pub async fn delete_inserted(&mut self, ids: &HashSet<i64>) -> Result<(), Error> {
        // A statement for each: with a list of ids the server may scan the table, and wait for rows of transactions that wait
        // for this one.
        let text: String = ids
            .iter()
            .map(|id| format!("DELETE FROM tb_voucher_order WHERE id = {id}; "))
            .collect();
        let deleted = self.run(&text).await?;
        let deleted: u64 = deleted.iter().map(Reply::changed).sum();
        if deleted == ids.len() as u64 {
            Ok(())
        } else {
            Err(Error::Internal(format!(
                "{deleted} of {} orders were deleted",
                ids.len()
            )))
        }
    }
}

/// IGNORE makes a key drop the row that it refuses instead of failing all.
pub(super) fn insert_batch_sql(orders: &[NewOrder]) -> String {
    let rows: Vec<String> = orders
        .iter()
        .map(|NewOrder { id, buyer, .. }| format!("({id},{},{})", buyer.user_id, buyer.voucher_id))
        .collect();
    let rows = rows.join(",");
    format!("INSERT IGNORE INTO tb_voucher_order (id, user_id, voucher_id) VALUES {rows}")
}
