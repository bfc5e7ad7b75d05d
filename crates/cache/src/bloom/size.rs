//! Dimensions of a Bloom filter and the bit positions of its items. Pure arithmetic.

use std::f64::consts::LN_2;

use xxhash_rust::xxh3::xxh3_128;

/// A Redis string has at most 512 MiB, which also has to hold the state.
const MAX_BITS: u64 = (1 << 32) - 8 * 1024;

/// The dimensions of a Bloom filter. All nodes must use the same: they are part of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BloomSize {
    /// Bits in the filter, `m`.
    pub(crate) bits: u64,
    /// Bit positions per item, `k`.
    pub(crate) positions: u32,
}

impl BloomSize {
    /// Dimensions for `items` items and a false-positive rate between 0 and 1, both clamped to what
    /// works (1 item to what fits into 512 MiB; 10⁻⁹ to 0.5).
    pub fn for_items(items: u64, false_positive_rate: f64) -> Self {
        let n = items.max(1) as f64;
        let rate = if false_positive_rate.is_nan() {
            0.01
        } else {
            false_positive_rate
        };
        let p = rate.clamp(1e-9, 0.5);
        let m = (-n * p.ln() / (LN_2 * LN_2)).ceil();
        // Whole bytes, because the state follows.
        let bits = (m as u64).clamp(64, MAX_BITS).next_multiple_of(8);
        let k = (bits as f64 / n * LN_2).round();
        Self {
            bits,
            positions: (k as u32).clamp(1, 30),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bits / 8
    }

    /// The bit positions of `item`.
    pub(crate) fn positions_of(&self, item: &str) -> impl Iterator<Item = u64> + use<> {
        let hash = xxh3_128(item.as_bytes());
        let mut combined_hash = hash as u64;
        // Odd, because an even step reaches few positions if the number of bits is even as well.
        let step = (hash >> 64) as u64 | 1;
        let bits = self.bits;
        (0..self.positions).map(move |_| {
            let position = combined_hash % bits;
            combined_hash = combined_hash.wrapping_add(step);
            position
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_follow_the_formulae() {
        let size = BloomSize::for_items(1_000_000, 0.01);
        assert_eq!((size.bits, size.positions), (9_585_064, 7));
        let size = BloomSize::for_items(1000, 0.001);
        assert_eq!((size.bits, size.positions), (14_384, 10));
    }

    #[test]
    fn out_of_range_dimensions_are_clamped() {
        for (items, rate) in [
            (0, 0.0),
            (u64::MAX, 0.01),
            (10, f64::NAN),
            (10, 7.0),
            (10, -1.0),
        ] {
            let size = BloomSize::for_items(items, rate);
            assert!(
                (64..1 << 32).contains(&size.bits) && size.bits.is_multiple_of(8),
                "{size:?}"
            );
            assert!((1..=30).contains(&size.positions), "{size:?}");
            assert!(size.positions_of("x").all(|position| position < size.bits));
        }
    }
}
