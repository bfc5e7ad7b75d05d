//! What a round does, drawn from its seed: its sales, its faults with their times, and the attempts to buy.
//!
//! Buyers come in waves, because a fault breaks only what is in flight: with a steady trickle each purchase would be done
//! before the next begins.

use std::{fmt, time::Duration};

use rand::{
    Rng,
    seq::{IndexedRandom, SliceRandom},
};

use super::{
    changes::{Attempt, What},
    faults::{self, Fault},
    options::Layout,
};

/// The strategies whose guarantees hold under faults.
pub const STRATEGIES: [&str; 3] = ["reentrant-lock", "group-commit", "stream"];

/// From one wave of buyers to the next.
const WAVE: Duration = Duration::from_millis(100);

/// What buyers do with an order, and how many of them out of a hundred.
const THEN: [(u32, &[What]); 4] = [
    (85, &[]),
    (6, &[What::Cancel, What::Cancel]),
    (6, &[What::Pay, What::Pay]),
    (3, &[What::Pay, What::Cancel]),
];

/// A fault with its time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Planned {
    /// When it begins, from the beginning of the sale.
    pub time: Duration,
    /// How long it lasts; a restart or a recovery comes on top.
    pub lasts: Duration,
    pub what: &'static Fault,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.time.as_secs_f32();
        let lasts = self.lasts.as_millis();
        write!(f, "{time:.3} s {}", self.what)?;
        if lasts > 0 {
            write!(f, " ({lasts} ms)")
        } else {
            Ok(())
        }
    }
}

/// Most faults in one round.
const MOST: u32 = 3;

/// Draws the faults of a round that sells for `sale`. The first drawn is the `number`-th of all kinds; it is left out, as any
/// other, if this machine cannot inject it. Three in four begin during a wave, when most requests are under way.
pub fn faults(rng: &mut impl Rng, number: usize, sale: Duration, layout: Layout) -> Vec<Planned> {
    let all = faults::draw_order(layout);
    let mut drawn: Vec<Planned> = Vec::new();
    for index in 0..rng.random_range(1..=MOST) {
        let any = rng.random_range(0..all.len());
        let what = all[if index == 0 { number % all.len() } else { any }];
        let mut time = rng.random_range(Duration::ZERO..sale);
        if rng.random_bool(0.75) {
            let within = Duration::from_micros(rng.random_range(0..12_000));
            time = WAVE * rng.random_range(0..waves(sale)) + within;
        }
        if what.is_wrong_clock() {
            time = Duration::ZERO;
        }
        // Drawn even for a fault that is left out, so that what comes after is the same on every machine.
        let lasts = Duration::from_millis(rng.random_range(what.lasts.clone()));
        if what.is_possible(layout) {
            drawn.push(Planned { time, lasts, what });
        }
    }
    drawn.sort_unstable_by_key(|planned| planned.time);
    drawn
}

/// Draws the strategies of the round's two to four sales. Two sales are on the `number`-th strategy in turn, so that their
/// orders meet in one batch; the others are on other strategies.
pub fn strategies(rng: &mut impl Rng, number: usize) -> Vec<&'static str> {
    let first = STRATEGIES[number % STRATEGIES.len()];
    let mut companions = STRATEGIES.to_vec();
    companions.retain(|name| *name != first);
    companions.shuffle(rng);
    companions.truncate(rng.random_range(0..=2));
    [vec![first; 2], companions].concat()
}

/// How many waves there are in a sale.
fn waves(sale: Duration) -> u32 {
    (sale.as_millis() / WAVE.as_millis()) as u32
}

/// Draws the attempts of `buyers` on a sale: each buyer asks in one wave, with a second attempt at the same
/// moment (on another target: attempts take turns) and a third one some time later.
pub fn attempts(rng: &mut impl Rng, buyers: usize, sale: Duration) -> Vec<Attempt> {
    let waves = waves(sale);
    let mut attempts = Vec::with_capacity(buyers * 3);
    for buyer in 0..buyers {
        let first = rng.random_range(0..waves);
        let third = rng.random_range(first..waves);
        for (attempt, wave_number) in (0..).zip([first, first, third]) {
            let then = THEN.choose_weighted(rng, |then| then.0);
            attempts.push(Attempt {
                due: Some(WAVE * wave_number),
                buyer,
                attempt,
                then: then.map_or(&[], |then| then.1),
            });
        }
    }
    attempts.sort_by_key(|attempt| attempt.due);
    attempts
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    const SALE: Duration = Duration::from_millis(1_500);

    #[test]
    fn every_kind_is_drawn_within_the_sale_and_what_is_impossible_changes_nothing_else() {
        let mut missing = faults::draw_order(Layout::default());
        for seed in 0..200 {
            let draw = |faketime| {
                let layout = Layout {
                    faketime,
                    ..Layout::default()
                };
                faults(
                    &mut StdRng::seed_from_u64(seed),
                    seed as usize,
                    SALE,
                    layout,
                )
            };
            let mut possible = draw(true);
            assert!(possible.iter().all(|planned| planned.time < SALE + WAVE));
            missing.retain(|what| possible.iter().all(|planned| planned.what != *what));
            let mut wrong_clocks = possible
                .iter()
                .filter(|planned| planned.what.is_wrong_clock());
            assert!(wrong_clocks.all(|planned| planned.time.is_zero() && planned.lasts > SALE));
            possible.retain(|planned| planned.what.is_possible(Layout::default()));
            assert_eq!(draw(false), possible);
        }
        assert!(missing.is_empty(), "never drawn: {missing:?}");
    }

    #[test]
    fn each_round_has_two_sales_on_one_strategy_and_some_have_others() {
        let rng = &mut StdRng::seed_from_u64(1);
        let drawn: Vec<_> = (0..100).map(|_| strategies(rng, 4)).collect();
        assert!(drawn.iter().all(|names| names[..2] == [STRATEGIES[1]; 2]));
        for count in 2..=4 {
            assert!(
                drawn.iter().any(|names| names.len() == count),
                "never {count} sales"
            );
        }
    }

    #[test]
    fn the_first_two_attempts_overlap_and_the_third_comes_within_the_sale() {
        let attempts = attempts(&mut StdRng::seed_from_u64(1), 100, SALE);
        assert_eq!(attempts.len(), 300);
        for buyer in 0..100 {
            let [first, second, third] = [0, 1, 2].map(|number| {
                attempts
                    .iter()
                    .find(|attempt| attempt.buyer == buyer && attempt.attempt == number)
                    .unwrap()
            });
            assert_eq!(first.due, second.due);
            assert!(third.due >= first.due && third.due < Some(SALE));
        }
    }
}
