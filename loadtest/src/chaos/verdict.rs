//! The verdict on a sale: the checker's invariants, and those that only a round can know.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    time::Duration,
};

use serde::Serialize;

use super::{
    buyers::Outcome,
    changes::{Answer, Change, What},
};
use workload::{
    checker::{self, ObservedReply, OrderRow, Verdict},
    order_rows::Snapshot,
    reply::Reply,
};

/// At most this many findings are spelled out.
const EXAMPLES: usize = 10;
/// `tb_voucher_order.status` of an unpaid, a paid and a cancelled order.
const UNPAID: u8 = 1;
const PAID: u8 = 2;
const CANCELLED: u8 = 4;

/// What else was done to a sale, besides its buyers' requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Circumstances {
    /// What was put on sale at first.
    pub published: i64,
    /// After how long an unpaid order expires, if it does.
    pub expires: Option<Duration>,
    /// Whether the database lost rows that it had confirmed: the fault of its asynchronous replication, not of the service,
    /// which must not make it worse.
    pub rows_lost: bool,
}

/// What was checked of a sale.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SaleVerdict {
    /// Every reply against every row.
    pub checker: Verdict,
    /// Vouchers that could not be bought any more when all servers were back.
    pub unsold: i64,
    /// Payments and cancellations that were confirmed and did not happen, or were refused and did.
    pub false_changes: i64,
    /// Orders that expired too early, or were to expire and did not.
    pub false_expiries: i64,
    /// Orders that were confirmed and that the database lost: no violation where it may.
    pub lost_by_database: i64,
}

impl SaleVerdict {
    /// Checks every reply against the tables.
    pub fn of(outcome: &Outcome, snapshot: &Snapshot, circumstances: Circumstances) -> Self {
        if circumstances.rows_lost {
            return Self::of_what_is_left(outcome, snapshot, circumstances);
        }
        let asked = outcome.records.iter().map(|record| &record.observed);
        let mut sale = snapshot.sale;
        sale.added = (sale.issued - circumstances.published).max(0);
        let mut verdict =
            Self { checker: checker::judge(sale, asked, &snapshot.rows), ..Self::default() };
        // Two attempts can have been told of the same order.
        let mut changes: HashMap<i64, Change> = HashMap::new();
        for change in &outcome.changes {
            let empty = || Change { answers: Vec::new(), ..change.clone() };
            let all = changes.entry(change.order_id).or_insert_with(empty);
            all.answers.extend(change.answers.iter().cloned());
        }
        for row in &snapshot.rows {
            if let Some(what) = false_change(row, changes.get(&row.id), circumstances) {
                verdict.false_changes += 1;
                verdict.example(|| format!("order {}: {what}", row.id));
            }
        }
        let early = |change: &&Change| expired_early(change, circumstances);
        for change in outcome.changes.iter().filter(early) {
            verdict.false_expiries += 1;
            verdict.example(|| {
                format!("order {} expired {:?} after it was asked for", change.order_id, change.age)
            });
        }
        verdict
    }

    /// Checks what a database that lost rows has left: no more than was issued and one for each user, as every other
    /// sale. What was told of orders that are gone is taken for an unknown outcome, and counted.
    fn of_what_is_left(
        outcome: &Outcome,
        snapshot: &Snapshot,
        circumstances: Circumstances,
    ) -> Self {
        let exists = |id: i64| snapshot.rows.binary_search_by_key(&id, |row| row.id).is_ok();
        let mut lost = BTreeSet::new();
        let told: Vec<ObservedReply> = outcome
            .records
            .iter()
            .map(|record| {
                let mut told = record.observed.clone();
                let gone = match &told.reply {
                    Reply::Ordered(id) | Reply::Pending(id) | Reply::AlreadyOrdered(Some(id)) => {
                        (!exists(*id)).then_some(*id)
                    }
                    _ => None,
                };
                if let Some(id) = gone {
                    lost.insert(id);
                    told.reply = Reply::Unknown { why: "lost by the database".into(), id: None };
                }
                told
            })
            .collect();
        let mut sale = snapshot.sale;
        sale.added = (sale.issued - circumstances.published).max(0);
        let mut checker = checker::judge(sale, &told, &snapshot.rows);
        // It may have been true before rows, and with them what they had taken, were lost.
        (checker.false_sold_out, checker.false_duplicate, checker.lost) = (0, 0, 0);
        let lost_by_database = i64::try_from(lost.len()).unwrap_or(i64::MAX);
        Self { checker, lost_by_database, ..Self::default() }
    }

