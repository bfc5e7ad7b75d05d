//! The median of some values, and their range.

use std::fmt;

/// A median with the least and the most.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    /// Of an even number of values, the mean of the two in the middle.
    pub median: f64,
    /// The least value.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

impl Spread {
    /// Of `values`; `None` of none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let least = *sorted.first()?;
        let most = *sorted.last()?;
        let median = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
        Some(Self {
            median,
            least,
            most,
        })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            median,
            least,
            most,
        } = self;
        write!(f, "{median:.2} ({least:.2} – {most:.2})")
    }
}

/// The median of `values`; of none, no number.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Spread::of(values).map_or(f64::NAN, |spread| spread.median)
}

/// How `value` of each of `items` compares with that of the first one's of the same round; without rounds, no numbers.
pub fn beside<T>(items: &[T], first: &[T], value: impl Fn(&T) -> f64) -> Spread {
    let none = Spread {
        median: f64::NAN,
        least: f64::NAN,
        most: f64::NAN,
    };
    let shares = items
        .iter()
        .zip(first)
        .map(|(item, first)| value(item) / value(first));
    Spread::of(shares).unwrap_or(none)
}
