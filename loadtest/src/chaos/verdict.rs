//! The verdict on a sale: the checker's invariants, and those that depend on what the round did.

use std::{collections::BTreeSet, fmt, time::Duration};

use super::changes::{Answer, What, times};
use workload::{
    checker::{self, ObservedReply, OrderRow, Verdict},
    generator::Record,
    order_rows::Snapshot,
    reply::Reply,
};

#[cfg(test)]
mod tests;

/// `tb_voucher_order.status` of an unpaid and a paid order.
const UNPAID: u8 = 1;
const PAID: u8 = 2;

/// Every request of the buyers with its reply, and what else happened to a sale.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Every attempt to buy.
    pub records: Vec<Record>,
    /// The answers to every payment and cancellation. There may be several of one order: two attempts may have got its id,
    /// and the operator changes orders as well.
    pub changes: Vec<Answer>,
    /// Buyer and id of every order whose look-up said a definite no.
    pub noes: BTreeSet<(u64, i64)>,
    /// What was put on sale at first.
    pub published: i64,
    /// After how long an unpaid order expires, if it does.
    pub expires: Option<Duration>,
    /// How many orders were still unpaid when all should have expired.
    pub unexpired: i64,
    /// Whether the database may have lost rows that it had confirmed. That is the fault of its asynchronous replication, not
    /// of the service, which must not make it worse.
    pub rows_lost: bool,
    /// Whether Redis may have lost data that it had confirmed.
    pub redis_lost: bool,
    /// How far the time in an order's id may be ahead. It takes so much longer until it is certain that there is no such
    /// order.
    pub ids_ahead: Duration,
}

/// What was checked of a sale.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SaleVerdict {
    /// Every reply against every row.
    pub checker: Verdict,
    /// Vouchers that could not be bought any more when all servers were back.
    pub stranded: i64,
    /// Payments and cancellations that were confirmed and did not happen, or were refused and did.
    pub false_changes: i64,
    /// Orders that expired too early, or were to expire and did not.
    pub false_expiries: i64,
    /// Orders that exist although a look-up had said a definite no.
    pub rows_after_a_no: i64,
    /// Orders that were confirmed and that the database lost: no violation where it may.
    pub lost_by_database: i64,
    /// Orders whose id was told and that ended as a definite no: no violation where Redis may have lost its data.
    pub no_after_loss: i64,
}

impl SaleVerdict {
    /// Checks every reply against the tables.
    pub fn judge(outcome: &Outcome, snapshot: &Snapshot) -> Self {
        let mut verdict = Self {
            false_expiries: outcome.unexpired,
            ..Self::default()
        };
        let mut sale = snapshot.sale;
        sale.added = (sale.issued - outcome.published).max(0);
        let replies = verdict.excuse(outcome, &snapshot.rows);
        if outcome.redis_lost {
            // The vouchers of orders that ended as a no came back, so an earlier "sold out" may have been true. A buyer of
            // unknown outcome without a row may have had such an order as well.
            let ordered: BTreeSet<u64> = snapshot.rows.iter().map(|row| row.user_id).collect();
            let unknown = replies
                .iter()
                .filter(|observed| matches!(observed.reply, Reply::Unknown { .. }));
            let unknown: BTreeSet<u64> = unknown.map(|observed| observed.user_id).collect();
            sale.added += verdict.no_after_loss + (&unknown - &ordered).len() as i64;
        }
        verdict.checker = checker::judge(sale, &replies, &snapshot.rows);
        for row in &snapshot.rows {
            if outcome.noes.contains(&(row.user_id, row.id)) {
                verdict.rows_after_a_no += 1;
                let OrderRow { id, user_id, .. } = row;
                verdict
                    .checker
                    .example(|| format!("user {user_id}: order {id} exists after a no"));
            }
        }
        if outcome.rows_lost {
            // These replies may have been true until the rows were lost, and with them the vouchers that they had taken.
            verdict.checker.false_sold_out = 0;
            verdict.checker.false_duplicate = 0;
            verdict.checker.lost = 0;
            return verdict;
        }
        let changes = &outcome.changes;
        let expires = outcome.expires;
        for row in &snapshot.rows {
            if let Some((what, happened)) = false_change(row, changes, expires) {
                verdict.false_changes += 1;
                let contradiction = if happened {
                    "happened unasked"
                } else {
                    "did not happen"
                };
                verdict
                    .checker
                    .example(|| format!("order {}: {what:?} {contradiction}", row.id));
            }
        }
        for Answer { order_id, age, .. } in expired_early(changes, expires) {
            verdict.false_expiries += 1;
            let example = || format!("order {order_id} expired {age:?} after it was asked for");
            verdict.checker.example(example);
        }
        verdict
    }

