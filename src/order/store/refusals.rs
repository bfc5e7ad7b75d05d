//! Refusals of pending orders: a row under the order's id, with its user, that id as its voucher too, and the status
//! *cancelled*. The primary key lets either the order or its refusal exist, never both; neither the unique index, which has
//! NULL there, nor a Java node's look for an order of this user and voucher sees it. One voucher for all refusals, such as 0,
//! would be a user's second order of it where a table has `UNIQUE (user_id, voucher_id)`.

use std::collections::HashMap;

use super::orders::OrderStore;
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder, is_refusal};

/// Whether the row under an order's id, which is this buyer's, is its refusal.
pub fn is_refusal_of(order: &NewOrder, row: Buyer) -> bool {
    row.user_id == order.buyer.user_id && is_refusal(order.id, row.voucher_id)
}

impl OrderStore {
    /// Refuses those of `orders` that are not decided; returns the rows under their ids then.
    ///
    /// # Errors
    /// Nothing is known; to be tried again.
    pub async fn refuse(&self, orders: &[NewOrder]) -> Result<HashMap<i64, (Buyer, bool)>, Error> {
        let Some(first) = orders.first() else {
            return Ok(HashMap::new());
        };
        let mut sorted = orders.to_vec();
        sorted.sort_unstable_by_key(|order| order.id);
        let rows: Vec<String> = sorted
            .iter()
            .map(|NewOrder { id, buyer, .. }| format!("({id},{},{id},4)", buyer.user_id))
            .collect();
        let insert = format!(
            "INSERT IGNORE INTO tb_voucher_order (id, user_id, voucher_id, status) VALUES {}",
            rows.join(",")
        );
        let mut transaction = self.begin().await?;
        transaction.change(&insert).await?;
        // In the transaction: whoever was inserting one of these ids has ended.
        let rows = transaction.rows_of(orders).await?;
        transaction.commit_once(first.id).await?;
        Ok(rows)
    }
}
