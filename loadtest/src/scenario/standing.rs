//! How one line of a read scenario stands against what it promises.

use serde::Serialize;

/// A judgement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind", content = "detail")]
pub enum Standing {
    /// The promise was kept.
    Holds,
    /// Nothing is promised: what was seen is told.
    Shown(String),
    /// What had to show itself did not. No fault of the service.
    DidNotShow(String),
    /// Nothing can be said, and what to do about it. No fault of the service.
    Unclear(String),
    /// The promise was not kept.
    Violation(String),
}

impl Standing {
    /// Holds, unless there are violations to name.
    pub fn of(violations: Vec<String>) -> Self {
        if violations.is_empty() { Self::Holds } else { Self::Violation(violations.join("; ")) }
    }

    /// Whether the service is at fault.
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

/// What a whole run amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Everything holds, and everything that had to show itself did.
    Clean,
    /// Something could not be judged or shown.
    Unproved,
    /// A promise was broken.
    Violated,
}

impl Outcome {
    /// The worst of all lines.
    pub fn of<'a>(standings: impl IntoIterator<Item = &'a Standing>) -> Self {
        let one = |standing: &Standing| match standing {
            standing if standing.is_violation() => Self::Violated,
            standing if standing.is_proof() => Self::Clean,
            _ => Self::Unproved,
        };
        standings.into_iter().map(one).max().unwrap_or(Self::Unproved)
    }

    /// The last line of a report.
    pub fn text(self) -> &'static str {
        match self {
            Self::Clean => "No violation.",
            Self::Unproved => {
                "Not proved: something did not show or could not be judged; see above."
            }
            Self::Violated => "VIOLATION: see above.",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_as_good_as_its_worst_line() {
        let (good, shown) = (Standing::Holds, Standing::Shown(String::new()));
        let (bad, open) = (Standing::Violation("x".into()), Standing::Unclear(String::new()));
        assert_eq!(Outcome::of([&good, &shown]), Outcome::Clean);
        assert_eq!(Outcome::of([&good, &open, &shown]), Outcome::Unproved);
        assert_eq!(Outcome::of([&bad, &open, &good]), Outcome::Violated);
        assert_eq!(Outcome::of([]), Outcome::Unproved, "no line proves nothing");
        assert_eq!(Standing::of(vec!["a".into(), "b".into()]).text(), "VIOLATION: a; b");
    }
}
