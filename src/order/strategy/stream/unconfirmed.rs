//! Unconfirmed orders: what this node admitted and does not know to be committed or refused. The copy that outlives a
//! Redis that loses its data. An order leaves it when every entry up to its own is acknowledged.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::entry_id::EntryId;
use crate::order::model::NewOrder;

/// The orders, by id.
#[derive(Default)]
pub(super) struct UnconfirmedOrders(Mutex<HashMap<i64, Kept>>);

struct Kept {
    order: NewOrder,
    /// The epoch of the entry, and its id.
    epoch: Arc<str>,
    entry: EntryId,
}

impl UnconfirmedOrders {
    /// Keeps orders that are in the stream as these entries of the epoch.
    pub fn keep(&self, epoch: &Arc<str>, entries: impl IntoIterator<Item = (NewOrder, EntryId)>) {
        let mut orders = self.0.lock();
        for (order, entry) in entries {
            orders.insert(order.id, Kept { order, epoch: epoch.clone(), entry });
        }
    }

    /// Whether it is one of this user's.
    pub fn contains(&self, user_id: i64, id: i64) -> bool {
        self.0.lock().get(&id).is_some_and(|kept| kept.order.buyer.user_id == user_id)
    }

    /// Forgets an order.
    pub fn forget(&self, id: i64) {
        self.0.lock().remove(&id);
    }

    /// Forgets what is acknowledged: everything of this epoch below the bound. Returns how many are left.
    pub fn forget_below(&self, epoch: &str, bound: EntryId) -> usize {
        let mut orders = self.0.lock();
        orders.retain(|_, kept| *kept.epoch != *epoch || kept.entry >= bound);
        orders.len()
    }

    /// The orders that were admitted in another epoch than this one, with the entries that they had.
    pub fn of_other_epochs(&self, epoch: &str) -> Vec<(NewOrder, EntryId)> {
        let orders = self.0.lock();
        let others = orders.values().filter(|kept| *kept.epoch != *epoch);
        others.map(|kept| (kept.order, kept.entry)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry_id::tests::id;
    use super::*;
    use crate::order::model::Buyer;

    #[test]
    fn only_what_is_acknowledged_in_this_epoch_is_forgotten() {
        let orders = UnconfirmedOrders::default();
        for (number, epoch, entry) in
            [(1, "a", id(5, 0)), (2, "b", id(5, 0)), (3, "b", id(5, 9)), (4, "b", id(5, 10))]
        {
            let buyer = Buyer { user_id: number, voucher_id: 1 };
            let order = NewOrder { id: number, buyer, unguarded: false };
            orders.keep(&epoch.into(), [(order, entry)]);
        }
        assert_eq!(orders.forget_below("b", id(5, 10)), 2);
        let lost: Vec<_> = orders.of_other_epochs("b");
        assert_eq!((lost[0].0.id, lost[0].1, lost.len()), (1, id(5, 0), 1));
        assert!(orders.contains(1, 1) && !orders.contains(2, 1));
    }
}
