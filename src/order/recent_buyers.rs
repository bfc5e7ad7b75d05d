//! [`RecentBuyers`]: the buyers who lately had an order, as far as this process knows.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::model::Buyer;

/// Places for buyers of all sales together: one mebibyte. A power of two.
const PLACES: usize = 128 * 1024;

/// A set of fixed size that forgets: each buyer has one place, and the next buyer with the same place overwrites it. It holds
/// only hashes, so it may take one buyer for another: after a "yes" the database has to be asked.
pub struct RecentBuyers {
    hasher: RandomState,
    hashes: Box<[AtomicU64]>,
}

impl Default for RecentBuyers {
    fn default() -> Self {
        RecentBuyers {
            hasher: RandomState::new(),
            hashes: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl RecentBuyers {
    /// Remembers a buyer who has an order.
    pub fn insert(&self, buyer: Buyer) {
        let (place, hash) = self.place(buyer);
        place.store(hash, Relaxed);
    }

    /// Whether the buyer may have an order.
    pub fn may_contain(&self, buyer: Buyer) -> bool {
        let (place, hash) = self.place(buyer);
        place.load(Relaxed) == hash
    }

    fn place(&self, buyer: Buyer) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(buyer);
        (&self.hashes[hash as usize % PLACES], hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_all_of_the_latest_buyers_are_remembered_and_hardly_any_other() {
        let buyers = RecentBuyers::default();
        let voucher_id = 7;
        let buyer = |user_id| Buyer {
            user_id,
            voucher_id,
        };
        (0..1000).for_each(|user_id| buyers.insert(buyer(user_id)));
        let remembered = |users: std::ops::Range<i64>| {
            users
                .filter(|user_id| buyers.may_contain(buyer(*user_id)))
                .count()
        };
        assert!(remembered(0..1000) > 900);
        assert_eq!(remembered(1000..101_000), 0);
    }
}
