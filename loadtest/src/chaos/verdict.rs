//! The verdict on a round: the checker's invariants, and two that only a round can know.

use std::fmt;

use serde::Serialize;

use super::buyers::{CancelAnswer, Cancelled, Outcome};
use workload::{
    checker::{self, OrderRow, Verdict},
    order_rows::Snapshot,
};

/// `tb_voucher_order.status` of a cancelled order.
const CANCELLED: u8 = 4;

/// What was checked in a round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RoundVerdict {
    /// Every reply against every row.
    pub checker: Verdict,
    /// Vouchers that could not be bought any more when all servers were back.
    pub unsold: i64,
    /// Cancellations that were confirmed and did not happen, or were refused and did.
    pub false_cancels: i64,
}

impl RoundVerdict {
    /// Checks every reply against the tables.
    pub fn of(outcome: &Outcome, snapshot: &Snapshot) -> Self {
        let asked = outcome.records.iter().map(|record| &record.observed);
        let checker = checker::judge(snapshot.sale, asked, &snapshot.rows);
        let is_false = |cancelled: &&Cancelled| is_false(cancelled, &snapshot.rows);
        let false_cancels = outcome.cancelled.iter().filter(is_false).count();
        let false_cancels = i64::try_from(false_cancels).unwrap_or(i64::MAX);
        Self { checker, unsold: 0, false_cancels }
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
            ("false cancel", self.false_cancels),
        ];
        five.into_iter().chain(others).collect()
    }

    /// Whether every invariant holds.
    pub fn is_clean(&self) -> bool {
        self.invariants().iter().all(|(_, count)| *count == 0)
    }
}

impl fmt::Display for RoundVerdict {
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

fn is_false(cancelled: &Cancelled, rows: &[OrderRow]) -> bool {
    let is_cancelled =
        rows.iter().any(|row| row.id == cancelled.order_id && row.status == CANCELLED);
    if cancelled.answers.contains(&CancelAnswer::Done) {
        return !is_cancelled;
    }
    is_cancelled && !cancelled.answers.contains(&CancelAnswer::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancellation_must_agree_with_its_answers() {
        use CancelAnswer::{Done, Refused, Unknown};
        let is_false = |answers: &[CancelAnswer], status| {
            let cancelled = Cancelled { user_id: 1, order_id: 7, answers: answers.to_vec() };
            is_false(&cancelled, &[OrderRow { id: 7, user_id: 1, status }])
        };
        assert!(!is_false(&[Done, Refused], CANCELLED));
        assert!(is_false(&[Done, Refused], 1), "confirmed, and it did not happen");
        assert!(is_false(&[Refused, Refused], CANCELLED), "refused, and it happened");
        assert!(!is_false(&[Refused, Refused], 1));
        assert!(!is_false(&[Refused, Unknown], CANCELLED) && !is_false(&[Unknown, Unknown], 1));
    }

    #[test]
    fn lost_stock_and_unsold_stock_are_stranded() {
        let drift = |drift| Verdict { drift, ..Verdict::default() };
        let verdict =
            |drift_of, unsold| RoundVerdict { checker: drift(drift_of), unsold, false_cancels: 0 };
        assert!(verdict(0, 0).is_clean());
        assert_eq!(verdict(2, 1).stranded(), 3);
        assert_eq!(verdict(-2, 0).to_string(), "VIOLATION: invented 2");
    }
}
