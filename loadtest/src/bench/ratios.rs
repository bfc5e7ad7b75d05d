//! The ratios: which runs they divide, their floors and aims. Pure; measures nothing.

use std::fmt;

use crate::bench::run::*;
use crate::spread::Spread;

// Names of the runs.
pub const ORDERS: &str = "group-commit";
pub const ORDERS_16: &str = "group-commit, 16";
pub const ORDERS_1024: &str = "group-commit, 1,024";
pub const ORDERS_OPEN: &str = "group-commit, open loop at 70 %";
pub const ORDERS_BESIDE: &str = "group-commit, beside stream";
pub const ORDERS_DIRECT: &str = "group-commit, two instances";
pub const ORDERS_PROXIED: &str = "group-commit, nginx before two";
pub const ORDERS_MONITORED: &str = "group-commit, monitored";
pub const ORDERS_UNKNOWN: &str = "group-commit, buyers that no instance knows";
pub const ORDERS_KNOWN: &str = "group-commit, the same buyers again";
pub const ORDERS_QUIET: &str = "group-commit, not monitored";
pub const LOCKED: &str = "reentrant-lock";
pub const LOCKED_16: &str = "reentrant-lock, 16";
pub const LOCKED_1024: &str = "reentrant-lock, 1,024";
pub const TRANSACTION: &str = "one transaction per order";
pub const STREAM: &str = "stream";
pub const STREAM_64: &str = "stream, 64 clients";
pub const SOLD_OUT: &str = "sold out";
pub const PEAK: &str = "peak";
pub const OVERLOAD: &str = "3× overload";
pub const BARE: &str = "bare route, an order's reply";
pub const BARE_SOLD_OUT: &str = "bare route, the sold-out reply";
pub const BARE_SHOP: &str = "bare route, a shop";
pub const BARE_DIRECT: &str = "bare route, two processes";
pub const BARE_PROXIED: &str = "bare route, nginx before two";
pub const SHOP_MEMORY: &str = "a shop from memory";
pub const SHOP_REDIS: &str = "a shop from Redis";
pub const RAW_GETS: &str = "GET by redis-benchmark";
pub const RAW_ADMISSIONS: &str = "stream's script by redis-benchmark";
pub const LOCK_PAIRS: &str = "lock + unlock pairs";
pub const RAW_LOCK_PAIRS: &str = "the same scripts by redis-benchmark";
pub const COMMIT: &str = "one commit";

impl Figure {
    const fn in_run(self, run: &'static str) -> Side {
        Side {
            figure: self,
            run,
            subtracted_run: None,
        }
    }
}

/// The figure of a run, less that of another where there is one.
#[derive(Debug)]
pub struct Side {
    figure: Figure,
    run: &'static str,
    subtracted_run: Option<&'static str>,
}

impl Side {
    const fn minus_run(self, run: &'static str) -> Self {
        Self {
            subtracted_run: Some(run),
            ..self
        }
    }

    /// The side's value in a round: of several runs of one name the average; `None` where a run was not made.
    fn value(&self, runs: &[Run]) -> Option<f64> {
        let Figure(_, value) = self.figure;
        let mean = |name: &str| {
            let values: Vec<f64> = runs
                .iter()
                .filter(|run| run.name == name)
                .map(value)
                .collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let subtracted = self.subtracted_run.map_or(Some(0.0), mean);
        Some(mean(self.run)? - subtracted?)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = self.run;
        match self.subtracted_run {
            Some(subtracted_run) => write!(f, "({run} − {subtracted_run})"),
            None => f.write_str(run),
        }
    }
}

/// A ratio of two things measured side by side.
#[derive(Debug)]
pub struct Ratio {
    /// Its number in docs/BENCHMARKS.md.
    pub number: &'static str,
    /// The value that the median must reach, and the one that it should: minima, or maxima where lower is better.
    pub floor: Option<f64>,
    /// See [`Ratio::floor`].
    pub aim: Option<f64>,
    /// Whether a smaller value is better.
    pub lower_is_better: bool,
    /// Dividend and divisor.
    pub sides: [Side; 2],
}

impl Ratio {
    /// Whether `--only` names it, regardless of the letter: 4a and 4b are measured together. Without numbers all are asked
    /// for.
    pub fn is_asked_for(&self, only: &[String]) -> bool {
        const LETTERS: [char; 2] = ['a', 'b'];
        let number = self.number.trim_end_matches(LETTERS);
        only.is_empty()
            || only
                .iter()
                .any(|requested| requested.trim_end_matches(LETTERS) == number)
    }

