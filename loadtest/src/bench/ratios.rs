//! The ratios: which runs they divide, their floors and aims. Pure; measures nothing.

use crate::bench::run::Run;
use crate::spread::Spread;

// Names of the runs, by which the steps and the ratios meet.
pub const ORDERS: &str = "group-commit";
pub const ORDERS_16: &str = "group-commit, 16";
pub const ORDERS_1024: &str = "group-commit, 1,024";
pub const ORDERS_OPEN: &str = "group-commit, open loop at 70 %";
pub const ORDERS_BESIDE: &str = "group-commit, beside stream";
pub const ORDERS_DIRECT: &str = "group-commit, two instances";
pub const ORDERS_PROXIED: &str = "group-commit, nginx before two";
pub const ORDERS_MONITORED: &str = "group-commit, monitored";
pub const ORDERS_QUIET: &str = "group-commit, not monitored";
pub const LOCKED: &str = "reentrant-lock";
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
pub const HAND_OVER: &str = "hand-over of a lock";
pub const PING: &str = "PING between hand-overs";
pub const COMMIT: &str = "one commit";

/// A figure of a run.
pub type Figure = fn(&Run) -> f64;

const ORDERS_PER_S: Figure = |run| run.orders_per_s;
const ANSWERS_PER_S: Figure = |run| run.answers_per_s;
const SERVICE_US: Figure = |run| run.cpu.service_us;
const SERVERS_US: Figure = |run| run.cpu.servers_us();
const P50: Figure = |run| run.latency.p50_ms;
const P99: Figure = |run| run.latency.p99_ms;
/// Little's law: clients = rate × time in the system.
const LITTLE: Figure = |run| run.clients as f64 / run.orders_per_s * 1e3;

/// The figure of a run, less that of another where there is one.
#[derive(Debug)]
pub struct Side(Figure, &'static str, Option<&'static str>);

/// A ratio of two things measured side by side.
#[derive(Debug)]
pub struct Ratio {
    /// Its number in docs/BENCHMARKS.md.
    pub number: &'static str,
    /// Dividend and divisor.
    pub what: &'static str,
    /// The value that the median must reach, and the one that it should: minima, or maxima where lower is better.
    pub floor: Option<f64>,
    /// See [`Ratio::floor`].
    pub aim: Option<f64>,
    /// Whether a smaller value is better.
    pub lower_is_better: bool,
    dividend: Side,
    divisor: Side,
}

/// What [`Ratio::status`] says of one beyond its floor.
pub const BELOW: &str = "BELOW THE FLOOR";

impl Ratio {
    /// Whether `--only` names it, without a letter for all that are measured together; without numbers all are asked for.
    pub fn is_asked_for(&self, only: &[String]) -> bool {
        let of = |number: &str| number.trim_end_matches(['a', 'b']).to_owned();
        only.is_empty() || only.iter().any(|asked| of(asked) == of(self.number))
    }

    /// The names of its runs.
    pub fn runs(&self) -> impl Iterator<Item = &'static str> {
        let of = |side: &Side| [Some(side.1), side.2];
        of(&self.dividend).into_iter().chain(of(&self.divisor)).flatten()
    }

    /// Its value in a round; `None` where one of its runs was not made.
    pub fn value(&self, runs: &[Run]) -> Option<f64> {
        self.value_of(self.dividend.1, runs)
    }

    /// The same of another node, whose runs have these names in place of [`ORDERS`] and [`SOLD_OUT`].
    pub fn value_of_node(&self, [orders, sold_out]: [&str; 2], runs: &[Run]) -> Option<f64> {
        match self.dividend.1 {
            ORDERS => self.value_of(orders, runs),
            SOLD_OUT => self.value_of(sold_out, runs),
            _ => None,
        }
    }

    fn value_of(&self, dividend: &str, runs: &[Run]) -> Option<f64> {
        // Of two runs of a name in a round the average.
        let mean = |figure: Figure, name: &str| {
            let of: Vec<f64> = runs.iter().filter(|run| run.name == name).map(figure).collect();
            (!of.is_empty()).then(|| of.iter().sum::<f64>() / of.len() as f64)
        };
        let side = |side: &Side, name: &str| {
            let less = side.2.map_or(Some(0.0), |less| mean(side.0, less));
            Some(mean(side.0, name)? - less?)
        };
        let value = side(&self.dividend, dividend)? / side(&self.divisor, self.divisor.1)?;
        // A division by zero is not a success: NaN is below every floor.
        Some(if value.is_finite() { value } else { f64::NAN })
    }

    /// The median compared with floor and aim.
    pub fn status(&self, values: Option<Spread>) -> &'static str {
        let Some(Spread { median, .. }) = values else { return "not measured" };
        let holds =
            |bound: f64| if self.lower_is_better { median <= bound } else { median >= bound };
        match (self.aim.map(holds), self.floor.map(holds)) {
            (Some(true), _) => "aim reached",
            (_, Some(true)) => "above the floor",
            (_, Some(false)) => BELOW,
            (_, None) => "reported",
        }
    }
}

