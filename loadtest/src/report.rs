//! What a run found: its checks, its figures, and the exit code that follows; and how it is printed.

use std::{
    fmt::{self, Display},
    io::Write,
    process::ExitCode,
};

use serde::Serialize;
use workload::table::render;

/// The codes of green, yellow and red, by what a line ends with.
const COLOURS: [(&str, u8); 6] = [
    ("holds", 32),
    ("No violation.", 32),
    ("unclear", 33),
    ("could not be checked.", 33),
    ("VIOLATION", 31),
    ("VIOLATION: see above.", 31),
];

/// Prints a text. Its reader may have read enough (`| head`), which is no error.
pub fn print(text: &str) {
    writeln!(std::io::stdout(), "{text}").ok();
}

/// The result of a check, or of all checks of a run; the worst comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckResult {
    /// What is promised was kept.
    Holds,
    /// Nothing is promised: the value is only shown.
    Shown,
    /// The check proves nothing, or an expected effect did not show. No error of the service.
    Unclear,
    /// A promise was broken.
    Violation,
}

impl CheckResult {
    /// The word for it.
    pub fn text(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Shown => "shown",
            Self::Unclear => "unclear",
            Self::Violation => "VIOLATION",
        }
    }

    /// The worst result; without any check, nothing can be said.
    pub fn worst(checks: &[Check]) -> Self {
        checks
            .iter()
            .map(|check| check.result)
            .max()
            .unwrap_or(Self::Unclear)
    }

    /// 1 for a violation, 2 where nothing was proved.
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::Holds | Self::Shown => ExitCode::SUCCESS,
            Self::Unclear => ExitCode::from(2),
            Self::Violation => ExitCode::from(1),
        }
    }
}

/// Something that was measured, beside what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked.
    pub what: String,
    /// The value that was found.
    pub measured: String,
    /// The value that would be right.
    pub allowed: String,
    /// How the two compare.
    pub result: CheckResult,
}

impl Check {
    /// A check that holds or is a violation.
    pub fn new(
        what: impl Into<String>,
        measured: impl Display,
        allowed: impl Display,
        holds: bool,
    ) -> Self {
        let result = if holds {
            CheckResult::Holds
        } else {
            CheckResult::Violation
        };
        let measured = measured.to_string();
        let allowed = allowed.to_string();
        Self {
            what: what.into(),
            measured,
            allowed,
            result,
        }
    }

    /// A count that must not exceed `limit`.
    pub fn at_most(what: impl Into<String>, measured: u64, limit: u64) -> Self {
        Self::new(what, measured, limit, measured <= limit)
    }

    /// A count that must be 0.
    pub fn none(what: impl Into<String>, measured: u64) -> Self {
        Self::at_most(what, measured, 0)
    }

    /// A value that is worth knowing, and that nobody promises.
    pub fn shown(what: impl Into<String>, measured: impl Display) -> Self {
        Self::new(what, measured, "any", false).or(CheckResult::Shown)
    }

    /// A condition without which the other checks prove nothing: where it does not hold, the result is unclear and no
    /// violation.
    #[must_use]
    pub fn needed(self) -> Self {
        self.or(CheckResult::Unclear)
    }

    /// Has this result in place of a violation.
    #[must_use]
    pub fn or(mut self, result: CheckResult) -> Self {
        if self.result == CheckResult::Violation {
            self.result = result;
        }
        self
    }
}

/// Figures in columns.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// The columns' titles; one that begins with `>` is aligned right.
    pub columns: Vec<&'static str>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table.
    pub fn new(columns: &[&'static str], rows: Vec<Vec<String>>) -> Self {
        Self {
            columns: columns.to_vec(),
            rows,
        }
    }
}

/// The report of a scenario that is a list of checks.
#[derive(Debug, Clone, Serialize)]
pub struct Checked {
    /// The scenario's name on the command line.
    pub scenario: &'static str,
    /// What was done, and where.
    pub heading: String,
    /// What was measured.
    pub figures: Vec<Table>,
    /// How to read the figures.
    pub notes: String,
    /// What was checked.
    pub checks: Vec<Check>,
}

impl Checked {
    /// The report of an interrupted run: it proves nothing, but shows what was seen.
    #[must_use]
    pub fn cut_short(mut self) -> Self {
        let ended = Check::new(
            "the run came to its end",
            "interrupted",
            "to its end",
            false,
        );
        self.checks.push(ended.needed());
        self
    }

    /// Where a check may fail for a reason that is no fault of the service: what does not hold is unclear.
    #[must_use]
    pub fn unclear_at_worst(mut self) -> Self {
        self.checks = self.checks.into_iter().map(Check::needed).collect();
        self
    }

    /// The report for a terminal: results in green, yellow and red.
    pub fn in_colour(&self) -> String {
        let plain = self.to_string();
        let coloured = plain.lines().map(|line| {
            let colour = COLOURS.iter().find(|(word, _)| line.ends_with(word));
            colour.map_or(line.to_owned(), |(word, code)| {
                let before = &line[..line.len() - word.len()];
                format!("{before}\x1b[{code}m{word}\x1b[0m")
            })
        });
        coloured.collect::<Vec<_>>().join("\n")
    }

    /// What the run proved.
    pub fn result(&self) -> CheckResult {
        CheckResult::worst(&self.checks)
    }
}

impl Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{}\n", self.heading)?;
        for table in &self.figures {
            writeln!(f, "{}", render(&table.columns, &table.rows))?;
        }
        if !self.notes.is_empty() {
            writeln!(f, "{}\n", self.notes)?;
        }
        let mut rows = Vec::new();
        for check in &self.checks {
            let Check {
                what,
                measured,
                allowed,
                result,
            } = check.clone();
            rows.push(vec![what, measured, allowed, result.text().to_owned()]);
        }
        writeln!(
            f,
            "{}",
            render(&["check", ">measured", ">allowed", "result"], &rows)
        )?;
        f.write_str(match self.result() {
            CheckResult::Holds | CheckResult::Shown => "No violation.",
            CheckResult::Unclear => "Not proved: something did not show or could not be checked.",
            CheckResult::Violation => "VIOLATION: see above.",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_as_good_as_its_worst_check() {
        let good = Check::none("lost", 0);
        let shown = Check::shown("loads", 7);
        let unclear = Check::none("not sent", 1).needed();
        let bad = Check::none("lost", 1);
        let report = |checks: &[&Check]| {
            let checks = checks.iter().copied().cloned().collect();
            let heading = "heading".to_owned();
            Checked {
                scenario: "x",
                heading,
                figures: vec![],
                notes: String::new(),
                checks,
            }
        };
        let exit_code = |checks: &[&Check]| report(checks).result().exit_code();
        assert_eq!(exit_code(&[&good, &shown]), ExitCode::SUCCESS);
        assert_eq!(exit_code(&[&good, &unclear, &shown]), ExitCode::from(2));
        assert_eq!(exit_code(&[&bad, &unclear, &good]), ExitCode::from(1));
        assert_eq!(exit_code(&[]), ExitCode::from(2), "no check proves nothing");
        let excused = report(&[&bad, &good]).unclear_at_worst();
        assert_eq!(excused.result(), CheckResult::Unclear);
        let coloured = report(&[&good, &bad]).in_colour();
        assert!(coloured.contains("  \x1b[32mholds\x1b[0m\n"), "{coloured}");
        assert!(coloured.ends_with("\x1b[31mVIOLATION: see above.\x1b[0m"));
        let text = report(&[&good, &bad]).to_string();
        assert!(
            text.contains("lost          1        0  VIOLATION"),
            "{text}"
        );
    }
}
