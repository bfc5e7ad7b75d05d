//! The text that commits a purchase. Wherever nothing has to be read in between, it is the whole transaction, in one round
//! trip: `ROLLBACK; START TRANSACTION; INSERT; check; deadline; UPDATE of the hot row; check; COMMIT`.
//!
//! - The server runs a text up to the first statement that fails. A *check* is a statement that fails unless a condition
//!   holds: the largest integer, plus one, is out of range (error 1690).
//! - The hot row, the sale's stock, is changed last, because all buyers of the sale queue for it: it is locked while the
//!   server runs the rest of the text, and not while a reply and the next request travel. Every transaction changes the rows
//!   of several sales in the order of their ids, so that no two wait for each other.
//! - A text that arrives late does not commit: the *deadline* is a check by the server's own clock. It stands behind the
//!   INSERT, because that may wait for another transaction. The UPDATE may wait past the deadline, as by then the order's
//!   row is locked.
//! - A failed check, a refused row, a lost deadlock or lock wait and a read-only server say where a text stopped. An error
//!   that breaks or interrupts the connection counts as a lost reply, however many replies came before it: a proxy that has
//!   lost its server sends an error too. What became of the text is then decided by a row under the order's id
//!   ([`super::decide`]). Only if the database cannot say that either, the purchase ends in [`Error::OutcomeUnknown`].

use std::collections::BTreeMap;
use std::slice;

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use tokio::time::Instant;

use super::orders::id_list;
use super::transaction::{OrderTransaction, Sent, insert_if_first_sql, insert_sql};
use crate::connection::server_error::{
    Meaning, is_duplicate, is_of_its_statement, is_out_of_range, is_read_only, meaning_of,
};
use crate::error::{Cause, Error};
use crate::order::model::NewOrder;
use crate::order::steps;
use crate::request::trace::{self, Step};

/// A purchase commits within this time of the second in its id, by the database's clock.
pub const COMMITS_WITHIN: TimeDelta = TimeDelta::seconds(20);

/// Whose orders a text commits. This decides until when the text may commit, and what is done if its reply is lost. No text
/// commits after the time limit of its attempt.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Purchases that wait for the reply: they are committed within [`COMMITS_WITHIN`], and a lost reply is decided at once.
    Purchases,
    /// Orders that were admitted before, of a queue in Redis or in memory, whose ids may be old. A lost reply leaves them there,
    /// and the next attempt finds their rows if they were committed.
    Entries,
}

/// A statement of a text, by what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Insert,
    AllInserted,
    Claimed,
    InTime,
    Take,
    AllTaken,
    Commit,
}

/// How a text that commits ended.
pub enum Ended {
    /// All of it was done.
    Committed,
    /// It stopped, and the transaction is open: to be continued or rolled back.
    Stopped(Box<OrderTransaction>, Obstacle),
}

impl Ended {
    /// What it means for the only order of the transaction: its id, or the refusal. Ends the transaction.
    pub(super) async fn outcome_of(self, order: &NewOrder) -> Result<i64, Error> {
        let Ended::Stopped(mut open, obstacle) = self else {
            return Ok(order.id);
        };
        let outcome = match obstacle {
            Obstacle::Inserted(_) | Obstacle::DuplicateKey => {
                let is_refused = matches!(obstacle, Obstacle::DuplicateKey);
                match open.roll_back_and_find(slice::from_ref(order)).await {
                    // The row that was in the way may be gone.
                    Ok(found) => found
                        .outcome_of(order, is_refused)
                        .unwrap_or(Err(Error::Conflict)),
                    // The row that refused it may be this order, inserted by an earlier copy of the text.
                    Err(error) => return Box::pin(open.decided(order, error)).await,
                }
            }
            Obstacle::SoldOut | Obstacle::NoFreeUnit => Err(Error::SoldOut),
            Obstacle::InsertConflict | Obstacle::Conflict => Err(Error::Conflict),
        };
        if let Err(error) = open.rollback().await {
            tracing::debug!(%error, "a purchase's connection is closed instead of rolled back");
        }
        outcome
    }
}

