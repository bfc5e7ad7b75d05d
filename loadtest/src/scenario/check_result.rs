//! The result of a check, and what a whole run proved.

use std::fmt::Display;

use serde::Serialize;
use workload::burst;

/// The result of a check: what was measured, compared to what is guaranteed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "detail")]
pub enum CheckResult {
    /// The guarantee was kept.
    Holds,
    /// Nothing is guaranteed; this was seen.
    Shown(String),
    /// What had to show itself did not. No error of the service.
    DidNotShow(String),
    /// Nothing can be said, and what to do about it. No error of the service.
    Unclear(String),
    /// The guarantee was broken.
    Violation(String),
}

impl CheckResult {
    /// Holds, unless there are violations to name.
    pub fn of(violations: Vec<String>) -> Self {
        if violations.is_empty() { Self::Holds } else { Self::Violation(violations.join("; ")) }
    }

    /// Whether a guarantee was broken.
    pub fn is_violation(&self) -> bool {
        matches!(self, Self::Violation(_))
    }

    /// Whether the run proved what it was meant to.
    pub fn is_proof(&self) -> bool {
        matches!(self, Self::Holds | Self::Shown(_))
    }

    /// The last line of a report that has no other.
    pub fn verdict(&self) -> String {
        if *self == Self::Holds { "No violation.".to_owned() } else { self.text() }
    }

    /// The text of a table's last column.
    pub fn text(&self) -> String {
        match self {
            Self::Holds => "holds".to_owned(),
            Self::Shown(what) => what.clone(),
            Self::DidNotShow(what) => format!("did not show: {what}"),
            Self::Unclear(what) => format!("unclear: {what}"),
            Self::Violation(what) => format!("VIOLATION: {what}"),
        }
    }
}

/// What a whole run proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Everything holds, and everything that had to show itself did.
    Clean,
    /// Something could not be checked or shown.
    Unproved,
    /// A guarantee was broken.
    Violated,
}

impl Outcome {
    /// The worst of all lines.
    pub fn of<'a>(results: impl IntoIterator<Item = &'a CheckResult>) -> Self {
        let one = |result: &CheckResult| match result {
            result if result.is_violation() => Self::Violated,
            result if result.is_proof() => Self::Clean,
            _ => Self::Unproved,
        };
        results.into_iter().map(one).max().unwrap_or(Self::Unproved)
    }

    /// The last line of a report.
    pub fn text(self) -> &'static str {
        match self {
            Self::Clean => "No violation.",
            Self::Unproved => {
                "Not proved: something did not show or could not be checked; see above."
            }
            Self::Violated => "VIOLATION: see above.",
        }
    }
}

/// The report of a run: printed as text, written as JSON, summed up by an exit code.
pub trait Report: Display + Serialize {
    /// What the run proved.
    fn outcome(&self) -> Outcome;
}

impl Report for burst::Report {
    fn outcome(&self) -> Outcome {
        if !self.verdict.is_clean() {
            Outcome::Violated
        } else if !self.tables_unchanged || (self.verdict.orders == 0 && self.stock > 0) {
            Outcome::Unproved
        } else {
            Outcome::Clean
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_as_good_as_its_worst_line() {
        let (good, shown) = (CheckResult::Holds, CheckResult::Shown(String::new()));
        let (bad, open) = (CheckResult::Violation("x".into()), CheckResult::Unclear(String::new()));
        assert_eq!(Outcome::of([&good, &shown]), Outcome::Clean);
        assert_eq!(Outcome::of([&good, &open, &shown]), Outcome::Unproved);
        assert_eq!(Outcome::of([&bad, &open, &good]), Outcome::Violated);
        assert_eq!(Outcome::of([]), Outcome::Unproved, "no line proves nothing");
        assert_eq!(CheckResult::of(vec!["a".into(), "b".into()]).text(), "VIOLATION: a; b");
    }
}
