//! The table of ratios with floors and aims, and their medians. Pure; measures nothing.

use seckill_loadtest::plan::document::count;
use serde::Serialize;

/// A ratio of two things measured side by side.
#[derive(Debug, Clone, Serialize)]
pub struct Ratio {
    /// Its number in docs/BENCHMARKS.md.
    pub number: &'static str,
    /// Dividend and divisor.
    pub what: &'static str,
    /// The value that the median must reach: a minimum, or a maximum where lower is better; none where it is only reported.
    pub floor: Option<f64>,
    /// The value that the median should reach, if there is one.
    pub aim: Option<f64>,
    /// Whether a smaller value is better.
    pub lower_is_better: bool,
    /// The next limit that a profile shows; reported where the aim is not reached.
    pub limit: &'static str,
    /// One value per round.
    pub values: Vec<f64>,
    /// Why it was not measured.
    pub note: Option<String>,
}

/// The ratios of docs/BENCHMARKS.md, without values. Those of processor time come first: it hardly depends on what else
/// the machine does.
pub fn all() -> Vec<Ratio> {
    vec![
        ratio(
            "P1",
            "service µs, sold out ÷ bare route, another buyer each time",
            at_most(1.6, 1.3),
            "the kernel, mostly replies that are written, then allocation; the look-up of a session that is not in memory yet",
        ),
        ratio(
            "P2",
            "service µs, group-commit ÷ bare route, 256 clients",
            at_most(2.2, 1.7),
            "as of P1, and queue, wake-up and a share of the batch's statement",
        ),
        ratio(
            "P3",
            "all servers' µs an order, group-commit ÷ a bare reply",
            at_most(3.6, 2.8),
            "the database: an order is a row and three index entries; then what P2 has",
        ),
        ratio(
            "P4",
            "servers' µs that nginx adds to an order ÷ to a bare reply, two instances",
            at_most(2.0, 1.2),
            "more switches between processes, which leave smaller batches and colder caches",
        ),
        ratio(
            "1",
            "group-commit ÷ reentrant-lock, orders/s, 256 clients",
            REPORTED,
            "the service's request path: most of an order's processor time there is what a refusal costs as well, system calls and HTTP",
        ),
        ratio(
            "2",
            "group-commit ÷ tuned one-transaction-per-order, 256 clients",
            at_least(6.0, 12.0),
            "as of ratio 1; the single transaction is limited by the sale's row, which is locked during each commit",
        ),
        ratio(
            "3",
            "reentrant-lock ÷ tuned one-transaction-per-order, 256 clients",
            at_least(0.6, 0.9),
            "two more round trips to Redis than the single transaction, and a statement text that is parsed each time",
        ),
        ratio(
            "4a",
            "group-commit, orders/s at 1,024 clients ÷ at 16",
            at_least(1.0, 2.0),
            "the batch: how many orders share a commit is bounded by how many clients wait for it",
        ),
        ratio(
            "4b",
            "its p99 at 1,024 clients ÷ what Little's law gives",
            at_most(3.0, 1.8),
            "the processor: a thousand connections, their client and all servers share the same cores",
        ),
        ratio(
            "5",
            "sold-out replies/s ÷ bare route, 256 clients, another buyer each time",
            at_least(0.6, 0.85),
            "as of P1",
        ),
        ratio(
            "6",
            "group-commit orders/s ÷ bare route, 256 clients",
            at_least(0.35, 0.55),
            "as of ratio 1, and the database and Redis, which the bare route does not have, on the same cores",
        ),
        ratio(
            "7",
            "lock + unlock pairs/s ÷ the same scripts by redis-benchmark",
            at_least(0.6, 0.9),
            "a task, a timer and the book-keeping of each hold",
        ),
        ratio(
            "9a",
            "shop replies/s, a hit in memory ÷ bare route, 64 clients",
            at_least(0.6, 0.9),
            "what every request gets: its id, two counters, the token check, the limit per shop",
        ),
        ratio(
            "9b",
            "shop replies/s, a hit in Redis ÷ GETs by redis-benchmark, 64 clients both",
            at_least(0.4, 0.8),
            "as of ratio 9a, and the value is decoded",
        ),
        ratio(
            "11a",
            "goodput at 3× overload ÷ peak",
            at_least(0.85, 0.95),
            "each refusal is still a request that is parsed and a reply that is written, on the same cores",
        ),
        ratio(
            "11b",
            "p99 of the accepted at 3× overload ÷ at peak",
            at_most(2.0, 1.2),
            "time on the processor, which refusals use as well",
        ),
        ratio(
            "12",
            "group-commit through nginx ÷ direct, two instances",
            REPORTED,
            "nginx: each request and reply is parsed and written once more on the same cores",
        ),
        ratio(
            "13",
            "stream admissions/s ÷ its script by redis-benchmark",
            at_least(0.5, 0.8),
            "Redis: an order's claim, entry, delivery, acknowledgement and deletion, most of them also to its log",
        ),
        ratio(
            "14",
            "group-commit with logs at info, metrics scraped and pages open ÷ without all of these",
            at_least(0.97, 1.0),
            "the monitoring requests, which take processor time from purchases",
        ),
        ratio(
            "15",
            "stream ÷ group-commit, orders/s, 256 clients both",
            at_least(0.5, 0.8),
            "as of ratio 13; an order of the stream is written in Redis, read there, and committed as well",
        ),
        ratio(
            "16",
            "p99 of group-commit at 70 % of its peak, in commits of the database",
            Bounds { floor: None, aim: Some(12.0), lower_is_better: true },
            "an order waits for the batch before it and for its own; the rest is time on the processor",
        ),
        ratio(
            "17",
            "hand-over of a lock to a waiter of other connections, median, in PING round trips",
            Bounds { floor: None, aim: Some(4.0), lower_is_better: true },
            "release, message and acquire, one after the other",
        ),
    ]
}

