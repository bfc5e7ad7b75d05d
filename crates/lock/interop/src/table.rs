//! The table of results, in Markdown, so that it can be pasted anywhere.

use std::collections::BTreeMap;

use crate::rows::Outcome;

/// A column: its title, and an outcome for each row by name.
pub type Column = (String, Vec<(String, Outcome)>);

/// Prints the table, and below it the reasons of rows not run. The first column names the rows; the
/// others have the same rows in the same order. Rows that were run in no column are left out.
pub fn print(columns: &[Column]) {
    let Some((_, first)) = columns.first() else { return };
    let mut lines = vec![vec!["scenario".to_owned()]];
    lines[0].extend(columns.iter().map(|(title, _)| title.clone()));
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for (number, (name, _)) in first.iter().enumerate() {
        let outcomes: Vec<&Outcome> =
            columns.iter().filter_map(|(_, rows)| Some(&rows.get(number)?.1)).collect();
        for (outcome, (title, _)) in outcomes.iter().zip(columns) {
            if let Outcome::NotRun(why) = outcome {
                *reasons.entry(format!("{title}: {why}")).or_default() += 1;
            }
        }
        if outcomes.iter().all(|outcome| matches!(outcome, Outcome::NotRun(_))) {
            continue;
        }
        let mut line = vec![name.clone()];
        line.extend(outcomes.into_iter().map(cell));
        lines.push(line);
    }
    lines.insert(1, vec!["---".to_owned(); lines[0].len()]);
    println!();
    for line in lines {
        println!("| {} |", line.join(" | "));
    }
    if !reasons.is_empty() {
        println!("\nNot run:");
    }
    for (reason, scenarios) in reasons {
        println!("  {reason} ({scenarios} scenarios)");
    }
}

/// The number of cells that satisfy `predicate`.
pub fn count(columns: &[Column], predicate: impl Fn(&Outcome) -> bool) -> usize {
    columns.iter().flat_map(|(_, rows)| rows).filter(|(_, outcome)| predicate(outcome)).count()
}

fn cell(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Passed(figures) => format!("ok: {figures}"),
        Outcome::Failed(why) => format!("FAILED: {why}").replace('|', "/"),
        Outcome::NotRun(_) => "not run".to_owned(),
    }
}
