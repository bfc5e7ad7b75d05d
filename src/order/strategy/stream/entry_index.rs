//! An index of the entries in the stream, by order and by buyer, for questions about orders that have no status because
//! a Java node admitted them. It is read further where a question needs it: only what was added since, and once for all
//! questions that came before.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use redis::Value;
use tokio::sync::Mutex;

use super::entry::entries;
use super::entry_id::EntryId;
use crate::connection::redis::RoutedConnection;
use crate::error::Error;
use crate::keys::ShardKeys;
use crate::order::model::{Buyer, NewOrder};

/// Entries in one command.
const PAGE: usize = 1000;

/// What a look-up found.
pub(super) enum Lookup {
    /// The order of an entry that is in the stream.
    Found(NewOrder),
    /// None, up to this entry, which is or was the last.
    Missing { last_entry: EntryId },
}

/// The index of one process.
pub(super) struct EntryIndex {
    redis: RoutedConnection,
    keys: Arc<ShardKeys>,
    /// Entries that are kept at most, about; beyond it the stream is read from its beginning again.
    limit: usize,
    entries: Mutex<Entries>,
}

/// The entries that were read, of which some may have been deleted since.
#[derive(Default)]
pub(super) struct Entries {
    /// The epoch in which they were read: in another one, ids may repeat.
    epoch: String,
    last: EntryId,
    /// When the reading that found `last` began.
    read_at: Option<Instant>,
    orders: BTreeMap<EntryId, NewOrder>,
    /// By user and order id.
    by_order: HashMap<(i64, i64), EntryId>,
    by_buyer: HashMap<(i64, i64), EntryId>,
}

impl Entries {
    /// The entry of a user's order.
    pub fn of_order(&self, user_id: i64, order_id: i64) -> Option<(EntryId, NewOrder)> {
        self.at(self.by_order.get(&(user_id, order_id)))
    }

    /// The last entry of a buyer.
    pub fn of_buyer(&self, buyer: Buyer) -> Option<(EntryId, NewOrder)> {
        self.at(self.by_buyer.get(&(buyer.voucher_id, buyer.user_id)))
    }

    fn at(&self, entry: Option<&EntryId>) -> Option<(EntryId, NewOrder)> {
        entry.and_then(|at| self.orders.get(at).map(|order| (*at, *order)))
    }

    fn add(&mut self, at: EntryId, order: Option<NewOrder>) {
        self.last = at;
        if let Some(order) = order {
            self.orders.insert(at, order);
            self.by_order.insert((order.buyer.user_id, order.id), at);
            self.by_buyer.insert((order.buyer.voucher_id, order.buyer.user_id), at);
        }
    }

    /// Forgets what is before the first entry of the stream.
    fn forget_before(&mut self, first: EntryId) {
        let kept = self.orders.split_off(&first);
        for (at, order) in std::mem::replace(&mut self.orders, kept) {
            let Buyer { user_id, voucher_id } = order.buyer;
            if self.by_order.get(&(user_id, order.id)) == Some(&at) {
                self.by_order.remove(&(user_id, order.id));
            }
            if self.by_buyer.get(&(voucher_id, user_id)) == Some(&at) {
                self.by_buyer.remove(&(voucher_id, user_id));
            }
        }
    }
}

impl EntryIndex {
    /// An empty index; `backlog` is how many entries may wait in the stream.
    pub fn new(redis: RoutedConnection, keys: Arc<ShardKeys>, backlog: usize) -> Self {
        EntryIndex { redis, keys, limit: 2 * backlog, entries: Mutex::default() }
    }

    /// Looks an entry up that was in the stream when this was called, and is, under the same id or another: an entry that
    /// is taken over is replaced by a new one. `epoch` is the one that this process knows.
    pub async fn find(
        &self,
        epoch: &str,
        find: impl Fn(&Entries) -> Option<(EntryId, NewOrder)>,
    ) -> Result<Lookup, Error> {
        let mut gone = None;
        loop {
            let (found, last) = self.find_in_index(epoch, &find).await?;
            let (at, order) = match found {
                // Gone before this reading began, and nothing has come in its place.
                None => return Ok(Lookup::Missing { last_entry: last }),
                Some((at, _)) if gone == Some(at) => {
                    return Ok(Lookup::Missing { last_entry: last });
                }
                Some(found) => found,
            };
            let entry: Value = redis::cmd("XRANGE")
                .arg(&self.keys.stream)
                .arg(at)
                .arg(at)
                .query_async(&mut self.redis.clone())
                .await?;
            if !entries(&entry).is_empty() {
                return Ok(Lookup::Found(order));
            }
            gone = Some(at);
        }
    }

    /// What is found in the entries up to the last one, which is the last of now or later.
    async fn find_in_index(
        &self,
        epoch: &str,
        find: impl Fn(&Entries) -> Option<(EntryId, NewOrder)>,
    ) -> Result<(Option<(EntryId, NewOrder)>, EntryId), Error> {
        let asked_at = Instant::now();
        let mut index = self.entries.lock().await;
        if index.epoch != epoch || index.orders.len() > self.limit {
            *index = Entries { epoch: epoch.to_owned(), ..Entries::default() };
        }
        if index.read_at.is_none_or(|at| at < asked_at) {
            let now = Instant::now();
            self.read_on(&mut index).await?;
            index.read_at = Some(now);
        }
        Ok((find(&index), index.last))
    }

    /// Reads what was added since, and forgets what is before the first entry.
    async fn read_on(&self, index: &mut Entries) -> Result<(), Error> {
        loop {
            let (first, page): (Value, Value) = redis::pipe()
                .cmd("XRANGE")
                .arg(&self.keys.stream)
                .arg("-")
                .arg("+")
                .arg("COUNT")
                .arg(1)
                .cmd("XRANGE")
                .arg(&self.keys.stream)
                .arg(format!("({}", index.last))
                .arg("+")
                .arg("COUNT")
                .arg(PAGE)
                .query_async(&mut self.redis.clone())
                .await?;
            let first = entries(&first).first().map_or(EntryId::LAST, |entry| entry.id);
            index.forget_before(first);
            let page = entries(&page);
            for entry in &page {
                index.add(entry.id, entry.order());
            }
            if page.len() < PAGE {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry_id::tests::id;
    use super::*;

    #[test]
    fn entries_are_found_until_they_are_before_the_first() {
        let mut index = Entries::default();
        let order = |id, user_id| NewOrder {
            id,
            buyer: Buyer { user_id, voucher_id: 7 },
            unguarded: false,
        };
        index.add(id(1, 0), Some(order(11, 1)));
        index.add(id(2, 0), None);
        // Added again under the same id, as after a takeover.
        index.add(id(3, 0), Some(order(11, 1)));
        index.add(id(3, 1), Some(order(12, 2)));
        index.forget_before(id(3, 0));
        assert_eq!(index.of_order(1, 11).unwrap().0, id(3, 0));
        assert_eq!(index.of_buyer(Buyer { user_id: 2, voucher_id: 7 }).unwrap().1.id, 12);
        assert!(index.of_buyer(Buyer { user_id: 2, voucher_id: 8 }).is_none());
        index.forget_before(EntryId::LAST);
        assert!(index.of_order(1, 11).is_none() && index.by_buyer.is_empty());
        assert_eq!(index.last, id(3, 1));
    }
}
