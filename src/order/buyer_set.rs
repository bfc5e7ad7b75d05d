//! The buyers of a sold-out sale, as one reading of the database found them. No I/O may come in here.

use std::sync::Arc;
use std::time::Instant;

use chrono::NaiveDateTime;

/// Later buyers that are kept apart; beyond it all are merged, which copies the set.
const APART: usize = 100_000;

/// Users who have an order of the sale, or had one when it was read: 8 bytes each. Nobody is removed when an order is
/// cancelled, so a user in it may have no order; one who has an order that was committed before `as_of` is in it.
#[derive(Clone, Debug)]
pub(super) struct BuyerSet {
    /// In rising order.
    all: Arc<Vec<i64>>,
    /// Later ones, in rising order.
    later: Vec<i64>,
    /// The database was asked at this moment, and its clock said this.
    pub as_of: Instant,
    pub database_time: NaiveDateTime,
    /// When all were read.
    pub full_as_of: Instant,
}

impl BuyerSet {
    /// All buyers, in rising order.
    pub fn full(all: Vec<i64>, as_of: Instant, database_time: NaiveDateTime) -> Self {
        let all = Arc::new(all);
        BuyerSet { all, later: Vec::new(), as_of, database_time, full_as_of: as_of }
    }

    /// This set and those who may have bought since, in any order.
    pub fn with(&self, mut since: Vec<i64>, as_of: Instant, database_time: NaiveDateTime) -> Self {
        since.retain(|user| !self.contains(*user));
        since.extend(&self.later);
        since.sort_unstable();
        since.dedup();
        let mut set = BuyerSet { later: since, as_of, database_time, ..self.clone() };
        if set.later.len() > APART {
            let mut all = self.all.to_vec();
            all.append(&mut set.later);
            all.sort_unstable();
            set.all = Arc::new(all);
        }
        set
    }

    /// Whether the user is in it.
    pub fn contains(&self, user: i64) -> bool {
        self.all.binary_search(&user).is_ok() || self.later.binary_search(&user).is_ok()
    }

    /// How many users it contains.
    pub fn len(&self) -> usize {
        self.all.len() + self.later.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_buyers_are_added_once_and_merged_when_they_are_many() {
        let (now, time) = (Instant::now(), NaiveDateTime::default());
        let set = BuyerSet::full(vec![2, 4, 6], now, time).with(vec![9, 4, 5], now, time);
        let set = set.with(vec![5, 1], now, time);
        assert!([1, 2, 4, 5, 6, 9].into_iter().all(|user| set.contains(user)));
        assert!(![0, 3, 7, 8, 10].into_iter().any(|user| set.contains(user)));
        assert_eq!((set.len(), set.later.len()), (6, 3));
        let many = set.with((100..=100 + APART as i64).collect(), now, time);
        assert_eq!((many.len(), many.later.len()), (6 + APART + 1, 0));
        assert!(many.contains(9) && many.contains(100) && !many.contains(99));
    }
}
