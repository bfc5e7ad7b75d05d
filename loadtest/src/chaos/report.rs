//! The report of a chaos run: a line for each round, then figures and checks.

use std::{fmt, time::Duration};

use super::{
    faults,
    options::Layout,
    recovery,
    round::{READY_LIMIT, Round},
    sale::Sale,
    verdict::SaleVerdict,
};
use crate::report::{Check, Checked, Table};

/// The report of the rounds that were drawn from a seed, and the rows of the recoveries.
pub fn report(
    seed: u64,
    layout: Layout,
    rounds: &[Round<'_>],
    recoveries: Vec<Vec<String>>,
) -> Checked {
    let mut faults = Vec::new();
    for fault in faults::distinct(layout) {
        let planned = rounds.iter().flat_map(|round| &round.faults);
        let times = planned.filter(|planned| planned.what == fault).count();
        faults.push(vec![times.to_string(), fault.described(layout)]);
    }
    let broken = rounds.iter().filter(|round| !round.is_clean());
    let repeat = broken.map(|Round { number, .. }| {
        format!(
            "To repeat round {number}: --seed {seed} --only-round {number} (with the same --buyers)"
        )
    });
    let mut figures = vec![Table::new(&[">times", "fault"], faults)];
    if !recoveries.is_empty() {
        figures.push(Table::new(&recovery::COLUMNS, recoveries));
    }
    Checked {
        scenario: "chaos",
        heading: format!("{} rounds from seed {seed}", rounds.len()),
        figures,
        notes: repeat.collect::<Vec<_>>().join("\n"),
        checks: checks(rounds),
    }
}

impl fmt::Display for Round<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<String> = self.faults.iter().map(ToString::to_string).collect();
        let state = if self.is_clean() {
            "clean"
        } else {
            "VIOLATION"
        };
        write!(
            f,
            "round {:3}  ready after {:4} ms  ",
            self.number,
            self.ready.as_millis()
        )?;
        write!(f, "{state}  | {}", faults.join("; "))?;
        if self.sales.iter().any(|sale| sale.outcome.expires.is_some()) {
            f.write_str("; orders expire")?;
        }
        for sale in &self.sales {
            write!(f, "\n           {sale}")?;
        }
        for wrong in &self.false_operations {
            write!(f, "\n           {wrong}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Sale<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            strategy,
            outcome,
            verdict,
            ..
        } = self;
        write!(
            f,
            "{strategy:<14} {:4} vouchers  {verdict}",
            outcome.published
        )?;
        for example in &verdict.checker.examples {
            write!(f, "\n             {example}")?;
        }
        Ok(())
    }
}

/// Everything that must be 0, of all sales together; and when instances were ready.
fn checks(rounds: &[Round]) -> Vec<Check> {
    let mut sums = SaleVerdict::default().invariants();
    let sales = || rounds.iter().flat_map(|round| &round.sales);
    for sale in sales() {
        for ((_, sum), (_, count)) in sums.iter_mut().zip(sale.verdict.invariants()) {
            // What one sale lost of its stock does not make up for what another invented.
            *sum += count.abs();
        }
    }
    let sums = sums.into_iter();
    let mut checks: Vec<Check> = sums
        .map(|(name, count)| Check::new(name, count, 0, count == 0))
        .collect();
    let wrong: usize = rounds
        .iter()
        .map(|round| round.false_operations.len())
        .sum();
    checks.push(Check::none(
        "publication or addition not as answered",
        wrong as u64,
    ));
    let ready = rounds
        .iter()
        .map(|round| round.ready)
        .max()
        .unwrap_or_default();
    let what = "ready after a round's last fault, at most";
    let text = |time: Duration| format!("{} ms", time.as_millis());
    checks.push(Check::new(
        what,
        text(ready),
        text(READY_LIMIT),
        ready <= READY_LIMIT,
    ));
    let sum = |count: fn(&Sale) -> i64| sales().map(count).sum::<i64>();
    checks.extend([
        Check::shown("sales", sum(|_| 1)),
        Check::shown("attempts", sum(|sale| sale.outcome.records.len() as i64)),
        Check::shown("orders", sum(|sale| sale.verdict.checker.orders)),
        Check::shown(
            "ended as a no, looked at again 10 s later",
            sum(|sale| sale.outcome.noes.len() as i64),
        ),
        Check::shown(
            "ended as a no after a loss",
            sum(|sale| sale.verdict.no_after_loss),
        ),
        Check::shown(
            "lost by the database",
            sum(|sale| sale.verdict.lost_by_database),
        ),
    ]);
    checks
}