    fn example(&mut self, text: impl FnOnce() -> String) {
        if self.checker.examples.len() < EXAMPLES {
            self.checker.examples.push(text());
        }
    }

    /// Stock that is neither ordered nor for sale.
    pub fn stranded(&self) -> i64 {
        self.checker.drift.max(0) + self.unsold
    }

    /// Name and count of everything that must be 0; the five of a report's table come first.
    pub fn invariants(&self) -> Vec<(&'static str, i64)> {
        let five = [
            ("oversold", self.checker.oversold),
            ("duplicates", self.checker.duplicates),
            ("lost", self.checker.lost),
            ("phantom", self.checker.phantom),
            ("stranded", self.stranded()),
        ];
        let others = [
            ("invented", (-self.checker.drift).max(0)),
            ("false sold-out", self.checker.false_sold_out),
            ("false duplicate", self.checker.false_duplicate),
            ("malformed", self.checker.malformed),
            ("false change", self.false_changes),
            ("false expiry", self.false_expiries),
        ];
        five.into_iter().chain(others).collect()
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
        let broken: Vec<String> = self
            .invariants()
            .into_iter()
            .filter(|(_, count)| *count != 0)
            .map(|(invariant, count)| format!("{invariant} {count}"))
            .collect();
        write!(f, "VIOLATION: {}", broken.join(", "))
    }
}

/// Unpaid orders.
pub fn unpaid(rows: &[OrderRow]) -> usize {
    rows.iter().filter(|row| row.status == UNPAID).count()
}

/// What is wrong with the status of an order, given what its owner was told.
fn false_change(
    row: &OrderRow,
    change: Option<&Change>,
    circumstances: Circumstances,
) -> Option<&'static str> {
    let answered = |what: What, is: fn(&Answer) -> bool| {
        change.is_some_and(|change| change.answers.iter().any(|(of, to)| *of == what && is(to)))
    };
    let done = |what| answered(what, |answer| *answer == Answer::Done);
    let may_be = |what| answered(what, |answer| matches!(answer, Answer::Done | Answer::Unknown));
    if done(What::Pay) && row.status != PAID {
        return Some("its payment was confirmed, and it is not paid");
    }
    if done(What::Cancel) && row.status != CANCELLED {
        return Some("its cancellation was confirmed, and it is not cancelled");
    }
    if row.status == PAID && !may_be(What::Pay) {
        return Some("it is paid, and its payment was refused or never asked for");
    }
    if row.status == CANCELLED && circumstances.expires.is_none() && !may_be(What::Cancel) {
        return Some("it is cancelled, and its cancellation was refused or never asked for");
    }
    None
}

/// Whether the answers show that the order had expired, at an age at which it must not.
fn expired_early(change: &Change, circumstances: Circumstances) -> bool {
    let asks = |what: What| change.answers.iter().any(|(of, _)| *of == what);
    let was_cancelled = |(_, answer): &(What, Answer)| matches!(answer, Answer::Refused(code) if code == "ORDER_CANCELLED");
    circumstances.expires.is_some_and(|expires| change.age < expires)
        && !asks(What::Cancel)
        && change.answers.iter().any(was_cancelled)
}

#[cfg(test)]
mod tests {
    use workload::{checker::Sale, generator::Record};

    use super::*;
    use Answer::{Done, Unknown};
    use What::{Cancel, Pay};

    fn change(answers: &[(What, Answer)]) -> Change {
        let age = Duration::from_millis(300);
        Change { user_id: 1, order_id: 7, answers: answers.to_vec(), age }
    }

    fn refused(code: &str) -> Answer {
        Answer::Refused(code.to_owned())
    }

