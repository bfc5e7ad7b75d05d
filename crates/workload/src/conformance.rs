//! Conformance: how a judged sale compares to its strategy's guarantees in the [`ladder`](crate::ladder).

use crate::ladder::{Guarantee, Strategy};
use serde::Serialize;

use crate::checker::Verdict;

/// How one sale compares to what its strategy guarantees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "detail")]
pub enum Conformance {
    /// Nothing can go wrong here, and nothing did.
    Holds,
    /// What can break did not this time, and need not.
    NotSeen(String),
    /// What can break did.
    Broken(String),
    /// What had to show itself did not; a fresh sale may show it.
    DidNotShow(String),
    /// A promise was not kept.
    Violation(String),
}

impl Conformance {
    /// Whether the ladder as a whole may still be called a success.
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

    /// Compares a judged sale on so many instances to the guarantees of `strategy`.
    pub fn of(strategy: Strategy, instances: u32, verdict: &Verdict, sold_out: bool) -> Self {
        let oversell = strategy.row().oversell;
        let second = strategy.second_order_on(instances);
        let mut broken = Vec::new();
        let mut violated = Vec::new();
        for (invariant, count) in verdict.violations() {
            let allowed = match invariant {
                "oversold" => oversell.can_break(),
                "duplicates" => second.can_break(),
                // A read followed by a write loses updates: the books of such a sale are off too.
                "drift" | "false sold-out" => oversell.can_break(),
                _ => false,
            };
            let found = format!("{invariant} {count}");
            if !allowed {
                violated.push(found);
            } else if matches!(invariant, "oversold" | "duplicates") {
                broken.push(invariant);
            }
        }
        if strategy.holds_on(instances) && !sold_out {
            violated.push(format!("{} of {} unsold", verdict.stock_left, verdict.issued));
        }
        if !violated.is_empty() {
            return Self::Violation(violated.join(", "));
        }
        for (invariant, guarantee) in [("oversold", oversell), ("duplicates", second)] {
            if guarantee == Guarantee::Shown && !broken.contains(&invariant) {
                return Self::DidNotShow(invariant.to_owned());
            }
        }
        if !broken.is_empty() {
            return Self::Broken(broken.join(", "));
        }
        if second.can_break() { Self::NotSeen("duplicates".to_owned()) } else { Self::Holds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(oversold: i64, duplicates: i64, drift: i64) -> Verdict {
        Verdict { oversold, duplicates, drift, issued: 100, ..Verdict::default() }
    }

    #[test]
    fn a_safe_strategy_must_keep_every_invariant() {
        let judge = |instances, verdict: &Verdict, sold_out| {
            Conformance::of(Strategy::ReentrantLock, instances, verdict, sold_out)
        };
        for instances in [1, 2] {
            let judge = |verdict: &Verdict, sold_out| judge(instances, verdict, sold_out);
            assert_eq!(judge(&verdict(0, 0, 0), true), Conformance::Holds);
            assert!(!judge(&verdict(0, 0, 0), false).is_as_promised(), "unsold stock");
            assert!(!judge(&verdict(1, 0, 0), true).is_as_promised());
            assert!(!judge(&verdict(0, 1, 0), true).is_as_promised());
            assert!(!judge(&verdict(0, 0, 1), true).is_as_promised());
            let lost = Verdict { lost: 1, ..verdict(0, 0, 0) };
            assert!(!judge(&lost, true).is_as_promised());
        }
    }

    #[test]
    fn a_process_lock_holds_on_one_instance_and_must_fail_on_two() {
        let judge = |instances, verdict: &Verdict, sold_out| {
            Conformance::of(Strategy::ProcessLock, instances, verdict, sold_out)
        };
        assert_eq!(judge(1, &verdict(0, 0, 0), true), Conformance::Holds);
        assert!(matches!(judge(1, &verdict(0, 2, 0), true), Conformance::Violation(_)));
        assert!(matches!(judge(2, &verdict(0, 2, 0), true), Conformance::Broken(_)));
        assert!(matches!(judge(2, &verdict(0, 0, 0), true), Conformance::DidNotShow(_)));
        assert!(matches!(judge(2, &verdict(3, 2, 0), true), Conformance::Violation(_)));
    }

    #[test]
    fn a_flaw_that_need_not_show_is_not_called_safe() {
        let judge = |instances, verdict: &Verdict, sold_out| {
            Conformance::of(Strategy::Conditional, instances, verdict, sold_out)
        };
        let conformance = judge(1, &verdict(0, 0, 0), true);
        assert!(matches!(conformance, Conformance::NotSeen(_)) && conformance.is_as_promised());
        assert!(matches!(judge(1, &verdict(0, 1, 0), true), Conformance::Broken(_)));
        assert!(matches!(judge(1, &verdict(1, 1, 0), true), Conformance::Violation(_)));
    }

    #[test]
    fn a_naive_sale_must_oversell_but_never_lie_about_an_order() {
        let judge = |instances, verdict: &Verdict, sold_out| {
            Conformance::of(Strategy::Naive, instances, verdict, sold_out)
        };
        assert!(matches!(judge(1, &verdict(0, 5, 0), true), Conformance::DidNotShow(_)));
        assert!(matches!(judge(1, &verdict(9, 5, -9), true), Conformance::Broken(_)));
        let lost = Verdict { lost: 1, ..verdict(9, 5, -9) };
        assert!(matches!(judge(1, &lost, true), Conformance::Violation(_)));
    }
}
