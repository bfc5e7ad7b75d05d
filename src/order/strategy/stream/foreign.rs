//! Consumers of another kind in our group, such as a Java node's: what they acknowledge without an order becomes a
//! definite refusal, and what they keep for too long is taken over.
//!
//! Such a consumer acknowledges an entry after its transaction, whether there is an order now or it dropped the entry
//! (the user's lock was busy, there is an order row, or nothing is left), and it deletes nothing. So an acknowledged entry
//! that is still in the stream is looked up in the database: without an order it was dropped, and its claim, its unit of
//! the stock and its buyer's answer are ours to put right.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::entry_id::EntryId;
use super::names::{CONSUMER_PREFIX, EPOCH_GROUP, GROUP, STATUS_TTL_S};
use super::node::StreamNode;
use super::order_status::code;
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};
use crate::scripts;

/// Pause between two rounds.
const ROUND: Duration = Duration::from_millis(500);

/// Every how many rounds what is acknowledged is looked for although no other consumer is in the group: one may have been
/// removed from it. It costs Redis a look at every entry that waits.
const LOOK_EVERY: u32 = 20;

/// Entries that one script looks at, resolves or takes over.
const PAGE: usize = 200;

/// Pages in one round; the next one goes on where it ended.
const PAGES: usize = 20;

/// Pending entries of other consumers: whose, and since when by this process's clock. Neither the clock of Redis nor how
/// long an entry was idle is asked: one that is delivered to its consumer again and again is never idle.
#[derive(Default)]
struct Kept(HashMap<String, (String, Instant)>);

impl Kept {
    /// Takes note of what is pending now; returns what the same consumer has had for `limit`.
    fn overdue(
        &mut self,
        pending: Vec<(String, String)>,
        limit: Duration,
    ) -> Vec<(String, String)> {
        let now = Instant::now();
        let mut before = std::mem::take(&mut self.0);
        for (entry, consumer) in pending {
            let since = before
                .remove(&entry)
                .filter(|(name, _)| *name == consumer)
                .map_or(now, |(_, since)| since);
            self.0.insert(entry, (consumer, since));
        }
        self.0
            .iter()
            .filter(|(_, (_, since))| now.duration_since(*since) >= limit)
            .map(|(entry, (consumer, _))| (entry.clone(), consumer.clone()))
            .collect()
    }
}

/// An acknowledged entry, as it is in the stream.
struct Acknowledged<'a> {
    entry: &'a str,
    id: &'a str,
    user: &'a str,
    voucher: &'a str,
}

impl Acknowledged<'_> {
    fn order(&self) -> Option<NewOrder> {
        let number = |text: &str| text.parse::<i64>().ok().filter(|number| *number > 0);
        let (user_id, voucher_id) = (number(self.user)?, number(self.voucher)?);
        let buyer = Buyer { user_id, voucher_id };
        Some(NewOrder { id: number(self.id)?, buyer, unguarded: false })
    }
}

impl StreamNode {
    /// Makes round after round until the process stops.
    pub(super) async fn watch_foreign_consumers(self: Arc<Self>) {
        let (mut kept, mut after) = (Kept::default(), "0-0".to_owned());
        let (mut logged, mut number) = (false, 0_u32);
        while !self.is_stopped() {
            let look = number.is_multiple_of(LOOK_EVERY);
            number = number.wrapping_add(1);
            let round = async {
                self.resolve_acknowledged(&mut after, look).await?;
                self.take_over_foreign(&mut kept).await
            };
            match round.await {
                Ok(()) => logged = false,
                Err(error) if !logged => {
                    logged = true;
                    tracing::warn!(%error, "other nodes' consumers are not watched; trying again");
                }
                Err(_) => {}
            }
            self.sleep(ROUND).await;
        }
    }

    /// Resolves what was acknowledged, page by page from the entry `after` on. Without `look` only where another kind of
    /// consumer is in the group.
    async fn resolve_acknowledged(&self, after: &mut String, look: bool) -> Result<(), Error> {
        for _ in 0..PAGES {
            let found: Vec<String> = scripts::STREAM_FOREIGN_FIND
                .key(&self.keys.stream)
                .key(&self.keys.held)
                .arg(GROUP)
                .arg(&*after)
                .arg(PAGE)
                .arg(EPOCH_GROUP)
                .arg(if look { "" } else { CONSUMER_PREFIX })
                .invoke_async(&mut self.redis.clone())
                .await?;
            let Some((next, entries)) = found.split_first() else { return Ok(()) };
            let entries: Vec<Acknowledged<'_>> = entries
                .chunks_exact(4)
                .map(|entry| Acknowledged {
                    entry: &entry[0],
                    id: &entry[1],
                    user: &entry[2],
                    voucher: &entry[3],
                })
                .collect();
            self.resolve(&entries).await?;
            after.clone_from(next);
            if next == "0-0" {
                break;
            }
        }
        Ok(())
    }

