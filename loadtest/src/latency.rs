//! Latency figures from an HDR histogram (Gil Tene's high-dynamic-range buckets, three digits).

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// A distribution of latencies. All figures in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Latency {
    /// How many were measured.
    pub count: u64,
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
    /// The slowest.
    pub max_ms: f64,
}

impl Latency {
    /// Summarises latencies. Beyond an hour they count as an hour.
    pub fn of(latencies: impl IntoIterator<Item = Duration>) -> Self {
        const HOUR_US: u64 = 3_600_000_000;
        let Ok(mut histogram) = Histogram::<u64>::new_with_bounds(1, HOUR_US, 3) else {
            return Self::default();
        };
        for latency in latencies {
            let micros = u64::try_from(latency.as_micros()).unwrap_or(HOUR_US);
            histogram.saturating_record(micros.max(1));
        }
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            count: histogram.len(),
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: histogram.max() as f64 / 1e3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_values() {
        let latency = Latency::of((1..=1000).map(Duration::from_millis));
        for (found, expected) in [
            (latency.p50_ms, 500.0),
            (latency.p90_ms, 900.0),
            (latency.p99_ms, 990.0),
            (latency.p999_ms, 999.0),
            (latency.max_ms, 1000.0),
        ] {
            assert!((found - expected).abs() / expected < 0.002, "{found} for {expected}");
        }
        assert_eq!(Latency::of([]), Latency::default());
    }
}