/// What a median is compared with.
struct Bounds {
    floor: Option<f64>,
    aim: Option<f64>,
    lower_is_better: bool,
}

/// No floor and no aim.
const REPORTED: Bounds = Bounds { floor: None, aim: None, lower_is_better: false };

fn at_least(floor: f64, aim: f64) -> Bounds {
    Bounds { floor: Some(floor), aim: Some(aim), lower_is_better: false }
}

fn at_most(floor: f64, aim: f64) -> Bounds {
    Bounds { floor: Some(floor), aim: Some(aim), lower_is_better: true }
}

/// The number of ratios that are measured together, without the letter of one of them: "4" of "4", "4a" and "4b". Fails
/// for a number that is none, and names all.
pub fn number(text: &str) -> Result<String, String> {
    let without_letter = |number: &str| number.trim_end_matches(['a', 'b']).to_owned();
    let mut numbers: Vec<_> = all().iter().map(|ratio| without_letter(ratio.number)).collect();
    if numbers.contains(&without_letter(text)) {
        return Ok(without_letter(text));
    }
    numbers.dedup();
    Err(format!("there is no such ratio, only {}", numbers.join(", ")))
}

/// A ratio without values.
fn ratio(number: &'static str, what: &'static str, bounds: Bounds, limit: &'static str) -> Ratio {
    let Bounds { floor, aim, lower_is_better } = bounds;
    Ratio { number, what, floor, aim, lower_is_better, limit, values: Vec::new(), note: None }
}

/// A ratio compared with its floor and its aim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum RatioStatus {
    /// At or beyond the aim.
    Aim,
    /// Between floor and aim.
    Floor,
    /// Beyond the floor, on the wrong side.
    Below,
    /// There is no floor, and the aim, if there is one, is not reached.
    Reported,
    /// Not measured; never counts as passed.
    NotAvailable,
}

impl RatioStatus {
    /// The text in the report.
    pub fn text(self) -> &'static str {
        match self {
            Self::Aim => "aim reached",
            Self::Floor => "above the floor",
            Self::Below => "BELOW THE FLOOR",
            Self::Reported => "reported",
            Self::NotAvailable => "not available",
        }
    }
}