    /// What is divided by what.
    pub fn what(&self) -> String {
        let [dividend, divisor] = &self.sides;
        let Figure(dividend_figure, _) = dividend.figure;
        let Figure(divisor_figure, _) = divisor.figure;
        let divisor_prefix = if divisor_figure == dividend_figure {
            String::new()
        } else {
            format!("{divisor_figure}: ")
        };
        format!("{dividend_figure}: {dividend} ÷ {divisor_prefix}{divisor}")
    }

    /// The names of its runs.
    pub fn runs(&self) -> impl Iterator<Item = &'static str> {
        self.sides
            .iter()
            .flat_map(|side| [Some(side.run), side.subtracted_run])
            .flatten()
    }

    /// Its value in a round; `None` where one of its runs was not made.
    pub fn value(&self, runs: &[Run]) -> Option<f64> {
        let [dividend, divisor] = &self.sides;
        let value = dividend.value(runs)? / divisor.value(runs)?;
        // A division by zero is not a success: NaN is below every floor.
        Some(if value.is_finite() { value } else { f64::NAN })
    }

    /// The median compared with floor and aim.
    pub fn status(&self, values: Option<Spread>) -> &'static str {
        status(self.floor, self.aim, self.lower_is_better, values)
    }
}

/// The median compared with a floor and an aim.
pub fn status(
    floor: Option<f64>,
    aim: Option<f64>,
    lower_is_better: bool,
    values: Option<Spread>,
) -> &'static str {
    let Some(Spread { median, .. }) = values else {
        return "not measured";
    };
    let holds = |bound: f64| {
        if lower_is_better {
            median <= bound
        } else {
            median >= bound
        }
    };
    match (aim.map(holds), floor.map(holds)) {
        (Some(true), _) => "aim reached",
        (_, Some(true)) => "above the floor",
        (_, Some(false)) => "BELOW THE FLOOR",
        (_, None) => "reported",
    }
}

/// Accepts the number of a ratio, with or without its letter; the error names all.
pub fn number(text: &str) -> Result<String, String> {
    let requested = text.to_owned();
    if RATIOS
        .iter()
        .any(|ratio| ratio.is_asked_for(std::slice::from_ref(&requested)))
    {
        return Ok(requested);
    }
    let numbers: Vec<_> = RATIOS.iter().map(|ratio| ratio.number).collect();
    Err(format!(
        "there is no such ratio, only {}",
        numbers.join(", ")
    ))
}

/// A ratio that must be at least `floor`, and should be at least `aim`.
const fn at_least(number: &'static str, [floor, aim]: [f64; 2], sides: [Side; 2]) -> Ratio {
    Ratio {
        number,
        floor: Some(floor),
        aim: Some(aim),
        lower_is_better: false,
        sides,
    }
}

/// A ratio that must be at most the first of `bounds`, and should be at most the second.
const fn at_most(number: &'static str, bounds: [f64; 2], sides: [Side; 2]) -> Ratio {
    Ratio {
        lower_is_better: true,
        ..at_least(number, bounds, sides)
    }
}

/// A ratio without a floor.
const fn reported(number: &'static str, aim: Option<f64>, sides: [Side; 2]) -> Ratio {
    Ratio {
        number,
        floor: None,
        aim,
        lower_is_better: true,
        sides,
    }
}

