//! Latency figures from an HDR histogram (Gil Tene's high-dynamic-range buckets, three digits).

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

const HOUR_US: u64 = 3_600_000_000;

/// A distribution of latencies. All figures in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[allow(missing_docs)] // percentiles under their names
pub struct Latency {
    pub count: u64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
}

impl Latency {
    /// Summarises latencies. Beyond an hour they count as an hour.
    pub fn from_durations(latencies: impl IntoIterator<Item = Duration>) -> Self {
        let mut recorder = Recorder::new(3);
        latencies
            .into_iter()
            .for_each(|latency| recorder.record(latency));
        recorder.summary()
    }
}

/// The columns of a table of [`row`]s.
pub const COLUMNS: [&str; 7] = [
    "latency in ms",
    ">count",
    ">p50",
    ">p90",
    ">p99",
    ">p99.9",
    ">max",
];

/// A row of such a table.
pub fn row(name: &str, latency: &Latency) -> Vec<String> {
    let Latency {
        count,
        p50_ms,
        p90_ms,
        p99_ms,
        p999_ms,
        max_ms,
    } = latency;
    let figures = [p50_ms, p90_ms, p99_ms, p999_ms, max_ms].map(|ms| format!("{ms:.2}"));
    [name.to_owned(), count.to_string()]
        .into_iter()
        .chain(figures)
        .collect()
}

/// Collects latencies of a run that is too long to remember each of them.
#[derive(Debug, Clone)]
pub struct Recorder(Histogram<u64>);

impl Recorder {
    /// Keeps so many significant digits, 1 to 5; each costs about ten times the memory.
    pub fn new(digits: u8) -> Self {
        Self(Histogram::new_with_bounds(1, HOUR_US, digits).expect("1 to 5 digits"))
    }

    /// Counts one. Beyond an hour it counts as an hour.
    pub fn record(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(HOUR_US);
        self.0.saturating_record(micros.max(1));
    }

    /// The latency that a share `quantile` (0 to 1) does not exceed, in milliseconds.
    pub fn at_ms(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e3
    }

    /// What was collected.
    pub fn summary(&self) -> Latency {
        Latency {
            count: self.0.len(),
            p50_ms: self.at_ms(0.5),
            p90_ms: self.at_ms(0.9),
            p99_ms: self.at_ms(0.99),
            p999_ms: self.at_ms(0.999),
            max_ms: self.0.max() as f64 / 1e3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_values() {
        let latency = Latency::from_durations((1..=1000).map(Duration::from_millis));
        for (found, expected) in [
            (latency.p50_ms, 500.0),
            (latency.p90_ms, 900.0),
            (latency.p99_ms, 990.0),
            (latency.p999_ms, 999.0),
            (latency.max_ms, 1000.0),
        ] {
            assert!(
                (found - expected).abs() / expected < 0.002,
                "{found} for {expected}"
            );
        }
        assert_eq!(Latency::from_durations([]), Latency::default());
    }
}