    async fn resolve(&self, entries: &[Acknowledged<'_>]) -> Result<(), Error> {
        if entries.is_empty() {
            return Ok(());
        }
        let orders: Vec<NewOrder> = entries.iter().filter_map(Acknowledged::order).collect();
        let committed = self.store.buyers_of(&orders).await?;
        let mut script = scripts::STREAM_FOREIGN_RESOLVE.key(&self.keys.stream);
        script.key(&self.keys.failures).key(&self.keys.exact_counters).arg(STATUS_TTL_S);
        self.keys.declare(&mut script, entries.iter().map(|entry| (entry.user, entry.voucher)));
        for acknowledged in entries {
            let (resolution, code) = match acknowledged.order() {
                None => ("nothing", String::new()),
                Some(order) if committed.get(&order.id) == Some(&order.buyer) => {
                    ("ordered", String::new())
                }
                Some(order) => self.refusal_of_dropped(order).await?,
            };
            let Acknowledged { entry, id, user, voucher } = acknowledged;
            script.arg(*entry).arg(*id).arg(*user).arg(*voucher).arg(resolution).arg(code);
        }
        let refused: u64 = script.invoke_async(&mut self.redis.clone()).await?;
        if refused > 0 {
            self.stats.dropped_elsewhere.fetch_add(refused, Relaxed);
            tracing::warn!(refused, "entries that another node's consumer dropped are refused");
        }
        Ok(())
    }

    /// Why an order was not made, as far as the database says: the resolution in the words of the script, and the code.
    async fn refusal_of_dropped(&self, order: NewOrder) -> Result<(&'static str, String), Error> {
        let status = self.store.buyer_status(order.buyer).await?;
        Ok(match status {
            None => ("refused", code(&Error::VoucherNotFound)),
            Some(status) => match status.require_chance() {
                Err(error @ Error::AlreadyOrdered(_)) => ("already ordered", code(&error)),
                Err(error) => ("sold out", code(&error)),
                // The user's lock was busy, or a cancelled order was in the way.
                Ok(()) => ("refused", code(&Error::OrderFailed)),
            },
        })
    }

    /// Takes over what a consumer of another kind has had for too long.
    async fn take_over_foreign(&self, kept: &mut Kept) -> Result<(), Error> {
        let pending: Vec<String> = scripts::STREAM_FOREIGN_PENDING
            .key(&self.keys.stream)
            .arg(GROUP)
            .arg(CONSUMER_PREFIX)
            .arg(PAGE)
            .invoke_async(&mut self.redis.clone())
            .await?;
        let pending =
            pending.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        let overdue = kept.overdue(pending, self.limits.min_idle);
        if overdue.is_empty() {
            return Ok(());
        }
        // Should a reply be lost below, this epoch's entries are in the stream all the same.
        let epoch = self.epoch();
        let mut script = scripts::STREAM_FOREIGN_TAKEOVER.key(&self.keys.stream);
        script.arg(GROUP).arg(&self.consumer).arg(self.limits.batch).arg(STATUS_TTL_S);
        for (entry, consumer) in &overdue {
            script.arg(entry).arg(consumer);
        }
        let replaced = script.invoke_async(&mut self.redis.clone()).await;
        // Also where the reply was lost.
        self.read_own_pending_soon();
        let replaced: Vec<String> = replaced?;
        let replaced: Vec<&[String]> = replaced.chunks_exact(4).collect();
        for entry in &replaced {
            let [new, id, user, voucher] = entry else { continue };
            let order = Acknowledged { entry: new, id, user, voucher }.order();
            // The node that admitted it forgets it with the old entry: a copy outlives a Redis that loses its data.
            if let (Some(order), Some(entry)) = (order, EntryId::parse(new)) {
                self.unconfirmed.keep(&epoch, [(order, entry)]);
            }
        }
        if !replaced.is_empty() {
            tracing::warn!(entries = replaced.len(), "entries of another consumer are taken over");
            self.stats.taken_over.fetch_add(replaced.len() as u64, Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_overdue_once_one_consumer_has_had_it_for_long() {
        let pending = |consumer: &str| vec![("1-0".to_owned(), consumer.to_owned())];
        let mut kept = Kept::default();
        assert!(kept.overdue(pending("c1"), Duration::from_secs(60)).is_empty());
        std::thread::sleep(Duration::from_millis(20));
        // Another consumer begins anew.
        assert!(kept.overdue(pending("c2"), Duration::from_millis(15)).is_empty());
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(kept.overdue(pending("c2"), Duration::from_millis(15)), pending("c2"));
        assert!(kept.overdue(Vec::new(), Duration::ZERO).is_empty());
        assert!(kept.0.is_empty());
    }
}
