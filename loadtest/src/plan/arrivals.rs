//! When attempts come: three curves.

use clap::ValueEnum;
use serde::Serialize;

/// The shape of the curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Curve {
    /// All in the same instant
    AtOnce,
    /// Equally many in each second of --over
    Even,
    /// Most at the beginning: 63 % within --over, 86 % within twice that
    Decay,
}

/// When attempts come.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Arrivals {
    /// The shape.
    pub curve: Curve,
    /// Its length in seconds.
    pub over_s: f64,
}

impl Arrivals {
    /// When this share (0 to 1) of the attempts has come, in seconds from the opening.
    pub fn at(&self, share: f64) -> f64 {
        match self.curve {
            Curve::AtOnce => 0.0,
            Curve::Even => self.over_s * share,
            // The last of them would never come: the curve ends at ten times the length.
            Curve::Decay => self.over_s * -(1.0 - share).max(4.54e-5).ln(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_come_when_the_curve_says() {
        let at = |curve, share| Arrivals { curve, over_s: 10.0 }.at(share);
        assert_eq!(at(Curve::AtOnce, 0.9), 0.0);
        assert_eq!(at(Curve::Even, 0.5), 5.0);
        assert!((at(Curve::Decay, 0.632) - 10.0).abs() < 0.01);
        assert!((at(Curve::Decay, 1.0) - 100.0).abs() < 0.01);
    }
}
