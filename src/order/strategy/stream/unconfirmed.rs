//! Unconfirmed orders: what this node admitted and does not know to be committed or refused. The copy that outlives a
//! Redis that loses its data. An order leaves it when every entry up to its own is acknowledged.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::entry::position;
use crate::order::model::NewOrder;

/// The orders, by id.
#[derive(Default)]
pub(super) struct UnconfirmedOrders(Mutex<HashMap<i64, Kept>>);

struct Kept {
    order: NewOrder,
    /// The epoch of the entry, and its position in the stream.
    epoch: Arc<str>,
    entry: (u64, u64),
}

impl UnconfirmedOrders {
    /// Keeps an order that is in the stream as `entry`.
    pub fn keep(&self, order: NewOrder, epoch: Arc<str>, entry: &str) {
        let kept = Kept { order, epoch, entry: position(entry) };
        self.0.lock().insert(order.id, kept);
    }

    /// Forgets an order.
    pub fn forget(&self, id: i64) {
        self.0.lock().remove(&id);
    }

    /// Forgets what is acknowledged: everything of this epoch below the bound. Returns how many are left.
    pub fn forget_below(&self, epoch: &str, bound: &str) -> usize {
        let bound = position(bound);
        let mut orders = self.0.lock();
        orders.retain(|_, kept| *kept.epoch != *epoch || kept.entry >= bound);
        orders.len()
    }

    /// The orders that were admitted in another epoch than this one.
    pub fn of_other_epochs(&self, epoch: &str) -> Vec<NewOrder> {
        let orders = self.0.lock();
        orders.values().filter(|kept| *kept.epoch != *epoch).map(|kept| kept.order).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::model::Buyer;

    #[test]
    fn only_what_is_acknowledged_in_this_epoch_is_forgotten() {
        let orders = UnconfirmedOrders::default();
        for (id, epoch, entry) in
            [(1, "a", "5-0"), (2, "b", "5-0"), (3, "b", "5-9"), (4, "b", "5-10")]
        {
            let buyer = Buyer { user_id: id, voucher_id: 1 };
            orders.keep(NewOrder { id, buyer, unguarded: false }, epoch.into(), entry);
        }
        assert_eq!(orders.forget_below("b", "5-10"), 2);
        let lost: Vec<i64> = orders.of_other_epochs("b").iter().map(|order| order.id).collect();
        assert_eq!(lost, [1]);
    }
}
