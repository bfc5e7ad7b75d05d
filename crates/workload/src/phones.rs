//! Random mainland mobile numbers, so that every run has buyers of its own.

use std::collections::HashSet;

use rand::{Rng, seq::IndexedRandom};

/// The three-digit prefixes in use: 13x, 18x, and parts of 14x, 15x, 16x, 17x and 19x.
const PREFIXES: [u16; 42] = [
    130, 131, 132, 133, 134, 135, 136, 137, 138, 139, 145, 147, 149, 150, 151, 152, 153, 155, 156,
    157, 158, 159, 166, 170, 171, 173, 175, 176, 177, 178, 180, 181, 182, 183, 184, 185, 186, 187,
    188, 189, 198, 199,
];

/// `count` distinct valid numbers of eleven digits.
pub fn distinct(count: usize, rng: &mut impl Rng) -> Vec<String> {
    let mut seen = HashSet::with_capacity(count);
    let mut phones = Vec::with_capacity(count);
    while phones.len() < count {
        let prefix = PREFIXES.choose(rng).copied().unwrap_or(139);
        let phone = format!("{prefix}{:08}", rng.random_range(0..100_000_000_u32));
        if seen.insert(phone.clone()) {
            phones.push(phone);
        }
    }
    phones
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phones_are_distinct_and_eleven_digits() {
        let phones = distinct(5_000, &mut rand::rng());
        assert_eq!(phones.iter().collect::<HashSet<_>>().len(), 5_000);
        for phone in phones {
            assert_eq!(phone.len(), 11, "{phone}");
            assert!(phone.bytes().all(|byte| byte.is_ascii_digit()), "{phone}");
            let (second, third) = (phone.as_bytes()[1], phone.as_bytes()[2]);
            let valid = match second {
                b'3' | b'8' => true,
                b'4' => matches!(third, b'5' | b'7' | b'9'),
                b'5' => third != b'4',
                b'6' => third == b'6',
                b'7' => matches!(third, b'0' | b'1' | b'3' | b'5'..=b'8'),
                b'9' => matches!(third, b'8' | b'9'),
                _ => false,
            };
            assert!(valid && phone.starts_with('1'), "{phone}");
        }
    }
}
