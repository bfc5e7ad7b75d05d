//! The attempts to buy of a chaos round: in waves, and some buyers pay or cancel their order; and what came of them.
//!
//! In waves, because a fault breaks only what is in flight: with a steady trickle each purchase would be done before
//! the next begins.

use std::{collections::BTreeSet, time::Duration};

use rand::{Rng, seq::IndexedRandom};

use super::changes::{Change, What};
use workload::{
    generator::{self, Record},
    reply::Reply,
};

/// One attempt to buy, and what is asked of the instances, all at once, for the order that comes of it.
pub type Attempt = generator::Attempt<&'static [What]>;

/// What buyers do with an order, and how many of them out of a hundred.
const THEN: [(u32, &[What]); 4] = [
    (85, &[]),
    (6, &[What::Cancel, What::Cancel]),
    (6, &[What::Pay, What::Pay]),
    (3, &[What::Pay, What::Cancel]),
];

/// Every request of the buyers, with its reply.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Every attempt to buy.
    pub records: Vec<Record>,
    /// Every payment and cancellation.
    pub changes: Vec<Change>,
    /// Every order, after its buyer, whose look-up said a definite no.
    pub noes: BTreeSet<(u64, i64)>,
}

impl Outcome {
    /// Notes a look-up's definite no.
    pub fn note(&mut self, user_id: u64, looked_up: &Reply) {
        if let Reply::Withdrawn { id, .. } = looked_up {
            self.noes.insert((user_id, *id));
        }
    }
}

/// How many waves there are in a sale.
pub fn waves(sale: Duration, wave: Duration) -> u32 {
    let waves = sale.as_millis() / wave.as_millis().max(1);
    u32::try_from(waves).unwrap_or(u32::MAX).max(1)
}

/// Draws the attempts of `buyers` on a sale: each buyer asks in one wave, with a second attempt at the same
/// moment (on another target: attempts take turns) and a third one some time later.
pub fn draw(rng: &mut impl Rng, buyers: usize, (sale, wave): (Duration, Duration)) -> Vec<Attempt> {
    let waves = waves(sale, wave);
    let mut attempts = Vec::with_capacity(buyers * 3);
    for buyer in 0..buyers {
        let first = rng.random_range(0..waves);
        let third = rng.random_range(first..waves);
        for (attempt, wave_number) in (0..).zip([first, first, third]) {
            let (due, then) = (Some(wave * wave_number), THEN.choose_weighted(rng, |then| then.0));
            attempts.push(Attempt { due, buyer, attempt, then: then.map_or(&[], |then| then.1) });
        }
    }
    attempts.sort_by_key(|attempt| attempt.due);
    attempts
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn the_first_two_attempts_overlap_and_the_third_comes_within_the_sale() {
        let (sale, wave) = (Duration::from_millis(1_000), Duration::from_millis(50));
        let rng = &mut StdRng::seed_from_u64(1);
        let attempts = draw(rng, 100, (sale, wave));
        assert_eq!(attempts.len(), 300);
        for buyer in 0..100 {
            let of = |number| {
                *attempts.iter().find(|a| a.buyer == buyer && a.attempt == number).unwrap()
            };
            assert_eq!(of(0).due, of(1).due);
            assert!(of(2).due >= of(0).due && of(2).due < Some(sale));
        }
    }
}
