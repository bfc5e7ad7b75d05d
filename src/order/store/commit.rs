//! The end of a purchase's transaction, and what became of it where the reply was lost.
//!
//! The hot row, the sale's stock, is changed in the request that commits ([`OrderTransaction::take_and_commit`]), because
//! all buyers of the sale queue for that row: it is locked while the server runs the text, and not while a reply and the
//! next request travel. Every transaction changes the rows of several sales in the order of their ids, so that no two wait
//! for each other.
//!
//! Only here can a purchase end in [`Error::OutcomeUnknown`].

use std::collections::BTreeMap;

use super::orders::{Locked, Probe, find_for_certain, id_list};
use super::transaction::{OrderTransaction, Sent};
use crate::connection::mysql::Database;
use crate::connection::server_error::is_read_only;
use crate::error::{Cause, Error};
use crate::order::model::NewOrder;
use crate::order::steps;
use crate::request::trace;

/// What came of a request that takes from the stock of sales and commits.
pub enum Taken {
    /// All of it was done.
    Committed,
    /// Less is left of a sale ([`Error::SoldOut`]), or its row could not be changed. The transaction is to be rolled back.
    Not(Box<OrderTransaction>, Error),
}

impl OrderTransaction {
    /// Commits, and resolves the outcome where the reply was lost, by looking up `order`, which may be any order of the
    /// transaction.
    ///
    /// # Errors
    /// [`Error::Unavailable`] is definite: nothing was done. [`Error::OutcomeUnknown`] only where the database
    /// could not be asked for as long as one step may take.
    pub async fn commit(self, order: &NewOrder) -> Result<(), Error> {
        let db = self.db.clone();
        let committing = async {
            match self.commit_once(order.id).await {
                // Boxed, because it is rare, and every purchase would carry its size.
                Err(Error::OutcomeUnknown(_)) => Box::pin(resolve(&db, order)).await,
                outcome => outcome,
            }
        };
        trace::step(committing, steps::ended("committed")).await
    }

    /// Takes so many from the stock of each of these sales, and commits: one round trip. This transaction must have inserted
    /// `order`, and that must have been answered: by it a lost reply is resolved, as in [`OrderTransaction::commit`].
    ///
    /// # Cancellation
    /// Dropped, the transaction may be committed or not.
    pub async fn take_and_commit(
        mut self,
        order: &NewOrder,
        counts: &BTreeMap<i64, usize>,
    ) -> Result<Taken, Error> {
        let step = |taken: &Result<Taken, Error>| {
            steps::taken(match taken {
                Ok(Taken::Committed) => Some(true),
                Ok(Taken::Not(_, Error::SoldOut)) => Some(false),
                _ => None,
            })
        };
        let taking = async move {
            self.begin_commit()?;
            let Sent { replies, error } = self.send(&take_sql(counts)).await;
            let Some(error) = error else {
                self.ended();
                return Ok(Taken::Committed);
            };
            let answered = error.as_database_error().is_some();
            let is_short = matches!(&replies[..], [taken] if taken.changed < counts.len() as u64);
            if answered && (is_short || replies.is_empty()) {
                let error = if is_short {
                    Error::SoldOut
                } else {
                    error.into()
                };
                return Ok(Taken::Not(Box::new(self), error));
            }
            if is_short || is_read_only(&error) {
                return Err(error.into());
            }
            tracing::warn!(order_id = order.id, %error, "the commit's reply was lost");
            let db = self.db.clone();
            // Closes the connection, so that the server ends the transaction.
            drop(self);
            Box::pin(resolve(&db, order))
                .await
                .map(|()| Taken::Committed)
        };
        trace::step(taking, step).await
    }

    /// Commits without resolving a lost reply, which is [`Error::OutcomeUnknown`] with `order_id`: for changes that the
    /// existence of an order does not prove.
    pub(super) async fn commit_once(mut self, order_id: i64) -> Result<(), Error> {
        self.begin_commit()?;
        match self.send("COMMIT").await.error {
            None => {
                self.ended();
                Ok(())
            }
            Some(error) if is_read_only(&error) => Err(error.into()),
            Some(error) => {
                tracing::warn!(order_id, %error, "the commit's reply was lost");
                Err(Error::OutcomeUnknown(Some(order_id)))
            }
        }
    }
}

/// Finds out whether a transaction was committed whose commit has no reply, by one of its orders. Its insert must have been
/// answered: then the open transaction has locked the row, and reading the row waits until that transaction ends. The id of
/// an order that was rolled back may be another buyer's by now, if the counter was lost meanwhile.
async fn resolve(db: &Database, order: &NewOrder) -> Result<(), Error> {
    let found = db
        .ask_until_answered(|| find_for_certain(db, order.id, Locked::Wait))
        .await;
    match found {
        Ok(Probe::Order(found)) if found.is_of(order.buyer) => Ok(()),
        Ok(_) => Err(Error::Unavailable(Cause::Database)),
        Err(_) => Err(Error::OutcomeUnknown(Some(order.id))),
    }
}

/// Changes the hot rows and commits. The server runs a text up to the first statement that fails, so one behind the change
/// fails where fewer rows were changed than there are sales: the largest integer, plus one, is out of range. One UPDATE for
/// all takes a third of the server's time for one each, and locks the rows in the order of their key.
fn take_sql(counts: &BTreeMap<i64, usize>) -> String {
    let mut sales: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
    counts
        .iter()
        .for_each(|(voucher_id, count)| sales.entry(*count).or_default().push(*voucher_id));
    let when = |(count, ids): (&usize, &Vec<i64>)| {
        format!(
            "WHEN voucher_id IN ({}) THEN {count} ",
            id_list(ids.iter().copied())
        )
    };
    let count = match sales.first_key_value() {
        Some((count, _)) if sales.len() == 1 => count.to_string(),
        _ => format!("CASE {}END", sales.iter().map(when).collect::<String>()),
    };
    format!(
        "UPDATE tb_seckill_voucher SET stock = stock - {count} \
         WHERE voucher_id IN ({}) AND stock >= {count}; \
         SET @taken = {} + (ROW_COUNT() <> {}); COMMIT",
        id_list(counts.keys().copied()),
        i64::MAX,
        counts.len()
    )
}