/// Where a text stopped, and why.
#[derive(Debug)]
pub enum Obstacle {
    /// Only this many rows were inserted, not all.
    Inserted(u64),
    /// A unique key refused a row.
    DuplicateKey,
    /// The insert lost a deadlock, or waited too long for another transaction.
    InsertConflict,
    /// Every free unit of the sale is locked, or there is none.
    NoFreeUnit,
    /// A sale has less stock than the text takes.
    SoldOut,
    /// A statement behind the insert lost a deadlock, or waited too long for another transaction.
    Conflict,
}

/// A text that commits, while it is put together: the statements before its deadline, and what is taken from the stock
/// behind it.
#[derive(Default)]
pub struct Text {
    parts: Vec<Part>,
    sql: String,
    /// How many units are taken from the stock of each sale.
    taken: BTreeMap<i64, usize>,
}

impl Text {
    pub(super) fn add(mut self, part: Part, statement: &str) -> Self {
        if !self.sql.is_empty() {
            self.sql.push_str("; ");
        }
        self.sql.push_str(statement);
        self.parts.push(part);
        self
    }

    /// Adds a check that fails if the condition holds.
    pub(super) fn refuse(self, part: Part, condition: &str) -> Self {
        self.add(part, &format!("SET @check = {} + ({condition})", i64::MAX))
    }

    /// Inserts the order; a key refuses it with an error.
    pub fn insert(self, order: &NewOrder) -> Self {
        self.add(Part::Insert, &insert_sql(order))
    }

    /// Inserts the order unless its buyer has a committed one.
    pub fn insert_if_first(self, order: &NewOrder) -> Self {
        self.add(Part::Insert, &insert_if_first_sql(order))
            .refuse(Part::AllInserted, "ROW_COUNT() <> 1")
    }

    /// Takes one from the stock of the sale of each of these orders.
    pub fn take<'a>(mut self, orders: impl IntoIterator<Item = &'a NewOrder>) -> Self {
        for order in orders {
            *self.taken.entry(order.buyer.voucher_id).or_default() += 1;
        }
        self
    }

    /// Adds the deadline, the change of the hot rows, and the COMMIT.
    fn finish(self, latest: DateTime<Utc>) -> Self {
        let latest = latest.format("%Y-%m-%d %H:%M:%S%.6f");
        let mut text = self.refuse(Part::InTime, &format!("UTC_TIMESTAMP(6) > '{latest}'"));
        if !text.taken.is_empty() {
            let take = take_sql(&text.taken);
            let is_short = format!("ROW_COUNT() <> {}", text.taken.len());
            text = text
                .add(Part::Take, &take)
                .refuse(Part::AllTaken, &is_short);
        }
        text.add(Part::Commit, "COMMIT")
    }
}

impl OrderTransaction {
    /// Sends what is left of the transaction, as one text that commits. A lost reply is decided by the row under
    /// the id of `order`: the text must insert it, and must not delete it again.
    ///
    /// # Errors
    /// [`Error::OutcomeUnknown`] only where the database could not be asked for as long as one step may take; after every other
    /// error nothing was done, unless the text is of [`Kind::Entries`].
    ///
    /// # Cancellation
    /// Dropped, the transaction may be committed or not.
    pub async fn commit_with(
        mut self,
        text: Text,
        order: &NewOrder,
        kind: Kind,
    ) -> Result<Ended, Error> {
        let attempt_ends = self.begin_commit()?;
        let text = text.finish(match kind {
            Kind::Purchases => attempt_ends.min(self.store.drawn_at(order.id) + COMMITS_WITHIN),
            Kind::Entries => attempt_ends,
        });
        let Sent { replies, error } = self.send(&text.sql).await;
        let Some(error) = error else {
            self.ended();
            return Ok(Ended::Committed);
        };
        let failed_part = text.parts.get(replies.len()).copied();
        let obstacle = match (failed_part, meaning_of(&error)) {
            (_, Meaning::ReadOnly) => return Err(error.into()),
            (Some(Part::InTime), _) if is_out_of_range(&error) => {
                self.roll_back_and_ask_the_clock().await?;
                return Err(Error::Unavailable(Cause::PurchaseDeadline));
            }
            (Some(Part::AllInserted), _) if is_out_of_range(&error) => {
                Obstacle::Inserted(replies.last().map_or(0, |insert| insert.changed))
            }
            (Some(Part::Claimed), _) if is_out_of_range(&error) => Obstacle::NoFreeUnit,
            (Some(Part::AllTaken), _) if is_out_of_range(&error) => Obstacle::SoldOut,
            (Some(Part::Insert), _) if is_duplicate(&error) => Obstacle::DuplicateKey,
            (Some(Part::Insert), Meaning::Conflict) => Obstacle::InsertConflict,
            (Some(_), Meaning::Conflict) => Obstacle::Conflict,
            // The statement itself was refused. The connection is closed, so the server rolls back.
            (Some(Part::Insert | Part::Take), _) if is_of_its_statement(&error) => {
                return Err(error.into());
            }
            _ if matches!(kind, Kind::Entries) => return Err(error.into()),
            _ => {
                tracing::warn!(order_id = order.id, %error, "the commit's reply was lost");
                let deciding = Box::pin(self.decided(order, error.into()));
                return deciding.await.map(|_| Ended::Committed);
            }
        };
        Ok(Ended::Stopped(Box::new(self), obstacle))
    }

