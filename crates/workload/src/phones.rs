//! Random mainland mobile numbers, so that every run has buyers of its own.

use std::collections::HashSet;

use rand::Rng;

/// `count` distinct valid numbers of eleven digits. Each begins with 13: every prefix of 130 to 139 is in use.
pub fn distinct(count: usize, rng: &mut impl Rng) -> Vec<String> {
    let mut numbers = HashSet::with_capacity(count);
    while numbers.len() < count {
        numbers.insert(rng.random_range(0..1_000_000_000_u32));
    }
    numbers.into_iter().map(|number| format!("13{number:09}")).collect()
}
