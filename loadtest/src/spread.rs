//! The median of some values, and their range.

use std::fmt;

/// A median with the smallest and the largest value.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    /// Of an even number of values, the mean of the two in the middle.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread of `values`; `None` if there are none.
    pub fn from_values(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let min = *sorted.first()?;
        let max = *sorted.last()?;
        let median = (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0;
        Some(Self { median, min, max })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, min, max } = self;
        write!(f, "{median:.2} ({min:.2} – {max:.2})")
    }
}

/// The median of `values`; NaN if there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Spread::from_values(values).map_or(f64::NAN, |spread| spread.median)
}

/// The quotients, one for each round, of the `value` of an item and that of the `first` side's item in the same round; NaN
/// if there are no rounds.
pub fn compare_rounds<T>(items: &[T], first: &[T], value: impl Fn(&T) -> f64) -> Spread {
    let no_rounds = Spread {
        median: f64::NAN,
        min: f64::NAN,
        max: f64::NAN,
    };
    let quotients = items
        .iter()
        .zip(first)
        .map(|(item, first)| value(item) / value(first));
    Spread::from_values(quotients).unwrap_or(no_rounds)
}
