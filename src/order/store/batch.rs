//! Many orders, of one sale or of several, in one transaction: their INSERT, and what may be in their way.
//!
//! Statements with lists of ids or rows are text, not prepared: one statement then fits a batch of any size, where prepared
//! ones would need one shape per size. Everything put into the text is an integer.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::count::{rows_by_id, rows_sql};
use super::orders::id_list;
use super::transaction::{OrderTransaction, Reply, Sent, stock_sql};
use crate::connection::server_error::{Meaning, meaning_of};
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};

/// Why a batch could not be committed. Nothing was done.
pub enum BatchError {
    /// An order could not be inserted, and perhaps only that one.
    Order(Error),
    /// The rows of these sales could not be changed; the orders of other sales can be committed without them.
    Sales(BTreeSet<i64>, Error),
    /// An error that concerns all orders.
    All(Error),
}

/// What is committed that may be in the way of orders.
pub struct Found {
    /// The rows under their ids: whose each is, and whether it is not cancelled.
    pub rows: HashMap<i64, (Buyer, bool)>,
    /// An order of each buyer, and whether it is not cancelled: the order that is not cancelled, else the last cancelled one.
    pub orders: HashMap<Buyer, (i64, bool)>,
    /// What each sale has left.
    pub stocks: HashMap<i64, i64>,
}

impl Found {
    /// What the rows make of the order; `None` where none of them is in its way. That the server refused a row says less: it
    /// names the key only in the text of its error, and a table may have further unique keys that somebody else added.
    pub fn outcome_by_key(
        &self,
        order: &NewOrder,
        is_refused_by_key: bool,
    ) -> Option<Result<i64, Error>> {
        match (self.rows.get(&order.id), self.orders.get(&order.buyer)) {
            // An earlier copy of the text inserted it, or an earlier attempt.
            (Some((buyer, _)), _) if *buyer == order.buyer => Some(Ok(order.id)),
            (Some(_), _) => Some(Err(Error::DuplicateId)),
            // A cancelled order is in the way only in a table whose unique key counts it.
            (None, Some((id, is_live))) if *is_live || is_refused_by_key => {
                Some(Err(Error::AlreadyOrdered(Some(*id))))
            }
            _ => None,
        }
    }
}

impl OrderTransaction {
    /// Rolls back, and reads what may be in the way of these orders. One round trip.
    pub async fn roll_back_and_find(&mut self, orders: &[NewOrder]) -> Result<Found, Error> {
        let buyers: Vec<Buyer> = orders.iter().map(|order| order.buyer).collect();
        let sales: BTreeSet<i64> = buyers.iter().map(|buyer| buyer.voucher_id).collect();
        let text = format!(
            "ROLLBACK; {}; {}; \
             SELECT CAST(voucher_id AS SIGNED), CAST(COALESCE(stock, 0) AS SIGNED) \
             FROM tb_seckill_voucher WHERE voucher_id IN ({})",
            rows_sql(orders),
            orders_sql(&buyers),
            id_list(sales),
        );
        let replies = self.run(&text).await?;
        self.rolled_back();
        let [_, rows, existing, stocks] = &replies[..] else {
            let detail = format!("4 statements gave {} results", replies.len());
            return Err(Error::Internal(detail));
        };
        Ok(Found {
            rows: rows_by_id(rows)?,
            orders: orders_by_buyer(existing)?,
            stocks: stocks.all()?.into_iter().collect(),
        })
    }

    /// Rolls back, and finds those of these sales whose rows others have locked. A round trip, and one more for each of those:
    /// an error ends the text.
    pub async fn roll_back_and_find_locked(
        &mut self,
        sales: &BTreeSet<i64>,
    ) -> Result<BTreeSet<i64>, Error> {
        let mut locked = BTreeSet::new();
        let mut untried: Vec<i64> = sales.iter().copied().collect();
        loop {
            // Outside a transaction each lock ends with its statement.
            let mut text = "ROLLBACK".to_owned();
            for sale in &untried {
                text.push_str(&format!("; {} FOR UPDATE NOWAIT", stock_sql(*sale)));
            }
            let Sent { replies, error } = self.send(&text).await;
            let Some(error) = error else {
                self.rolled_back();
                return Ok(locked);
            };
            // The first reply is the ROLLBACK's.
            let tried = replies.len();
            match untried.get(tried.wrapping_sub(1)) {
                Some(sale) if meaning_of(&error) == Meaning::Conflict => {
                    locked.insert(*sale);
                    untried.drain(..tried);
                }
                _ => return Err(error.into()),
            }
        }
    }
}

/// The orders of these buyers, to be read by [`orders_by_buyer`]. A list of users for each sale takes the server a quarter of
/// the time that a condition for each buyer takes, and is cheap even where it reads all orders of the sale.
fn orders_sql(buyers: &[Buyer]) -> String {
    let mut users: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for buyer in buyers {
        users
            .entry(buyer.voucher_id)
            .or_default()
            .push(buyer.user_id);
    }
    let conditions: Vec<String> = users
        .into_iter()
        .map(|(voucher_id, users)| {
            format!(
                "(voucher_id = {voucher_id} AND user_id IN ({}))",
                id_list(users)
            )
        })
        .collect();
    format!(
        "SELECT CAST(user_id AS SIGNED), CAST(voucher_id AS SIGNED), id, \
         CAST(COALESCE(status, 1) <> 4 AS SIGNED) FROM tb_voucher_order WHERE {} ORDER BY status <> 4, id",
        conditions.join(" OR ")
    )
}

fn orders_by_buyer(reply: &Reply) -> Result<HashMap<Buyer, (i64, bool)>, Error> {
    let rows: Vec<(i64, i64, i64, i64)> = reply.all()?;
    let mut orders = HashMap::with_capacity(rows.len());
    for (user_id, voucher_id, id, is_live) in rows {
        let buyer = Buyer {
            user_id,
            voucher_id,
        };
        // The last row of a buyer replaces those before.
        orders.insert(buyer, (id, is_live == 1));
    }
    Ok(orders)
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
