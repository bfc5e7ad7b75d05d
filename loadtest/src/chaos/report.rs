//! The report of a chaos run: a line for each round, then figures and checks.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{
    faults::{self, Fault},
    options::Layout,
    recovery::Recovery,
    round::{READY_LIMIT, Round},
    sale::Sale,
    verdict::SaleVerdict,
};
use crate::{
    report::{Check, Checked, Table},
    spread::{Spread, median},
};

/// The report of the rounds and recoveries that were drawn from a seed.
pub fn report(seed: u64, layout: Layout, rounds: &[Round], recovered: &[Recovery]) -> Checked {
    let row = |fault: &'static Fault| {
        let planned = rounds.iter().flat_map(|round| &round.faults);
        let times = planned.filter(|planned| planned.what == fault).count();
        vec![times.to_string(), fault.described(layout)]
    };
    let faults = faults::distinct(layout).map(row).collect();
    let broken = rounds.iter().filter(|round| !round.is_clean());
    let repeat = broken.map(|Round { number, .. }| {
        format!(
            "To repeat round {number}: --seed {seed} --only-round {number} (with the same \
             --strategies and --buyers)"
        )
    });
    let mut figures = vec![Table::new(&[">times", "fault"], faults)];
    if !recovered.is_empty() {
        figures.push(recoveries(recovered));
    }
    Checked {
        scenario: "chaos",
        heading: format!("{} rounds from seed {seed}", rounds.len()),
        figures,
        notes: repeat.collect::<Vec<_>>().join("\n"),
        checks: checks(rounds),
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.faults.iter().map(ToString::to_string).collect();
        let state = if self.is_clean() { "clean" } else { "VIOLATION" };
        let (seconds, ready) = (self.seconds, self.ready.as_millis());
        write!(f, "round {:3}  {seconds:4.1} s  ready after {ready:4} ms  {state}", self.number)?;
        let expires = if self.expires { "; orders expire" } else { "" };
        write!(f, "  | {}{expires}", faults.join("; "))?;
        for sale in &self.sales {
            write!(f, "\n           {sale}")?;
        }
        for wrong in &self.false_operations {
            write!(f, "\n           {wrong}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Sale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut replies: BTreeMap<&str, usize> = BTreeMap::new();
        for record in &self.outcome.records {
            *replies.entry(record.observed.reply.label()).or_default() += 1;
        }
        let replies: Vec<String> =
            replies.iter().map(|(label, count)| format!("{label} {count}")).collect();
        let (strategy, stock, rest) = (&self.strategy, self.circumstances.published, self.rest);
        write!(f, "{strategy:<14} {stock:4} vouchers  {}  | ", self.verdict)?;
        write!(f, "{} | rest {rest}, changes {}", replies.join(", "), self.outcome.changes.len())?;
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

fn sales(rounds: &[Round]) -> impl Iterator<Item = &Sale> {
    rounds.iter().flat_map(|round| &round.sales)
}

/// Everything that must be 0, of all sales together; and when instances were ready.
fn checks(rounds: &[Round]) -> Vec<Check> {
    let mut sums = SaleVerdict::default().invariants();
    for sale in sales(rounds) {
        for ((_, sum), (_, count)) in sums.iter_mut().zip(sale.verdict.invariants()) {
            // What one sale lost of its stock does not make up for what another invented.
            *sum += count.abs();
        }
    }
    let sums = sums.into_iter();
    let mut checks: Vec<Check> =
        sums.map(|(name, count)| Check::new(name, count, 0, count == 0)).collect();
    let wrong: usize = rounds.iter().map(|round| round.false_operations.len()).sum();
    checks.push(Check::none("publication or addition not as answered", wrong as u64));
    let ready = rounds.iter().map(|round| round.ready).max().unwrap_or_default();
    let what = "ready after a round's last fault, at most";
    let text = |time: Duration| format!("{} ms", time.as_millis());
    checks.push(Check::new(what, text(ready), text(READY_LIMIT), ready <= READY_LIMIT));
    let sum = |of: fn(&Sale) -> i64| sales(rounds).map(of).sum::<i64>();
    checks.extend([
        Check::shown("sales", sum(|_| 1)),
        Check::shown("attempts", sum(|sale| sale.outcome.records.len() as i64)),
        Check::shown("orders", sum(|sale| sale.verdict.checker.orders)),
        Check::shown(
            "ended as a no, looked at again 10 s later",
            sum(|sale| sale.outcome.noes.len() as i64),
        ),
        Check::shown("ended as a no after a loss", sum(|sale| sale.verdict.no_after_loss)),
        Check::shown("lost by the database", sum(|sale| sale.verdict.lost_by_database)),
    ]);
    checks
}

fn recoveries(all: &[Recovery]) -> Table {
    let text = |ms: f64| if ms.is_finite() { format!("{ms:.0} ms") } else { "> 10 s".to_owned() };
    let same =
        |one: &Recovery, next: &Recovery| one.strategy == next.strategy && one.after == next.after;
    let row = |group: &[Recovery]| {
        let times = group.iter().map(|one| one.back_ms.map_or(f64::INFINITY, |ms| ms as f64));
        let Spread { median: time, least, most } = Spread::of(times)?;
        Some(vec![
            group[0].strategy.clone(),
            group[0].after.to_string(),
            format!("{:.0}", median(group.iter().map(|one| one.usual))),
            text(time),
            format!("{} to {}", text(least), text(most)),
        ])
    };
    let columns = ["strategy", "after", ">orders/s", ">95 % after", ">range"];
    Table::new(&columns, all.chunk_by(same).filter_map(row).collect())
}
