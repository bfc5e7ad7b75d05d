//! Refusals of pending orders: a row under the order's id, with its user, the voucher 0 and the status *cancelled*. The
//! primary key lets either the order or its refusal exist, never both; neither the unique index, which has NULL there, nor a
//! Java node's look for an order of this user and voucher sees it.

use std::collections::HashMap;
use std::fmt::Write;

use super::orders::{OrderStore, id_list};
use crate::error::Error;
use crate::order::model::NewOrder;

/// What the row under an order's id says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decided {
    /// It is the order, of whatever status.
    Ordered,
    /// It is the refusal.
    Refused,
    /// It is another buyer's: this order will never be.
    Another,
}

impl OrderStore {
    /// Refuses those of `orders` that are not decided; returns what each is then.
    ///
    /// # Errors
    /// Nothing is known; to be tried again.
    pub async fn refuse(&self, orders: &[NewOrder]) -> Result<HashMap<i64, Decided>, Error> {
        let Some(first) = orders.first() else { return Ok(HashMap::new()) };
        let mut sorted = orders.to_vec();
        sorted.sort_unstable_by_key(|order| order.id);
        let mut insert = String::from(
            "INSERT IGNORE INTO tb_voucher_order (id, user_id, voucher_id, status) VALUES ",
        );
        for (at, NewOrder { id, buyer, .. }) in sorted.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            // Writing to a String cannot fail.
            write!(insert, "{comma}({id},{},0,4)", buyer.user_id).ok();
        }
        let mut transaction = self.begin().await?;
        transaction.change(&insert).await?;
        // In the transaction: whoever was inserting one of these ids has ended.
        let sql = format!(
            "SELECT id, CAST(user_id AS SIGNED), CAST(voucher_id AS SIGNED) FROM tb_voucher_order \
             WHERE id IN ({})",
            id_list(orders.iter().map(|order| order.id))
        );
        let rows: Vec<(i64, i64, i64)> = transaction.rows(&sql).await?;
        transaction.commit_once(first.id).await?;
        let rows: HashMap<i64, (i64, i64)> =
            rows.into_iter().map(|(id, user, voucher)| (id, (user, voucher))).collect();
        let decided = |order: &NewOrder| {
            let decided = match rows.get(&order.id) {
                Some((user, 0)) if *user == order.buyer.user_id => Decided::Refused,
                Some((user, voucher))
                    if (*user, *voucher) == (order.buyer.user_id, order.buyer.voucher_id) =>
                {
                    Decided::Ordered
                }
                _ => Decided::Another,
            };
            (order.id, decided)
        };
        Ok(orders.iter().map(decided).collect())
    }
}