/// The ratios of docs/BENCHMARKS.md. Those of processor time come first: it hardly depends on what else the machine does.
pub const RATIOS: &[Ratio] = &[
    at_most(
        "P1",
        [1.6, 1.3],
        [
            SERVICE_US.in_run(SOLD_OUT),
            SERVICE_US.in_run(BARE_SOLD_OUT),
        ],
    ),
    at_most(
        "P2",
        [2.2, 1.7],
        [SERVICE_US.in_run(ORDERS), SERVICE_US.in_run(BARE)],
    ),
    // The bare route uses no database and no Redis: what these do meanwhile is not its cost.
    at_most(
        "P3",
        [3.6, 2.5],
        [SERVERS_US.in_run(ORDERS), SERVICE_US.in_run(BARE)],
    ),
    // What nginx adds.
    at_most(
        "P4",
        [2.0, 1.2],
        [
            SERVERS_US.in_run(ORDERS_PROXIED).minus_run(ORDERS_DIRECT),
            SERVERS_US.in_run(BARE_PROXIED).minus_run(BARE_DIRECT),
        ],
    ),
    // Buyers of a real sale come once.
    at_most(
        "P5",
        [1.6, 1.25],
        [
            SERVERS_US.in_run(ORDERS_UNKNOWN),
            SERVERS_US.in_run(ORDERS_KNOWN),
        ],
    ),
    reported(
        "1",
        None,
        [ORDERS_PER_S.in_run(ORDERS), ORDERS_PER_S.in_run(LOCKED)],
    ),
    at_least(
        "2",
        [6.0, 12.0],
        [
            ORDERS_PER_S.in_run(ORDERS),
            ORDERS_PER_S.in_run(TRANSACTION),
        ],
    ),
    at_least(
        "3",
        [0.6, 1.1],
        [
            ORDERS_PER_S.in_run(LOCKED),
            ORDERS_PER_S.in_run(TRANSACTION),
        ],
    ),
    at_least(
        "4a",
        [1.0, 2.0],
        [
            ORDERS_PER_S.in_run(ORDERS_1024),
            ORDERS_PER_S.in_run(ORDERS_16),
        ],
    ),
    at_most(
        "4b",
        [3.0, 1.8],
        [P99.in_run(ORDERS_1024), LITTLE.in_run(ORDERS_1024)],
    ),
    at_least(
        "5",
        [0.6, 0.85],
        [
            ANSWERS_PER_S.in_run(SOLD_OUT),
            ANSWERS_PER_S.in_run(BARE_SOLD_OUT),
        ],
    ),
    at_least(
        "6",
        [0.35, 0.55],
        [ORDERS_PER_S.in_run(ORDERS), ANSWERS_PER_S.in_run(BARE)],
    ),
    at_least(
        "7",
        [0.6, 0.9],
        [
            ANSWERS_PER_S.in_run(LOCK_PAIRS),
            ANSWERS_PER_S.in_run(RAW_LOCK_PAIRS),
        ],
    ),
    at_least(
        "9a",
        [0.6, 0.9],
        [
            ANSWERS_PER_S.in_run(SHOP_MEMORY),
            ANSWERS_PER_S.in_run(BARE_SHOP),
        ],
    ),
    at_least(
        "9b",
        [0.4, 0.8],
        [
            ANSWERS_PER_S.in_run(SHOP_REDIS),
            ANSWERS_PER_S.in_run(RAW_GETS),
        ],
    ),
    at_least(
        "11a",
        [0.85, 0.95],
        [ORDERS_PER_S.in_run(OVERLOAD), ORDERS_PER_S.in_run(PEAK)],
    ),
    at_most("11b", [2.0, 1.2], [P99.in_run(OVERLOAD), P99.in_run(PEAK)]),
    reported(
        "12",
        None,
        [
            ORDERS_PER_S.in_run(ORDERS_PROXIED),
            ORDERS_PER_S.in_run(ORDERS_DIRECT),
        ],
    ),
    at_least(
        "13",
        [0.5, 0.8],
        [
            ORDERS_PER_S.in_run(STREAM_64),
            ANSWERS_PER_S.in_run(RAW_ADMISSIONS),
        ],
    ),
    at_least(
        "14",
        [0.97, 1.0],
        [
            ORDERS_PER_S.in_run(ORDERS_MONITORED),
            ORDERS_PER_S.in_run(ORDERS_QUIET),
        ],
    ),
    at_least(
        "15",
        [0.5, 0.8],
        [
            ORDERS_PER_S.in_run(STREAM),
            ORDERS_PER_S.in_run(ORDERS_BESIDE),
        ],
    ),
    reported(
        "16",
        Some(12.0),
        [P99.in_run(ORDERS_OPEN), P50.in_run(COMMIT)],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_decides_the_status() {
        let status = |number: &str, values: &[f64]| {
            let ratio = RATIOS.iter().find(|ratio| ratio.number == number).unwrap();
            ratio.status(Spread::from_values(values.iter().copied()))
        };
        assert_eq!(status("2", &[4.0, 5.9, 99.0]), "BELOW THE FLOOR");
        assert_eq!(status("2", &[1.0, 6.0, 9.0, 9.0]), "above the floor");
        assert_eq!(status("4b", &[1.7]), "aim reached");
        assert_eq!(status("4b", &[f64::NAN]), "BELOW THE FLOOR");
        assert_eq!(status("16", &[12.1]), "reported");
        assert_eq!(status("13", &[]), "not measured");
    }
}