/// Accepts the number of a ratio, with or without its letter; the error names all.
pub fn number(text: &str) -> Result<String, String> {
    let asked = text.to_owned();
    if RATIOS.iter().any(|ratio| ratio.is_asked_for(std::slice::from_ref(&asked))) {
        return Ok(asked);
    }
    let numbers: Vec<_> = RATIOS.iter().map(|ratio| ratio.number).collect();
    Err(format!("there is no such ratio, only {}", numbers.join(", ")))
}

const fn of(figure: Figure, run: &'static str) -> Side {
    Side(figure, run, None)
}

/// With at least `floor`, and if possible `aim`.
const fn at_least(
    [number, what]: [&'static str; 2],
    [floor, aim]: [f64; 2],
    dividend: Side,
    divisor: Side,
) -> Ratio {
    let (floor, aim) = (Some(floor), Some(aim));
    Ratio { number, what, floor, aim, lower_is_better: false, dividend, divisor }
}

/// With at most these.
const fn at_most(
    names: [&'static str; 2],
    bounds: [f64; 2],
    dividend: Side,
    divisor: Side,
) -> Ratio {
    Ratio { lower_is_better: true, ..at_least(names, bounds, dividend, divisor) }
}

/// Without a floor.
const fn reported(
    [number, what]: [&'static str; 2],
    aim: Option<f64>,
    dividend: Side,
    divisor: Side,
) -> Ratio {
    Ratio { number, what, floor: None, aim, lower_is_better: true, dividend, divisor }
}

/// The ratios of docs/BENCHMARKS.md. Those of processor time come first: it hardly depends on what else the machine does.
pub const RATIOS: &[Ratio] = &[
    at_most(
        ["P1", "service µs, sold out ÷ bare route, another buyer each time"],
        [1.6, 1.3],
        of(SERVICE_US, SOLD_OUT),
        of(SERVICE_US, BARE_SOLD_OUT),
    ),
    at_most(
        ["P2", "service µs, group-commit ÷ bare route, 256 clients"],
        [2.2, 1.7],
        of(SERVICE_US, ORDERS),
        of(SERVICE_US, BARE),
    ),
    // The bare route uses no other server: what those do meanwhile is not its cost.
    at_most(
        ["P3", "all servers' µs an order, group-commit ÷ a bare reply"],
        [3.6, 2.8],
        of(SERVERS_US, ORDERS),
        of(SERVICE_US, BARE),
    ),
    at_most(
        ["P4", "servers' µs that nginx adds to an order ÷ to a bare reply, two instances"],
        [2.0, 1.2],
        Side(SERVERS_US, ORDERS_PROXIED, Some(ORDERS_DIRECT)),
        Side(SERVERS_US, BARE_PROXIED, Some(BARE_DIRECT)),
    ),
    reported(
        ["1", "group-commit ÷ reentrant-lock, orders/s, 256 clients"],
        None,
        of(ORDERS_PER_S, ORDERS),
        of(ORDERS_PER_S, LOCKED),
    ),
    at_least(
        ["2", "group-commit ÷ tuned one-transaction-per-order, 256 clients"],
        [6.0, 12.0],
        of(ORDERS_PER_S, ORDERS),
        of(ORDERS_PER_S, TRANSACTION),
    ),
    at_least(
        ["3", "reentrant-lock ÷ tuned one-transaction-per-order, 256 clients"],
        [0.6, 0.9],
        of(ORDERS_PER_S, LOCKED),
        of(ORDERS_PER_S, TRANSACTION),
    ),
    at_least(
        ["4a", "group-commit, orders/s at 1,024 clients ÷ at 16"],
        [1.0, 2.0],
        of(ORDERS_PER_S, ORDERS_1024),
        of(ORDERS_PER_S, ORDERS_16),
    ),
    at_most(
        ["4b", "its p99 at 1,024 clients ÷ what Little's law gives"],
        [3.0, 1.8],
        of(P99, ORDERS_1024),
        of(LITTLE, ORDERS_1024),
    ),
    at_least(
        ["5", "sold-out replies/s ÷ bare route, 256 clients, another buyer each time"],
        [0.6, 0.85],
        of(ANSWERS_PER_S, SOLD_OUT),
        of(ANSWERS_PER_S, BARE_SOLD_OUT),
    ),
    at_least(
        ["6", "group-commit orders/s ÷ bare route, 256 clients"],
        [0.35, 0.55],
        of(ORDERS_PER_S, ORDERS),
        of(ANSWERS_PER_S, BARE),
    ),
    at_least(
        ["7", "lock + unlock pairs/s ÷ the same scripts by redis-benchmark"],
        [0.6, 0.9],
        of(ANSWERS_PER_S, LOCK_PAIRS),
        of(ANSWERS_PER_S, RAW_LOCK_PAIRS),
    ),
    at_least(
        ["9a", "shop replies/s, a hit in memory ÷ bare route, 64 clients"],
        [0.6, 0.9],
        of(ANSWERS_PER_S, SHOP_MEMORY),
        of(ANSWERS_PER_S, BARE_SHOP),
    ),
    at_least(
        ["9b", "shop replies/s, a hit in Redis ÷ GETs by redis-benchmark, 64 clients both"],
        [0.4, 0.8],
        of(ANSWERS_PER_S, SHOP_REDIS),
        of(ANSWERS_PER_S, RAW_GETS),
    ),
    at_least(
        ["11a", "goodput at 3× overload ÷ peak"],
        [0.85, 0.95],
        of(ORDERS_PER_S, OVERLOAD),
        of(ORDERS_PER_S, PEAK),
    ),
    at_most(
        ["11b", "p99 of the accepted at 3× overload ÷ at peak"],
        [2.0, 1.2],
        of(P99, OVERLOAD),
        of(P99, PEAK),
    ),
    reported(
        ["12", "group-commit through nginx ÷ direct, two instances"],
        None,
        of(ORDERS_PER_S, ORDERS_PROXIED),
        of(ORDERS_PER_S, ORDERS_DIRECT),
    ),
    at_least(
        ["13", "stream admissions/s ÷ its script by redis-benchmark"],
        [0.5, 0.8],
        of(ORDERS_PER_S, STREAM_64),
        of(ANSWERS_PER_S, RAW_ADMISSIONS),
    ),
    at_least(
        [
            "14",
            "group-commit with logs at info, metrics scraped and pages open ÷ without all of these",
        ],
        [0.97, 1.0],
        of(ORDERS_PER_S, ORDERS_MONITORED),
        of(ORDERS_PER_S, ORDERS_QUIET),
    ),
    at_least(
        ["15", "stream ÷ group-commit, orders/s, 256 clients both"],
        [0.5, 0.8],
        of(ORDERS_PER_S, STREAM),
        of(ORDERS_PER_S, ORDERS_BESIDE),
    ),
    reported(
        ["16", "p99 of group-commit at 70 % of its peak, in commits of the database"],
        Some(12.0),
        of(P99, ORDERS_OPEN),
        of(P50, COMMIT),
    ),
    reported(
        ["17", "hand-over of a lock to a waiter of other connections, median, in PING round trips"],
        Some(4.0),
        of(P50, HAND_OVER),
        of(P50, PING),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_decides_the_status() {
        let status = |number: &str, values: &[f64]| {
            let ratio = RATIOS.iter().find(|ratio| ratio.number == number).unwrap();
            ratio.status(Spread::of(values.iter().copied()))
        };
        assert_eq!(status("2", &[4.0, 5.9, 99.0]), BELOW);
        assert_eq!(status("2", &[1.0, 6.0, 9.0, 9.0]), "above the floor");
        assert_eq!(status("4b", &[1.7]), "aim reached");
        assert_eq!(status("4b", &[f64::NAN]), BELOW);
        assert_eq!(status("16", &[12.1]), "reported");
        assert_eq!(status("13", &[]), "not measured");
    }
}
