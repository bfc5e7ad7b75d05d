//! Conformance: how a judged sale compares to its strategy's guarantees in the table of [`strategies`].

use serde::Serialize;

use strategies::{Guarantee, Strategy};

use crate::burst::Report;

/// How one sale compares to what its strategy guarantees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "detail")]
pub enum Conformance {
    /// Nothing can go wrong here, and nothing did.
    Holds,
    /// A violation that is possible was not seen this time. It need not occur.
    NotSeen(String),
    /// A violation that is possible occurred.
    Broken(String),
    /// A violation that must show itself did not; a fresh sale may show it.
    DidNotShow(String),
    /// A promise was not kept.
    Violation(String),
}

impl Conformance {
    /// Whether the sale ended as the table says.
    pub fn is_as_promised(&self) -> bool {
        !matches!(self, Self::DidNotShow(_) | Self::Violation(_))
    }

    /// The text of the table's last column.
    pub fn text(&self) -> String {
        match self {
            Self::Holds => "holds".to_owned(),
            Self::NotSeen(what) => format!("no {what} this time"),
            Self::Broken(_) => "BROKEN, as expected".to_owned(),
            Self::DidNotShow(what) => format!("did not show: {what}"),
            Self::Violation(what) => format!("VIOLATION: {what}"),
        }
    }

    /// Compares a judged sale on so many instances to the guarantees of `strategy`. Where `all_sold`, a strategy that holds
    /// must have left nothing.
    pub fn from_report(
        strategy: Strategy,
        instances: u32,
        report: &Report,
        all_sold: bool,
    ) -> Self {
        if !report.tables_unchanged {
            return Self::Violation("the tables never stood still".to_owned());
        }
        let verdict = &report.verdict;
        let oversell = strategy.row().oversell;
        let second_order = strategy.second_order_on(instances);
        let can_lose = strategy.can_lose();
        let mut broken = Vec::new();
        let mut violated = Vec::new();
        for (invariant, count) in verdict.violations() {
            let allowed = match invariant {
                "oversold" => oversell.can_break(),
                // A second yes without a row is a lost order, too.
                "duplicates" => second_order.can_break() || can_lose && count <= verdict.lost,
                // A read followed by a write loses updates: the books of such a sale are off too.
                "drift" => oversell.can_break(),
                // Of an order that is lost, Redis still has the claim, and not the unit.
                "false sold-out" => oversell.can_break() || can_lose,
                "lost" | "false duplicate" => can_lose,
                _ => false,
            };
            let found = format!("{invariant} {count}");
            if !allowed {
                violated.push(found);
            } else if matches!(invariant, "oversold" | "duplicates" | "lost") {
                broken.push(invariant);
            }
        }
        if all_sold && strategy.holds_on(instances) && verdict.stock_left != 0 {
            violated.push(format!(
                "{} of {} unsold",
                verdict.stock_left, verdict.issued
            ));
        }
        if !violated.is_empty() {
            return Self::Violation(violated.join(", "));
        }
        for (invariant, guarantee) in [("oversold", oversell), ("duplicates", second_order)] {
            if guarantee == Guarantee::Shown && !broken.contains(&invariant) {
                return Self::DidNotShow(invariant.to_owned());
            }
        }
        if !broken.is_empty() {
            return Self::Broken(broken.join(", "));
        }
        if second_order.can_break() {
            Self::NotSeen("duplicates".to_owned())
        } else if can_lose {
            // Without a kill nothing is lost.
            Self::NotSeen("lost".to_owned())
        } else {
            Self::Holds
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checker::Verdict;

    fn verdict(oversold: i64, duplicates: i64, drift: i64) -> Verdict {
        Verdict {
            oversold,
            duplicates,
            drift,
            issued: 100,
            ..Verdict::default()
        }
    }

    fn sale(verdict: Verdict) -> Report {
        Report {
            verdict,
            tables_unchanged: true,
            ..Report::default()
        }
    }

    #[test]
    fn each_strategy_is_held_to_its_own_guarantees() {
        use Strategy::{Conditional, MemoryQueue, Naive, ProcessLock, ReentrantLock};
        let lost = |verdict| Verdict { lost: 1, ..verdict };
        for (strategy, instances, verdict, expected) in [
            (ReentrantLock, 1, verdict(0, 0, 0), "holds"),
            (ReentrantLock, 2, verdict(0, 0, 0), "holds"),
            (ReentrantLock, 2, verdict(1, 0, 0), "VIOLATION: oversold 1"),
            (
                ReentrantLock,
                2,
                verdict(0, 1, 0),
                "VIOLATION: duplicates 1",
            ),
            (ReentrantLock, 2, verdict(0, 0, 1), "VIOLATION: drift 1"),
            (
                ReentrantLock,
                2,
                lost(verdict(0, 0, 0)),
                "VIOLATION: lost 1",
            ),
            // It holds on one instance, and must fail on two.
            (ProcessLock, 1, verdict(0, 0, 0), "holds"),
            (ProcessLock, 1, verdict(0, 2, 0), "VIOLATION: duplicates 2"),
            (ProcessLock, 2, verdict(0, 2, 0), "BROKEN, as expected"),
            (ProcessLock, 2, verdict(0, 0, 0), "did not show: duplicates"),
            (ProcessLock, 2, verdict(3, 2, 0), "VIOLATION: oversold 3"),
            // A flaw that need not show is not called safe.
            (Conditional, 1, verdict(0, 0, 0), "no duplicates this time"),
            (Conditional, 1, verdict(0, 1, 0), "BROKEN, as expected"),
            (Conditional, 1, verdict(1, 1, 0), "VIOLATION: oversold 1"),
            // It must oversell, but never lie about an order.
            (Naive, 1, verdict(0, 5, 0), "did not show: oversold"),
            (Naive, 1, verdict(9, 5, -9), "BROKEN, as expected"),
            (Naive, 1, lost(verdict(9, 5, -9)), "VIOLATION: lost 1"),
            // It loses what its memory holds, also where a buyer was told yes twice.
            (
                MemoryQueue,
                2,
                lost(verdict(0, 0, 0)),
                "BROKEN, as expected",
            ),
            (
                MemoryQueue,
                2,
                lost(verdict(0, 1, 0)),
                "BROKEN, as expected",
            ),
            (
                MemoryQueue,
                2,
                lost(verdict(0, 2, 0)),
                "VIOLATION: duplicates 2",
            ),
            (MemoryQueue, 1, verdict(0, 0, 0), "no lost this time"),
            (
                MemoryQueue,
                1,
                lost(verdict(1, 0, 0)),
                "VIOLATION: oversold 1",
            ),
        ] {
            let sale = sale(verdict);
            let found = Conformance::from_report(strategy, instances, &sale, true);
            assert_eq!(
                found.text(),
                expected,
                "{strategy} on {instances}: {sale:?}"
            );
            let bad = expected.starts_with("VIOLATION") || expected.starts_with("did not show");
            assert_eq!(found.is_as_promised(), !bad, "{found:?}");
        }
        let unsold = sale(Verdict {
            stock_left: 1,
            ..verdict(0, 0, 0)
        });
        let changing = Report {
            tables_unchanged: false,
            ..sale(verdict(0, 0, 0))
        };
        for (sale, all_sold, holds) in [
            (&unsold, true, false),
            (&unsold, false, true),
            (&changing, false, false),
        ] {
            let found = Conformance::from_report(ReentrantLock, 1, sale, all_sold);
            assert_eq!(found == Conformance::Holds, holds, "{found:?}");
        }
    }
}
