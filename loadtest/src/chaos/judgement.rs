//! What a round is judged by: the checker's laws, and the two that only a round can know.

use std::fmt;

use serde::Serialize;

use super::crowd::{Cancelled, Outcome, Told};
use workload::{
    checker::{self, OrderRow, Verdict},
    ledger::Snapshot,
};

/// `tb_voucher_order.status` of a cancelled order.
const CANCELLED: u8 = 4;

/// A judged round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Judgement {
    /// Every reply against every row.
    pub verdict: Verdict,
    /// Vouchers that nobody could buy any more when all was well again.
    pub unsold: i64,
    /// Cancellations that were confirmed and did not happen, or were refused and did.
    pub false_cancels: i64,
}

impl Judgement {
    /// Judges all that was said against the tables.
    pub fn of(outcome: &Outcome, snapshot: &Snapshot) -> Self {
        let asked = outcome.records.iter().map(|record| &record.asked);
        let verdict = checker::judge(snapshot.sale, asked, &snapshot.rows);
        let lied = |cancelled: &&Cancelled| lied(cancelled, &snapshot.rows);
        let false_cancels = outcome.cancelled.iter().filter(lied).count();
        let false_cancels = i64::try_from(false_cancels).unwrap_or(i64::MAX);
        Self { verdict, unsold: 0, false_cancels }
    }

    /// Stock that is neither ordered nor for sale.
    pub fn stranded(&self) -> i64 {
        self.verdict.drift.max(0) + self.unsold
    }

    /// Name and count of everything that must be 0; the five of a report's table come first.
    pub fn laws(&self) -> Vec<(&'static str, i64)> {
        let five = [
            ("oversold", self.verdict.oversold),
            ("duplicates", self.verdict.duplicates),
            ("lost", self.verdict.lost),
            ("phantom", self.verdict.phantom),
            ("stranded", self.stranded()),
        ];
        let others = [
            ("invented", (-self.verdict.drift).max(0)),
            ("false sold-out", self.verdict.false_sold_out),
            ("false duplicate", self.verdict.false_duplicate),
            ("malformed", self.verdict.malformed),
            ("false cancel", self.false_cancels),
        ];
        five.into_iter().chain(others).collect()
    }

    /// Whether every law held.
    pub fn is_clean(&self) -> bool {
        self.laws().iter().all(|(_, count)| *count == 0)
    }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return f.write_str("clean");
        }
        let broken: Vec<String> = self
            .laws()
            .into_iter()
            .filter(|(_, count)| *count != 0)
            .map(|(law, count)| format!("{law} {count}"))
            .collect();
        write!(f, "VIOLATION: {}", broken.join(", "))
    }
}

fn lied(cancelled: &Cancelled, rows: &[OrderRow]) -> bool {
    let is = rows.iter().any(|row| row.id == cancelled.order_id && row.status == CANCELLED);
    if cancelled.told.contains(&Told::Done) {
        return !is;
    }
    is && !cancelled.told.contains(&Told::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancellation_is_held_to_what_was_said() {
        use Told::{Done, Refused, Unknown};
        let lied = |told: &[Told], status| {
            let cancelled = Cancelled { user_id: 1, order_id: 7, told: told.to_vec() };
            lied(&cancelled, &[OrderRow { id: 7, user_id: 1, status }])
        };
        assert!(!lied(&[Done, Refused], CANCELLED));
        assert!(lied(&[Done, Refused], 1), "confirmed, and it did not happen");
        assert!(lied(&[Refused, Refused], CANCELLED), "refused, and it happened");
        assert!(!lied(&[Refused, Refused], 1));
        assert!(!lied(&[Refused, Unknown], CANCELLED) && !lied(&[Unknown, Unknown], 1));
    }

    #[test]
    fn stock_that_went_astray_or_cannot_be_bought_is_stranded() {
        let drift = |drift| Verdict { drift, ..Verdict::default() };
        let judged =
            |drift_of, unsold| Judgement { verdict: drift(drift_of), unsold, false_cancels: 0 };
        assert!(judged(0, 0).is_clean());
        assert_eq!(judged(2, 1).stranded(), 3);
        assert_eq!(judged(-2, 0).to_string(), "VIOLATION: invented 2");
    }
}