    /// All replies, but those that are wrong only because a server was made to lose data are replaced, and counted apart. If
    /// the database may have lost rows, the outcome of their orders is unknown. If Redis may have lost data, an order that
    /// was not confirmed as committed may end as a definite no, although its id was told. Nothing else is excused: there are
    /// still no more orders than vouchers, and one for each user.
    fn excuse(&mut self, outcome: &Outcome, rows: &[OrderRow]) -> Vec<ObservedReply> {
        let mut lost = BTreeSet::new();
        let mut ended = BTreeSet::new();
        let mut replies: Vec<ObservedReply> = outcome
            .records
            .iter()
            .map(|record| record.observed.clone())
            .collect();
        for ObservedReply { user_id, reply, .. } in &mut replies {
            let (id, committed) = match reply {
                Reply::Ordered(id) => (*id, true),
                Reply::Pending(id) | Reply::AlreadyOrdered(Some(id)) => (*id, false),
                Reply::Withdrawn { id, .. } if outcome.redis_lost => (*id, false),
                _ => continue,
            };
            let refused = outcome.noes.contains(&(*user_id, id));
            let exists = rows.binary_search_by_key(&id, |row| row.id).is_ok();
            if outcome.redis_lost && refused && !committed {
                ended.insert(id);
                *reply = Reply::Refused("ended as a no after a loss".into());
            } else if outcome.rows_lost && !exists {
                lost.insert(id);
                *reply = Reply::Unknown {
                    why: "lost by the database".into(),
                    id: None,
                };
            }
        }
        self.lost_by_database = lost.len() as i64;
        self.no_after_loss = ended.len() as i64;
        replies
    }

    /// Name and count of everything that must be 0: the checker's, and those of the round.
    pub fn invariants(&self) -> Vec<(&'static str, i64)> {
        let mut invariants = self.checker.invariants().to_vec();
        invariants.extend([
            ("row after a no", self.rows_after_a_no),
            ("stranded", self.stranded),
            ("false change", self.false_changes),
            ("false expiry", self.false_expiries),
        ]);
        invariants
    }

    /// Whether every invariant holds.
    pub fn is_clean(&self) -> bool {
        self.invariants().iter().all(|(_, count)| *count == 0)
    }
}

impl fmt::Display for SaleVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return f.write_str("clean");
        }
        let broken = self
            .invariants()
            .into_iter()
            .filter(|(_, count)| *count != 0);
        let broken: Vec<_> = broken
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        write!(f, "VIOLATION: {}", broken.join(", "))
    }
}

/// Unpaid orders.
pub fn unpaid(rows: &[OrderRow]) -> impl Iterator<Item = &OrderRow> {
    rows.iter().filter(|row| row.status == UNPAID)
}

/// A change of an order that contradicts the answers to those who asked for it, and whether it happened.
fn false_change(
    row: &OrderRow,
    changes: &[Answer],
    expires: Option<Duration>,
) -> Option<(What, bool)> {
    let states = [
        (What::Pay, row.status == PAID),
        (What::Cancel, row.is_cancelled()),
    ];
    states.into_iter().find(|(what, happened)| {
        let replies = changes
            .iter()
            .filter(|answer| answer.order_id == row.id && answer.what == *what)
            .map(|answer| &answer.reply);
        let expired = row.is_cancelled() && *what == What::Cancel && expires.is_some();
        !expired && !times(replies).contains(&i64::from(*happened))
    })
}

/// The answers that say that an order was cancelled before its age allowed that, although nobody had asked for it.
fn expired_early(changes: &[Answer], expires: Option<Duration>) -> impl Iterator<Item = &Answer> {
    changes.iter().filter(move |answer| {
        let is_cancelled =
            matches!(&answer.reply, Reply::Refused(code) if code == "ORDER_CANCELLED");
        is_cancelled
            && expires.is_some_and(|expires| answer.age < expires)
            && !changes
                .iter()
                .any(|change| change.order_id == answer.order_id && change.what == What::Cancel)
    })
}
