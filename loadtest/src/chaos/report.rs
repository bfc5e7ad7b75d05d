//! The report of a chaos run: a line for each round, and tables at the end.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde::Serialize;

use super::{
    recovery::{After, Recovery},
    round::Round,
};
use crate::scenario::check_result::{self, Outcome};
use workload::table::render;

/// A run that was checked.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `chaos`.
    pub scenario: &'static str,
    /// The seed that everything was drawn from.
    pub seed: u64,
    /// Every round.
    pub rounds: Vec<Round>,
    /// Every measurement of recovery.
    pub recoveries: Vec<Recovery>,
    /// The folder with the servers' logs, if there was a violation.
    pub logs: Option<PathBuf>,
}

impl Report {
    /// Whether no round found a violation.
    pub fn is_clean(&self) -> bool {
        self.rounds.iter().all(|round| round.verdict.is_clean())
    }
}

impl check_result::Report for Report {
    fn outcome(&self) -> Outcome {
        if self.is_clean() { Outcome::Clean } else { Outcome::Violated }
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.faults.iter().map(ToString::to_string).collect();
        let replies: Vec<String> =
            self.replies.iter().map(|(label, count)| format!("{label} {count}")).collect();
        write!(
            f,
            "round {:3}  {:<14} {:4} vouchers  {:4.1} s  {}  | {} | {} | rest {}",
            self.number,
            self.strategy,
            self.stock,
            self.seconds,
            self.verdict,
            faults.join("; "),
            replies.join(", "),
            self.rest,
        )?;
        if self.cancelled > 0 {
            write!(f, ", cancelled {}", self.cancelled)?;
        }
        for example in &self.verdict.checker.examples {
            write!(f, "\n           {example}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nchaos: {} rounds from seed {}\n", self.rounds.len(), self.seed)?;
        write!(f, "{}", invariants(&self.rounds))?;
        if !self.recoveries.is_empty() {
            writeln!(f, "\nback to 95 % of the usual orders per second (median of several)\n")?;
            write!(f, "{}", recoveries(&self.recoveries))?;
        }
        let broken: Vec<&Round> =
            self.rounds.iter().filter(|round| !round.verdict.is_clean()).collect();
        if broken.is_empty() {
            return write!(f, "\nNo violation.");
        }
        for round in broken {
            write!(
                f,
                "\nround {}: {}\n  to repeat it: --seed {} --only-round {} (with the \
                 same --strategies and --buyers)",
                round.number, round.verdict, self.seed, round.number
            )?;
        }
        if let Some(logs) = &self.logs {
            write!(f, "\n  the servers' logs: {}", logs.display())?;
        }
        Ok(())
    }
}

fn invariants(rounds: &[Round]) -> String {
    let mut by_strategy: BTreeMap<&str, Vec<&Round>> = BTreeMap::new();
    for round in rounds {
        by_strategy.entry(&round.strategy).or_default().push(round);
    }
    let names: Vec<String> = rounds
        .first()
        .map(|round| {
            round.verdict.invariants().iter().map(|(name, _)| format!(">{name}")).collect()
        })
        .unwrap_or_default();
    let mut head = vec!["strategy", ">rounds", ">faults", ">attempts", ">orders"];
    head.extend(names.iter().map(String::as_str));
    let rows: Vec<Vec<String>> = by_strategy
        .iter()
        .map(|(strategy, rounds)| {
            let sum =
                |of: &dyn Fn(&Round) -> i64| rounds.iter().map(|round| of(round)).sum::<i64>();
            let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
            let mut row = vec![
                (*strategy).to_owned(),
                rounds.len().to_string(),
                sum(&|round| count(round.faults.len())).to_string(),
                sum(&|round| count(round.outcome.records.len())).to_string(),
                sum(&|round| round.verdict.checker.orders).to_string(),
            ];
            row.extend((0..names.len()).map(|law| {
                sum(&|round| round.verdict.invariants().get(law).map_or(0, |(_, n)| *n)).to_string()
            }));
            row
        })
        .collect();
    render(&head, &rows)
}

fn recoveries(all: &[Recovery]) -> String {
    let head = ["strategy", "after", ">orders/s", ">back after", ">range"];
    let mut groups: Vec<(&str, After, Vec<&Recovery>)> = Vec::new();
    for one in all {
        match groups.last_mut().filter(|last| last.0 == one.strategy && last.1 == one.after) {
            Some(group) => group.2.push(one),
            None => groups.push((&one.strategy, one.after, vec![one])),
        }
    }
    let text = |ms: u64| if ms == u64::MAX { "> 10 s".to_owned() } else { format!("{ms} ms") };
    let rows: Vec<Vec<String>> = groups
        .into_iter()
        .map(|(strategy, after, group)| {
            let mut times: Vec<u64> =
                group.iter().map(|one| one.back_ms.unwrap_or(u64::MAX)).collect();
            times.sort_unstable();
            let mut usual: Vec<f64> = group.iter().map(|one| one.usual).collect();
            usual.sort_unstable_by(f64::total_cmp);
            let middle = group.len() / 2;
            vec![
                strategy.to_owned(),
                after.text().to_owned(),
                format!("{:.0}", usual[middle]),
                text(times[middle]),
                format!("{} to {}", text(times[0]), text(times[times.len() - 1])),
            ]
        })
        .collect();
    render(&head, &rows)
}