impl Ratio {
    /// See [`median`].
    pub fn median(&self) -> Option<f64> {
        median(&self.values)
    }

    /// Smallest and largest.
    pub fn range(&self) -> Option<(f64, f64)> {
        let low = self.values.iter().copied().reduce(f64::min)?;
        Some((low, self.values.iter().copied().reduce(f64::max)?))
    }

    /// The median compared with floor and aim.
    pub fn status(&self) -> RatioStatus {
        let Some(median) = self.median() else { return RatioStatus::NotAvailable };
        let holds =
            |bound: f64| if self.lower_is_better { median <= bound } else { median >= bound };
        match (self.aim.map(holds), self.floor.map(holds)) {
            (Some(true), _) => RatioStatus::Aim,
            (_, Some(true)) => RatioStatus::Floor,
            (_, Some(false)) => RatioStatus::Below,
            (_, None) => RatioStatus::Reported,
        }
    }

    /// Whether it is of processor time.
    pub fn is_of_processor_time(&self) -> bool {
        self.number.starts_with('P')
    }
}

/// The median of `values`: of an even number, the mean of the two in the middle; `None` of none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = if sorted.len().is_multiple_of(2) { sorted[sorted.len() / 2 - 1] } else { upper };
    Some((lower + upper) / 2.0)
}

/// A figure with three significant digits or more.
pub fn figure(value: f64) -> String {
    match value {
        v if v >= 100.0 => count(value.round() as u64),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(number: &str, values: &[f64]) -> Ratio {
        let mut found = all().into_iter().find(|ratio| ratio.number == number).unwrap();
        found.values = values.to_vec();
        found
    }

    #[test]
    fn the_median_decides_the_status() {
        assert_eq!(measured("2", &[4.0, 5.9, 99.0]).status(), RatioStatus::Below);
        assert_eq!(measured("2", &[1.0, 6.0, 9.0]).status(), RatioStatus::Floor);
        assert_eq!(measured("2", &[12.0]).status(), RatioStatus::Aim);
        assert_eq!(measured("4b", &[1.7]).status(), RatioStatus::Aim);
        assert_eq!(measured("4b", &[3.1]).status(), RatioStatus::Below);
        assert_eq!(measured("P1", &[1.7]).status(), RatioStatus::Below);
    }

    #[test]
    fn without_a_floor_nothing_is_below_it() {
        assert_eq!(measured("1", &[0.1]).status(), RatioStatus::Reported);
        assert_eq!(measured("16", &[12.1]).status(), RatioStatus::Reported);
        assert_eq!(measured("16", &[12.0]).status(), RatioStatus::Aim);
    }

    #[test]
    fn those_of_processor_time_come_first() {
        let first: Vec<_> = all().iter().map(Ratio::is_of_processor_time).collect();
        assert!(first.is_sorted_by(|a, b| a >= b) && first.starts_with(&[true; 4]));
    }

    #[test]
    fn a_ratio_without_values_has_not_passed() {
        assert_eq!(measured("13", &[]).status(), RatioStatus::NotAvailable);
        assert_eq!(measured("4b", &[f64::NAN]).status(), RatioStatus::Below);
    }

    #[test]
    fn ratios_are_asked_for_by_number_with_or_without_letter() {
        for ratio in all() {
            assert!(ratio.number.starts_with(&number(ratio.number).unwrap()));
        }
        assert_eq!(["11a", "11", "P1"].map(number), ["11", "11", "P1"].map(|it| Ok(it.to_owned())));
        assert!(number("18").unwrap_err().contains("only P1, P2, P3, P4, 1, 2, 3, 4, 5"));
    }

    #[test]
    fn figures_are_short_and_medians_are_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        let shown = [1234567.0, 12.34, 1.234, 999.6].map(figure);
        assert_eq!(shown, ["1,234,567", "12.3", "1.23", "1,000"]);
    }
}
