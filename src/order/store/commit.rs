//! The end of a purchase's transaction, and what became of it where the reply was lost.
//!
//! The hot row, the sale's stock, is changed in the request that commits ([`OrderTransaction::take_and_commit`]): it is
//! locked for as long as the server takes for two statements, and not while a reply and the next request travel. All
//! buyers of the sale queue for that row.
//!
//! Only here can a purchase end in [`Error::OutcomeUnknown`].

use std::time::Duration;

use backon::Retryable;
use tokio::time::Instant;

use super::orders::{Locked, find_for_certain};
use super::transaction::{OrderTransaction, Sent};
use crate::connection::mysql::Database;
use crate::connection::server_error::is_read_only;
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder, Order};
use crate::order::steps;
use crate::request::trace;

/// Pause between two reads of an order whose commit is in doubt.
const RESOLVE_PAUSE: Duration = Duration::from_millis(100);

impl OrderTransaction {
    /// Commits, and resolves the outcome where the reply was lost, by looking up `order`, which may be any order of the
    /// transaction.
    ///
    /// # Errors
    /// [`Error::Unavailable`] is definite: nothing was done. [`Error::OutcomeUnknown`] only where the database
    /// could not be asked for as long as one step may take; the first tries may meet connections that died with
    /// the one that was to commit.
    pub async fn commit(self, order: &NewOrder) -> Result<(), Error> {
        let db = self.db.clone();
        let committing = async {
            match self.commit_once(order.id).await {
                // Boxed, because it is rare, and every purchase would carry its size.
                Err(Error::OutcomeUnknown(_)) => Box::pin(resolve(&db, order)).await,
                outcome => outcome,
            }
        };
        trace::step(committing, steps::committed).await
    }

    /// Takes `count` from the stock of the order's sale and commits, in one round trip; where that much is not left, nothing is
    /// done, and the transaction is returned open. This transaction must have inserted `order`, and that must have been
    /// answered: by it a lost reply is resolved, as in [`OrderTransaction::commit`].
    ///
    /// # Errors
    /// As of [`OrderTransaction::commit`]; and [`Error::Conflict`], after which nothing was done.
    ///
    /// # Cancellation
    /// Dropped, the transaction may be committed or not.
    pub async fn take_and_commit(
        self,
        order: &NewOrder,
        count: usize,
    ) -> Result<Option<Self>, Error> {
        trace::step(self.take_and_resolve(order, count), steps::taken).await
    }

    async fn take_and_resolve(
        mut self,
        order: &NewOrder,
        count: usize,
    ) -> Result<Option<Self>, Error> {
        self.begin_commit()?;
        let text = take_sql(order.buyer.voucher_id, count);
        let Sent { replies, error } = self.send(&text).await;
        let Some(error) = error else {
            self.ended();
            return Ok(None);
        };
        let answered = error.as_database_error().is_some();
        let changed = replies.first().map(|update| update.changed > 0);
        if changed == Some(false) && answered {
            // The text ended with the statement that looks.
            return Ok(Some(self));
        }
        let refused = changed.is_none() && answered;
        if changed == Some(false) || refused || is_read_only(&error) {
            return Err(error.into());
        }
        tracing::warn!(order_id = order.id, %error, "the commit's reply was lost");
        let db = self.db.clone();
        // Closes the connection, so that the server ends the transaction.
        drop(self);
        Box::pin(resolve(&db, order)).await.map(|()| None)
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
/// answered: then the transaction, wherever its end is held up, has the row, and looking at the row waits for that end.
async fn resolve(db: &Database, order: &NewOrder) -> Result<(), Error> {
    let deadline = Instant::now() + db.timeout;
    let pauses = std::iter::repeat(RESOLVE_PAUSE).take_while(|_| Instant::now() < deadline);
    match (|| is_committed(db, order)).retry(pauses).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::Unavailable("the database")),
        Err(_) => Err(Error::OutcomeUnknown(Some(order.id))),
    }
}

/// Whether this order was committed, waiting for any transaction that may still decide it. The id of an order that was
/// rolled back may be another buyer's by now, if the counter was lost meanwhile.
async fn is_committed(db: &Database, order: &NewOrder) -> Result<bool, Error> {
    let found = find_for_certain(db, order.id, Locked::Wait).await?;
    let buyer = |Order { user_id, voucher_id, .. }| Buyer { user_id, voucher_id };
    Ok(found.map(buyer) == Some(order.buyer))
}

/// Changes the hot row and commits. The server runs a text up to the first statement that fails, so the one in the middle
/// fails where the row was not changed, or is gone: the largest integer, plus one, is out of range. An UPDATE that fails by
/// itself would let an order through whose sale is gone.
fn take_sql(voucher_id: i64, count: usize) -> String {
    format!(
        "UPDATE tb_seckill_voucher SET stock = stock - {count} \
         WHERE voucher_id = {voucher_id} AND stock >= {count}; \
         SET @taken = {} + (ROW_COUNT() <> 1); COMMIT",
        i64::MAX
    )
}