    #[test]
    fn payments_and_cancellations_must_agree_with_their_answers() {
        let no = || refused("ALREADY_PAID");
        let is_false = |answers: &[(What, Answer)], status| {
            let row = OrderRow { id: 7, user_id: 1, status };
            false_change(&row, Some(&change(answers)), Circumstances::default()).is_some()
        };
        assert!(!is_false(&[(Cancel, Done), (Cancel, no())], CANCELLED));
        assert!(is_false(&[(Cancel, Done), (Cancel, no())], UNPAID), "confirmed, did not happen");
        assert!(is_false(&[(Cancel, no()), (Cancel, no())], CANCELLED), "refused, happened");
        assert!(!is_false(&[(Cancel, no()), (Cancel, no())], UNPAID));
        assert!(!is_false(&[(Cancel, no()), (Cancel, Unknown)], CANCELLED));
        assert!(!is_false(&[(Cancel, Unknown), (Cancel, Unknown)], UNPAID));
        assert!(!is_false(&[(Pay, Done), (Cancel, no())], PAID));
        assert!(is_false(&[(Pay, Done), (Cancel, Done)], PAID), "both confirmed");
        assert!(is_false(&[(Pay, no()), (Pay, no())], PAID), "refused, happened");
    }

    #[test]
    fn an_order_that_nobody_cancelled_may_have_expired_where_orders_do() {
        let row = OrderRow { id: 7, user_id: 1, status: CANCELLED };
        let expires =
            Circumstances { expires: Some(Duration::from_secs(2)), ..Circumstances::default() };
        assert!(false_change(&row, None, Circumstances::default()).is_some());
        assert!(false_change(&row, None, expires).is_none());
        let expired = change(&[(Pay, refused("ORDER_CANCELLED"))]);
        assert!(expired_early(&expired, expires));
        assert!(!expired_early(
            &Change { age: Duration::from_secs(3), ..expired.clone() },
            expires
        ));
        let both = change(&[(Pay, refused("ORDER_CANCELLED")), (Cancel, Done)]);
        assert!(!expired_early(&both, expires), "its owner cancelled it");
    }

    #[test]
    fn orders_that_the_database_may_lose_are_counted_apart_and_never_excuse_an_oversold_sale() {
        let told = |user_id, reply| Record {
            trace: None,
            observed: ObservedReply { user_id, attempt: 0, reply },
            target: 0,
            sent: Duration::ZERO,
            latency: Duration::ZERO,
        };
        // Order 7 is lost, and its buyer, who is told of it once more, has order 9 after it.
        let records = vec![
            told(1, Reply::Ordered(7)),
            told(1, Reply::AlreadyOrdered(Some(7))),
            told(1, Reply::Ordered(9)),
            told(2, Reply::Pending(8)),
        ];
        let outcome = Outcome { records, ..Outcome::default() };
        let row = |id, user_id| OrderRow { id, user_id, status: UNPAID };
        let of = |stock_left, rows: Vec<OrderRow>, rows_lost| {
            let snapshot = Snapshot { sale: Sale { issued: 2, stock_left, added: 0 }, rows };
            let circumstances =
                Circumstances { published: 2, rows_lost, ..Circumstances::default() };
            SaleVerdict::of(&outcome, &snapshot, circumstances)
        };
        let rows = vec![row(8, 2), row(9, 1)];
        let excused = of(0, rows.clone(), true);
        assert!(excused.is_clean() && excused.lost_by_database == 1, "{excused}");
        let counted = of(0, rows, false);
        assert!(counted.checker.lost > 0 && counted.lost_by_database == 0, "{counted}");
        let oversold = of(-1, vec![row(8, 2), row(9, 1), row(10, 3)], true);
        assert!(oversold.checker.oversold > 0, "{oversold}");
        let twice = of(0, vec![row(9, 1), row(10, 1)], true);
        assert!(twice.checker.duplicates > 0, "{twice}");
    }

    #[test]
    fn lost_stock_and_unsold_stock_are_stranded() {
        let drift = |drift| Verdict { drift, ..Verdict::default() };
        let verdict = |drift_of, unsold| SaleVerdict {
            checker: drift(drift_of),
            unsold,
            ..SaleVerdict::default()
        };
        assert!(verdict(0, 0).is_clean());
        assert_eq!(verdict(2, 1).stranded(), 3);
        assert_eq!(verdict(-2, 0).to_string(), "VIOLATION: invented 2");
    }
}
