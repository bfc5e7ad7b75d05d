//! How rows ended, and the table of that, in Markdown, so that it can be pasted anywhere.

use std::collections::BTreeMap;
use std::fmt;

/// How a row ended.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// As it should, with figures.
    Passed(String),
    /// The error.
    Failed(String),
    /// The reason why it was not run.
    NotRun(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(figures) => write!(f, "ok: {figures}"),
            Self::Failed(why) => write!(f, "FAILED: {why}"),
            Self::NotRun(_) => f.write_str("not run"),
        }
    }
}

/// A column: its title, and an outcome for each row by name.
pub type Column = (String, Vec<(String, Outcome)>);

/// Prints the table, below it the reasons of rows not run, and the counts; whether none failed and at
/// least one passed. The first column names the rows; the others have the same rows in the same order.
/// Rows that were run in no column are left out.
pub fn print(columns: &[Column]) -> bool {
    let titles: Vec<&str> = columns.iter().map(|(title, _)| &**title).collect();
    println!("\n| scenario | {} |", titles.join(" | "));
    println!("| --- |{}", " --- |".repeat(columns.len()));
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let (mut passed, mut failed, mut not_run) = (0, 0, 0);
    let rows = columns.first().map_or(0, |(_, rows)| rows.len());
    for number in 0..rows {
        let mut line = String::new();
        let mut was_run = false;
        for (title, rows) in columns {
            let outcome = &rows[number].1;
            match outcome {
                Outcome::Passed(_) => passed += 1,
                Outcome::Failed(_) => failed += 1,
                Outcome::NotRun(why) => {
                    not_run += 1;
                    *reasons.entry(format!("{title}: {why}")).or_default() += 1;
                }
            }
            was_run |= !matches!(outcome, Outcome::NotRun(_));
            line += &format!(" {} |", outcome.to_string().replace('|', "/"));
        }
        if was_run {
            println!("| {} |{line}", columns[0].1[number].0);
        }
    }
    if !reasons.is_empty() {
        println!("\nNot run:");
    }
    for (reason, scenarios) in reasons {
        println!("  {reason} ({scenarios} scenarios)");
    }
    println!("\n{passed} passed, {failed} failed, {not_run} not run");
    failed == 0 && passed > 0
}
