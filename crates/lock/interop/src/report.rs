//! How rows ended, and the table of that, in Markdown, so that it can be pasted anywhere.

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
            Self::NotRun(why) => write!(f, "not run: {why}"),
        }
    }
}

/// A column: its title, and an outcome for each row by name.
pub type Column = (String, Vec<(String, Outcome)>);

/// Prints the table, and below it the counts; whether none failed and at least one passed. The first column names the rows; the others have the same rows in the same order.
pub fn print(columns: &[Column]) -> bool {
    let titles: Vec<&str> = columns.iter().map(|(title, _)| &**title).collect();
    println!("\n| scenario | {} |", titles.join(" | "));
    println!("| --- |{}", " --- |".repeat(columns.len()));
    let (mut passed, mut failed, mut not_run) = (0, 0, 0);
    let rows = columns.first().map_or(0, |(_, rows)| rows.len());
    for number in 0..rows {
        let mut line = format!("| {} |", columns[0].1[number].0);
        for (_, rows) in columns {
            let outcome = &rows[number].1;
            match outcome {
                Outcome::Passed(_) => passed += 1,
                Outcome::Failed(_) => failed += 1,
                Outcome::NotRun(_) => not_run += 1,
            }
            line += &format!(" {} |", outcome.to_string().replace('|', "/"));
        }
        println!("{line}");
    }
    println!("\n{passed} passed, {failed} failed, {not_run} not run");
    failed == 0 && passed > 0
}
