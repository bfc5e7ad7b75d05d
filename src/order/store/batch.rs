//! Many orders, of one sale or of several, in one transaction: their INSERT, and what may be in their way.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::commit::{Part, Text};
use super::orders::{OrderRow, SELECT_ROWS, id_list};
use super::transaction::{OrderTransaction, Sent, stock_sql};
use crate::connection::server_error::{Meaning, meaning_of};
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};

/// What is committed that may be in the way of orders.
pub struct Found {
    /// The rows under their ids.
    rows: HashMap<i64, OrderRow>,
    /// An order of each buyer: the order that is not cancelled, else the last cancelled one.
    orders: HashMap<Buyer, OrderRow>,
    /// What each sale has left.
    pub stocks: HashMap<i64, i64>,
}

impl Found {
    /// What the rows make of the order; `None` where none of them is in its way. That a key refused it (`is_refused`) says less:
    /// the server names the key only in the text of its error, and a table may have further unique keys that somebody else added.
    pub fn outcome_of(&self, order: &NewOrder, is_refused: bool) -> Option<Result<i64, Error>> {
        match (self.rows.get(&order.id), self.orders.get(&order.buyer)) {
            // An earlier copy of the text inserted it, or an earlier attempt.
            (Some(row), _) if row.buyer == order.buyer => Some(Ok(order.id)),
            (Some(_), _) => Some(Err(Error::DuplicateId)),
            // A cancelled order is in the way only in a table whose unique key counts it.
            (None, Some(row)) if row.is_live || is_refused => {
                Some(Err(Error::AlreadyOrdered(Some(row.id))))
            }
            _ => None,
        }
    }
}

impl Text {
    /// Inserts all of these orders; stops where the keys refuse some.
    pub fn insert_all(self, orders: &[NewOrder]) -> Self {
        let rows: Vec<String> = orders
            .iter()
            .map(|NewOrder { id, buyer, .. }| {
                format!("({id},{},{})", buyer.user_id, buyer.voucher_id)
            })
            .collect();
        let rows = rows.join(",");
        // IGNORE makes a key drop the row that it refuses instead of failing all.
        let insert =
            format!("INSERT IGNORE INTO tb_voucher_order (id, user_id, voucher_id) VALUES {rows}");
        let is_short = format!("ROW_COUNT() <> {}", orders.len());
        self.add(Part::Insert, &insert)
            .refuse(Part::AllInserted, &is_short)
    }
}

impl OrderTransaction {
    /// Rolls back, and reads what may be in the way of these orders. One round trip.
    pub async fn roll_back_and_find(&mut self, orders: &[NewOrder]) -> Result<Found, Error> {
        let mut users: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        for NewOrder { buyer, .. } in orders {
            let users_of_sale = users.entry(buyer.voucher_id).or_default();
            users_of_sale.push(buyer.user_id);
        }
        // A list of users for each sale takes the server a quarter of the time that a condition for each buyer takes, and is
        // cheap even where it reads all orders of the sale.
        let buyers: Vec<String> = users
            .iter()
            .map(|(sale, users)| format!("voucher_id = {sale} AND user_id IN ({})", id_list(users)))
            .collect();
        let text = format!(
            "ROLLBACK; {SELECT_ROWS} id IN ({}); {SELECT_ROWS} {} ORDER BY status <> 4, id; \
             SELECT CAST(voucher_id AS SIGNED), CAST(COALESCE(stock, 0) AS SIGNED) \
             FROM tb_seckill_voucher WHERE voucher_id IN ({})",
            id_list(orders.iter().map(|order| order.id)),
            buyers.join(" OR "),
            id_list(users.keys()),
        );
        let [_, rows, of_buyers, stocks] = self.run(&text).await?;
        self.rolled_back();
        let rows: Vec<OrderRow> = rows.all()?;
        let of_buyers: Vec<OrderRow> = of_buyers.all()?;
        Ok(Found {
            rows: rows.into_iter().map(|row| (row.id, row)).collect(),
            // The last row of a buyer replaces those before.
            orders: of_buyers.into_iter().map(|row| (row.buyer, row)).collect(),
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
            // The first reply is the ROLLBACK's, so as many sales were tried, and the last of them is locked.
            let tried = replies.len().min(untried.len());
            match untried.drain(..tried).next_back() {
                Some(sale) if meaning_of(&error) == Meaning::Conflict => locked.insert(sale),
                _ => return Err(error.into()),
            };
        }
    }
}
