//! What each rung of the ladder promises, in one place, and how a sale is held against it.

use serde::Serialize;

use crate::checker::Verdict;

/// Whether something may happen on a rung.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    /// It never happens.
    Never,
    /// It can happen, and need not show.
    Can,
    /// It can happen, and the demonstration insists on showing it.
    Shows,
}

use Promise::{Can, Never, Shows};

/// One rung.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rung {
    /// The strategy's name.
    pub name: &'static str,
    /// More orders than vouchers.
    pub oversell: Promise,
    /// A second order of one user, with all requests on one instance.
    pub second_on_one: Promise,
    /// The same, with requests on two instances.
    pub second_on_two: Promise,
}

/// The rungs in the order in which a person learning this field meets them.
pub const RUNGS: [Rung; 9] = [
    rung("naive", Shows, Can, Can),
    rung("compare-and-set", Never, Can, Can),
    rung("conditional", Never, Can, Can),
    rung("row-lock", Never, Never, Never),
    rung("process-lock", Never, Never, Shows),
    rung("setnx-lock", Never, Never, Never),
    rung("reentrant-lock", Never, Never, Never),
    rung("stream", Never, Never, Never),
    rung("group-commit", Never, Never, Never),
];

const fn rung(
    name: &'static str,
    oversell: Promise,
    second_on_one: Promise,
    second_on_two: Promise,
) -> Rung {
    Rung { name, oversell, second_on_one, second_on_two }
}

/// How one sale stands against its rung's promises.
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
}

impl Rung {
    /// What this rung promises about second orders on so many instances.
    pub fn second(&self, instances: u32) -> Promise {
        if instances > 1 { self.second_on_two } else { self.second_on_one }
    }

    /// Whether every law must hold on so many instances, with all stock sold.
    pub fn is_safe(&self, instances: u32) -> bool {
        self.oversell == Never && self.second(instances) == Never
    }

    /// Holds a judged sale against the promises.
    pub fn judge(&self, instances: u32, verdict: &Verdict, sold_out: bool) -> Conformance {
        let second = self.second(instances);
        let mut broken = Vec::new();
        let mut violated = Vec::new();
        for (law, count) in verdict.violations() {
            let allowed = match law {
                "oversold" => self.oversell != Never,
                "duplicates" => second != Never,
                // A read followed by a write loses updates: the books of such a sale are off too.
                "drift" | "false sold-out" => self.oversell != Never,
                _ => false,
            };
            let found = format!("{law} {count}");
            if !allowed {
                violated.push(found);
            } else if matches!(law, "oversold" | "duplicates") {
                broken.push(law);
            }
        }
        if self.is_safe(instances) && !sold_out {
            violated.push(format!("{} of {} unsold", verdict.stock_left, verdict.issued));
        }
        if !violated.is_empty() {
            return Conformance::Violation(violated.join(", "));
        }
        for (law, promise) in [("oversold", self.oversell), ("duplicates", second)] {
            if promise == Shows && !broken.contains(&law) {
                return Conformance::DidNotShow(law.to_owned());
            }
        }
        if !broken.is_empty() {
            return Conformance::Broken(broken.join(", "));
        }
        if second == Never {
            Conformance::Holds
        } else {
            Conformance::NotSeen("duplicates".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rung(name: &str) -> Rung {
        *RUNGS.iter().find(|rung| rung.name == name).unwrap()
    }

    fn verdict(oversold: i64, duplicates: i64, drift: i64) -> Verdict {
        Verdict { oversold, duplicates, drift, issued: 100, ..Verdict::default() }
    }

    #[test]
    fn a_safe_rung_is_held_to_everything() {
        let lock = rung("reentrant-lock");
        for instances in [1, 2] {
            let judge = |verdict: &Verdict, sold_out| lock.judge(instances, verdict, sold_out);
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
    fn a_process_lock_must_hold_alone_and_show_its_flaw_in_company() {
        let lock = rung("process-lock");
        assert_eq!(lock.judge(1, &verdict(0, 0, 0), true), Conformance::Holds);
        assert!(matches!(lock.judge(1, &verdict(0, 2, 0), true), Conformance::Violation(_)));
        assert!(matches!(lock.judge(2, &verdict(0, 2, 0), true), Conformance::Broken(_)));
        assert!(matches!(lock.judge(2, &verdict(0, 0, 0), true), Conformance::DidNotShow(_)));
        assert!(matches!(lock.judge(2, &verdict(3, 2, 0), true), Conformance::Violation(_)));
    }

    #[test]
    fn a_flaw_that_need_not_show_is_not_called_safe() {
        let conditional = rung("conditional");
        let standing = conditional.judge(1, &verdict(0, 0, 0), true);
        assert!(matches!(standing, Conformance::NotSeen(_)) && standing.is_as_promised());
        assert!(matches!(conditional.judge(1, &verdict(0, 1, 0), true), Conformance::Broken(_)));
        assert!(matches!(conditional.judge(1, &verdict(1, 1, 0), true), Conformance::Violation(_)));
    }

    #[test]
    fn a_naive_sale_must_oversell_but_never_lie_about_an_order() {
        let naive = rung("naive");
        assert!(matches!(naive.judge(1, &verdict(0, 5, 0), true), Conformance::DidNotShow(_)));
        assert!(matches!(naive.judge(1, &verdict(9, 5, -9), true), Conformance::Broken(_)));
        let lost = Verdict { lost: 1, ..verdict(9, 5, -9) };
        assert!(matches!(naive.judge(1, &lost, true), Conformance::Violation(_)));
    }
}
