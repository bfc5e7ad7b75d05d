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
    pub at: Duration,
    /// How long it lasts; a restart or a recovery comes on top.
    pub lasts: Duration,
    pub what: &'static Fault,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, lasts) = (self.at.as_secs_f32(), self.lasts.as_millis());
        write!(f, "{at:.3} s {}", self.what)?;
        if lasts > 0 { write!(f, " ({lasts} ms)") } else { Ok(()) }
    }
}

/// Most faults in one round.
const MOST: u32 = 3;

/// Draws the faults of a round that sells for `sale`, and whose buyers come in waves every `wave`. The first is the
/// `number`-th of all kinds, where it is possible. Three in four meet a wave in its middle, where most is under way.
pub fn faults(
    rng: &mut impl Rng,
    number: usize,
    (sale, wave): (Duration, Duration),
    layout: Layout,
) -> Vec<Planned> {
    let all = faults::of(layout);
    let mut drawn: Vec<Planned> = Vec::new();
    for index in 0..rng.random_range(1..=MOST) {
        let any = all.choose(rng).copied();
        let first = all.get(number % all.len()).copied();
        let what = if index == 0 { first } else { any };
        let mut at = rng.random_range(Duration::ZERO..sale);
        if rng.random_bool(0.75) {
            let within = Duration::from_micros(rng.random_range(0..12_000));
            at = wave * rng.random_range(0..waves(sale, wave)) + within;
        }
        let Some(what) = what else { continue };
        // Drawn in any case, so that what comes after is the same on every machine.
        let lasts = Duration::from_millis(rng.random_range(what.lasts.clone()));
        if what.impossible(layout).is_none() {
            drawn.push(Planned { at, lasts, what });
        }
    }
    drawn.sort_unstable_by_key(|planned| planned.at);
    drawn
}

/// Draws the strategies of the round's two to four sales: `first` of two of them, whose orders meet in one batch, and others
/// beside these.
pub fn strategies(rng: &mut impl Rng, first: &str, all: &[String]) -> Vec<String> {
    let mut others: Vec<String> = all.iter().filter(|name| *name != first).cloned().collect();
    others.shuffle(rng);
    others.truncate(rng.random_range(0..=2));
    [vec![first.to_owned(); 2], others].concat()
}

/// How many waves there are in a sale.
fn waves(sale: Duration, wave: Duration) -> u32 {
    let waves = sale.as_millis() / wave.as_millis().max(1);
    u32::try_from(waves).unwrap_or(u32::MAX).max(1)
}

/// Draws the attempts of `buyers` on a sale: each buyer asks in one wave, with a second attempt at the same
/// moment (on another target: attempts take turns) and a third one some time later.
pub fn attempts(
    rng: &mut impl Rng,
    buyers: usize,
    (sale, wave): (Duration, Duration),
) -> Vec<Attempt> {
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

    const SALE: Duration = Duration::from_millis(1_500);
    const WAVE: Duration = Duration::from_millis(50);

    fn draw(rng: &mut StdRng, number: usize, faketime: bool) -> Vec<Planned> {
        let layout = Layout { faketime, ..Layout::default() };
        faults(rng, number, (SALE, WAVE), layout)
    }

    #[test]
    fn every_kind_is_drawn_and_lies_within_the_sale() {
        let rng = &mut StdRng::seed_from_u64(1);
        let all = super::super::faults::of(Layout::default());
        let drawn: Vec<Planned> =
            (0..all.len()).flat_map(|number| draw(rng, number, true)).collect();
        for what in all {
            assert!(drawn.iter().any(|planned| planned.what == what), "{what} was never drawn");
        }
        assert!(drawn.iter().all(|planned| planned.at < SALE + WAVE));
    }

    #[test]
    fn what_is_impossible_is_not_drawn_and_changes_nothing_else() {
        for seed in 0..200 {
            let draw = |faketime| draw(&mut StdRng::seed_from_u64(seed), seed as usize, faketime);
            let mut possible = draw(true);
            possible.retain(|planned| planned.what.impossible(Layout::default()).is_none());
            assert_eq!(draw(false), possible);
        }
    }

    #[test]
    fn each_round_has_two_sales_on_one_strategy_and_some_have_others() {
        let rng = &mut StdRng::seed_from_u64(1);
        let all = ["a", "b", "c"].map(str::to_owned);
        let drawn: Vec<Vec<String>> = (0..100).map(|_| strategies(rng, "b", &all)).collect();
        assert!(drawn.iter().all(|names| names[..2] == ["b", "b"]));
        for count in 2..=4 {
            assert!(drawn.iter().any(|names| names.len() == count), "never {count} sales");
        }
    }

    #[test]
    fn the_first_two_attempts_overlap_and_the_third_comes_within_the_sale() {
        let attempts = attempts(&mut StdRng::seed_from_u64(1), 100, (SALE, WAVE));
        assert_eq!(attempts.len(), 300);
        for buyer in 0..100 {
            let of = |number| {
                *attempts.iter().find(|a| a.buyer == buyer && a.attempt == number).unwrap()
            };
            assert_eq!(of(0).due, of(1).due);
            assert!(of(2).due >= of(0).due && of(2).due < Some(SALE));
        }
    }
}
