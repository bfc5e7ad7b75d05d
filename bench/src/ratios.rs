//! The ratios, what they must be and should be, and what came out. Pure; measures nothing.

use serde::Serialize;

/// A ratio of two things measured side by side.
#[derive(Debug, Clone, Serialize)]
pub struct Ratio {
    /// Its number in docs/BENCHMARKS.md.
    pub number: &'static str,
    /// What is divided by what.
    pub what: &'static str,
    /// The least (or, where lower is better, the most) it must be.
    pub floor: f64,
    /// What it should be.
    pub aim: f64,
    /// Whether a smaller value is the better one.
    pub lower_is_better: bool,
    /// What a profile shows as the next limit; of interest where the aim is not reached.
    pub limit: &'static str,
    /// One value a round.
    pub values: Vec<f64>,
    /// Why it was not measured, or what should be known of it.
    pub note: Option<String>,
}

/// Number, text, floor, aim, and whether lower is better; what a profile shows as the next limit.
type Row = (&'static str, &'static str, f64, f64, bool, &'static str);

const ROWS: [Row; 14] = [
    (
        "1",
        "group-commit ÷ reentrant-lock, orders/s, 256 clients",
        8.0,
        25.0,
        false,
        "the service's request path: most of an order's processor time there is what a refusal costs as well, system calls and HTTP",
    ),
    (
        "2",
        "group-commit ÷ tuned one-transaction-per-order, 256 clients",
        6.0,
        12.0,
        false,
        "as of ratio 1; the plain transaction is limited by the sale's row, which is locked for a commit each",
    ),
    (
        "3",
        "reentrant-lock ÷ tuned one-transaction-per-order, 256 clients",
        0.5,
        0.9,
        false,
        "two round trips to Redis more than the plain transaction, and a statement text that is parsed each time",
    ),
    (
        "4a",
        "group-commit, orders/s at 1,024 clients ÷ at 16",
        1.0,
        2.0,
        false,
        "the batch: how many orders share a commit is bounded by how many clients wait for it",
    ),
    (
        "4b",
        "its p99 at 1,024 clients ÷ what Little's law gives",
        3.0,
        1.8,
        true,
        "the processor: a thousand connections, their client and all servers take turns on the same cores",
    ),
    (
        "5",
        "sold-out replies/s ÷ bare route, 256 clients, every buyer new",
        0.6,
        0.9,
        false,
        "the session of a new buyer: its look in Redis and the turn it waits for; asking again within 0.8 s saves both",
    ),
    (
        "6",
        "group-commit orders/s ÷ bare route, 256 clients",
        0.25,
        0.55,
        false,
        "as of ratio 1, and the database and Redis, which the bare route does not have, on the same cores",
    ),
    (
        "7",
        "lock + unlock pairs/s ÷ the same scripts by redis-benchmark",
        0.6,
        0.9,
        false,
        "a task, a timer and the book-keeping of each hold",
    ),
    (
        "8",
        "ids/s, leased ÷ one INCR per id",
        50.0,
        1000.0,
        false,
        "one look at the clock and one lock in the process for each id",
    ),
    (
        "11a",
        "goodput at 3× overload ÷ peak",
        0.8,
        0.95,
        false,
        "each refusal is still a request that is parsed and a reply that is written, on the same cores",
    ),
    (
        "11b",
        "p99 of the accepted at 3× overload ÷ at peak",
        3.0,
        1.2,
        true,
        "turns on the processor, which refusals take as well",
    ),
    (
        "12",
        "group-commit through nginx ÷ direct, two instances",
        0.4,
        0.7,
        false,
        "nginx: each request and reply is parsed and written once more on the same cores",
    ),
    (
        "13",
        "stream admissions/s ÷ its script by redis-benchmark",
        0.4,
        0.8,
        false,
        "Redis: five writes an order, each also to its log, beside what the consumer reads and acknowledges",
    ),
    (
        "14",
        "group-commit with logs at info, metrics scraped and pages open ÷ without any of it",
        0.95,
        1.0,
        false,
        "the requests of those who watch, which take the processor from those who buy",
    ),
];

/// All ratios, not measured yet.
pub fn all() -> Vec<Ratio> {
    ROWS.map(|(number, what, floor, aim, lower_is_better, limit)| Ratio {
        number,
        limit,
        what,
        floor,
        aim,
        lower_is_better,
        values: Vec::new(),
        note: None,
    })
    .into()
}

/// How a ratio stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Standing {
    /// As good as hoped for.
    Aim,
    /// Good enough.
    Floor,
    /// Not good enough.
    Below,
    /// Not measured; never counted as passed.
    NotAvailable,
}

impl Standing {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Aim => "aim reached",
            Self::Floor => "above the floor",
            Self::Below => "BELOW THE FLOOR",
            Self::NotAvailable => "not available",
        }
    }
}

impl Ratio {
    /// The middle value; of an even number, the mean of the two in the middle.
    pub fn median(&self) -> Option<f64> {
        median(&self.values)
    }

    /// Smallest and largest.
    pub fn range(&self) -> Option<(f64, f64)> {
        let low = self.values.iter().copied().reduce(f64::min)?;
        Some((low, self.values.iter().copied().reduce(f64::max)?))
    }

    /// Where its median stands.
    pub fn standing(&self) -> Standing {
        let Some(median) = self.median() else { return Standing::NotAvailable };
        let holds =
            |bound: f64| if self.lower_is_better { median <= bound } else { median >= bound };
        match (holds(self.aim), holds(self.floor)) {
            (true, _) => Standing::Aim,
            (_, true) => Standing::Floor,
            _ => Standing::Below,
        }
    }
}

/// The middle of `values`; `None` of none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = if sorted.len().is_multiple_of(2) { sorted[sorted.len() / 2 - 1] } else { upper };
    Some((lower + upper) / 2.0)
}

/// A figure with as many digits as it deserves.
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => group(value.round() as i64),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn group(value: i64) -> String {
    let (digits, sign) = (value.unsigned_abs().to_string(), if value < 0 { "-" } else { "" });
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    format!("{sign}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(number: &str, values: &[f64]) -> Ratio {
        let mut found = all().into_iter().find(|ratio| ratio.number == number).unwrap();
        found.values = values.to_vec();
        found
    }

    #[test]
    fn a_ratio_stands_where_its_median_is() {
        assert_eq!(ratio("1", &[7.0, 7.9, 99.0]).standing(), Standing::Below);
        assert_eq!(ratio("1", &[1.0, 8.0, 9.0]).standing(), Standing::Floor);
        assert_eq!(ratio("1", &[25.0]).standing(), Standing::Aim);
        assert_eq!(ratio("4b", &[1.7]).standing(), Standing::Aim);
        assert_eq!(ratio("4b", &[3.1]).standing(), Standing::Below);
    }

    #[test]
    fn what_was_not_measured_has_not_passed() {
        assert_eq!(ratio("13", &[]).standing(), Standing::NotAvailable);
        assert_eq!(ratio("4b", &[f64::NAN]).standing(), Standing::Below);
    }

    #[test]
    fn figures_are_short_and_medians_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        let shown = [1234567.0, 12.34, 1.234, 999.6].map(figure);
        assert_eq!(shown, ["1,234,567", "12.3", "1.23", "1,000"]);
    }
}