    /// Ends a purchase of one order by such a text; returns the order's id.
    ///
    /// # Errors
    /// Those of [`OrderTransaction::commit_with`], and the refusals.
    pub async fn place(self, order: &NewOrder, text: Text) -> Result<i64, Error> {
        let inserts = text.parts.contains(&Part::Insert);
        let placing = self.commit_with(text, order, Kind::Purchases);
        let ended = trace::step(placing, |ended| step_of(ended, inserts)).await?;
        ended.outcome_of(order).await
    }

    /// Gives the commit a time limit of its own, as it must not be cut short because the statements before it were slow. Returns
    /// when the attempt ends, by the server's clock. If that is over, nothing may be committed.
    fn begin_commit(&mut self) -> Result<DateTime<Utc>, Error> {
        let now = Instant::now();
        let Some(time_left) = self.deadline.checked_duration_since(now) else {
            return Err(Error::Unavailable(Cause::Database));
        };
        self.deadline = now + self.store.db.timeout;
        // Every connection asks the clock when it is opened.
        let now = self.store.db.clock().now().unwrap_or_else(Utc::now);
        Ok(now + time_left)
    }

    /// The deadline was over by the server's clock, which may have been stepped since it was last asked.
    async fn roll_back_and_ask_the_clock(mut self) -> Result<(), Error> {
        let [_, clock] = self.run("ROLLBACK; SELECT UTC_TIMESTAMP(6)").await?;
        if let Some((now,)) = clock.all::<(NaiveDateTime,)>()?.pop() {
            self.store.db.clock().set(now.and_utc());
        }
        self.ended();
        Ok(())
    }

    /// Commits a change that cannot be decided by the row of a new order, such as a cancellation. If the reply is lost, the
    /// error is [`Error::OutcomeUnknown`] with `order_id`.
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

/// A text's step in a traced request: `placed`, or, for a text that does not insert the order and finds stock, `committed`.
pub(super) fn step_of(ended: &Result<Ended, Error>, inserts: bool) -> Step {
    let outcome = match ended {
        Ok(Ended::Committed) if inserts => "taken",
        Ok(Ended::Stopped(_, Obstacle::SoldOut)) => "nothing-left",
        Ok(Ended::Stopped(_, Obstacle::Inserted(_))) => "ordered-before",
        // Another request of this buyer inserted an order meanwhile: no lock kept the two requests apart.
        Ok(Ended::Stopped(_, Obstacle::DuplicateKey)) => "index-refused",
        _ if inserts => "failed",
        ended => return steps::committed(matches!(ended, Ok(Ended::Committed))),
    };
    steps::placed(outcome)
}

/// One UPDATE for all sales takes a third of the server's time for one UPDATE each, and locks the rows in the order of their
/// key.
fn take_sql(counts: &BTreeMap<i64, usize>) -> String {
    let mut by_count: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
    for (voucher_id, count) in counts {
        by_count.entry(*count).or_default().push(*voucher_id);
    }
    let count = match by_count.first_key_value() {
        Some((count, _)) if by_count.len() == 1 => count.to_string(),
        _ => {
            let cases = by_count
                .iter()
                .map(|(count, ids)| format!("WHEN voucher_id IN ({}) THEN {count} ", id_list(ids)));
            format!("CASE {}END", cases.collect::<String>())
        }
    };
    format!(
        "UPDATE tb_seckill_voucher SET stock = stock - {count} \
         WHERE voucher_id IN ({}) AND stock >= {count}",
        id_list(counts.keys())
    )
}
