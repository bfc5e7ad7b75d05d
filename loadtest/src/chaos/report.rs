//! The report of a chaos run: a line for each round, and tables at the end.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde::Serialize;

use super::{
    faults::{self, Means},
    recovery::{After, Recovery},
    round::{READY_LIMIT, Round},
    sale::SaleResult,
};
use crate::report::{self, Outcome};
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
    /// What the run had besides the servers.
    #[serde(skip)]
    pub means: Means,
    /// The folder with the servers' logs, if there was a violation.
    pub logs: Option<PathBuf>,
}

impl Report {
    /// Whether no round found a violation.
    pub fn is_clean(&self) -> bool {
        self.rounds.iter().all(Round::is_clean)
    }
}

impl report::Report for Report {
    fn outcome(&self) -> Outcome {
        if self.is_clean() { Outcome::Clean } else { Outcome::Violated }
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.faults.iter().map(ToString::to_string).collect();
        let state = if self.is_clean() { "clean" } else { "VIOLATION" };
        let (seconds, ready) = (self.seconds, self.ready_ms);
        write!(f, "round {:3}  {seconds:4.1} s  ready after {ready:4} ms  {state}", self.number)?;
        write!(
            f,
            "  | {}{}",
            faults.join("; "),
            if self.expires { "; orders expire" } else { "" }
        )?;
        for sale in &self.sales {
            write!(f, "\n           {sale}")?;
        }
        for wrong in &self.false_operations {
            write!(f, "\n           {wrong}")?;
        }
        Ok(())
    }
}

impl fmt::Display for SaleResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let replies: Vec<String> =
            self.replies.iter().map(|(label, count)| format!("{label} {count}")).collect();
        let (strategy, stock, rest) = (&self.strategy, self.stock, self.rest);
        write!(f, "{strategy:<14} {stock:4} vouchers  {}  | ", self.verdict)?;
        write!(f, "{} | rest {rest}, changed {}", replies.join(", "), self.changed)?;
        if self.verdict.lost_by_database > 0 {
            write!(f, ", lost by the database {}", self.verdict.lost_by_database)?;
        }
        if self.verdict.no_after_loss > 0 {
            write!(f, ", ended as a no after a loss {}", self.verdict.no_after_loss)?;
        }
        for example in &self.verdict.checker.examples {
            write!(f, "\n             {example}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nchaos: {} rounds from seed {}\n", self.rounds.len(), self.seed)?;
        write!(f, "{}", invariants(&self.rounds))?;
        write!(f, "{}", injected(&self.rounds, self.means))?;
        let sum = |of: fn(&SaleResult) -> i64| -> i64 {
            self.rounds.iter().flat_map(|round| &round.sales).map(of).sum()
        };
        let noes = sum(|sale| i64::try_from(sale.noes).unwrap_or(i64::MAX));
        let after_loss = sum(|sale| sale.verdict.no_after_loss);
        writeln!(f, "\n{noes} orders were refused by id, and looked at again 10 s later")?;
        if after_loss > 0 {
            writeln!(f, "{after_loss} orders ended as a no after a loss of Redis' data")?;
        }
        let lost = sum(|sale| sale.verdict.lost_by_database);
        if lost > 0 {
            writeln!(f, "{lost} confirmed orders lost by the database with its old primary")?;
        }
        if let Some(worst) = self.rounds.iter().map(|round| round.ready_ms).max() {
            let limit = READY_LIMIT.as_secs();
            writeln!(f, "\nready at most {worst} ms after a round's last fault (limit {limit} s)")?;
        }
        if !self.recoveries.is_empty() {
            writeln!(f, "\nback to 95 % of the usual orders per second (median of several)\n")?;
            write!(f, "{}", recoveries(&self.recoveries))?;
        }
        let broken: Vec<&Round> = self.rounds.iter().filter(|round| !round.is_clean()).collect();
        if broken.is_empty() {
            return write!(f, "\nNo violation.");
        }
        for round in broken {
            let mut found: Vec<String> = round
                .sales
                .iter()
                .filter(|sale| !sale.verdict.is_clean())
                .map(|sale| format!("{}: {}", sale.strategy, sale.verdict))
                .collect();
            if !round.was_ready_in_time() {
                found.push(format!("ready only after {} ms", round.ready_ms));
            }
            found.extend(round.false_operations.iter().cloned());
            write!(
                f,
                "\nround {}: {}\n  to repeat it: --seed {} --only-round {} (with the \
                 same --strategies and --buyers)",
                round.number,
                found.join("; "),
                self.seed,
                round.number
            )?;
        }
        if let Some(logs) = &self.logs {
            write!(f, "\n  the servers' logs: {}", logs.display())?;
        }
        Ok(())
    }
}

fn invariants(rounds: &[Round]) -> String {
    let mut by_strategy: BTreeMap<&str, Vec<&SaleResult>> = BTreeMap::new();
    for sale in rounds.iter().flat_map(|round| &round.sales) {
        by_strategy.entry(&sale.strategy).or_default().push(sale);
    }
    let names: Vec<String> = by_strategy
        .values()
        .next()
        .and_then(|sales| sales.first())
        .map(|sale| sale.verdict.invariants().iter().map(|(name, _)| format!(">{name}")).collect())
        .unwrap_or_default();
    let mut head = vec!["strategy", ">sales", ">attempts", ">orders"];
    head.extend(names.iter().map(String::as_str));
    let rows: Vec<Vec<String>> = by_strategy
        .iter()
        .map(|(strategy, sales)| {
            let sum =
                |of: &dyn Fn(&SaleResult) -> i64| sales.iter().map(|sale| of(sale)).sum::<i64>();
            let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
            let mut row = vec![
                (*strategy).to_owned(),
                sales.len().to_string(),
                sum(&|sale| count(sale.outcome.records.len())).to_string(),
                sum(&|sale| sale.verdict.checker.orders).to_string(),
            ];
            row.extend((0..names.len()).map(|law| {
                sum(&|sale| sale.verdict.invariants().get(law).map_or(0, |(_, n)| *n)).to_string()
            }));
            row
        })
        .collect();
    render(&head, &rows)
}

/// How often each fault was injected, and which never was.
fn injected(rounds: &[Round], means: Means) -> String {
    let times = |fault| {
        rounds
            .iter()
            .flat_map(|round| &round.faults)
            .filter(|planned| planned.what == fault)
            .count()
    };
    let all = faults::distinct(means.layout);
    let (drawn, never): (Vec<_>, Vec<_>) =
        all.iter().map(|&fault| (fault, times(fault))).partition(|(_, times)| *times > 0);
    let total: usize = drawn.iter().map(|(_, times)| times).sum();
    let mut text = format!("\n{total} faults, {} of {} kinds\n", drawn.len(), all.len());
    for (fault, times) in drawn {
        text.push_str(&format!("  {times:4} × {fault}\n"));
    }
    for (fault, _) in never {
        let reason = fault.impossible(means).unwrap_or("more rounds draw it");
        text.push_str(&format!("  never drawn: {fault} ({reason})\n"));
    }
    text
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
