//! Java consumers in our group: an entry that one of them acknowledges without an order becomes a definite refusal, and an
//! entry that any consumer keeps for too long is claimed.
//!
//! A Java consumer acknowledges an entry after its transaction, whether it committed the order or dropped it (the user's lock
//! was busy, there is an order row, or nothing is left), and deletes no entry. So an entry from after we joined that was
//! delivered and is not pending has an order or was dropped. We write its refusal to find out: the primary key lets only one
//! of the two exist.
//!
//! We measure ourselves how long a consumer has kept an entry. Redis' idle time does not tell: a Java node asks for its
//! unfinished entries again and again, which resets it, and it stands still after Redis' clock was stepped back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use redis::streams::{StreamInfoConsumersReply, StreamInfoGroupsReply, StreamPendingCountReply};
use redis::{AsyncCommands, Value};
use tokio::time::Instant;

use super::replies::{Ask, Entry, Mark, by_sale, entries};
use super::{CONSUMER_PREFIX, GROUP, Member};
use crate::error::Error;

/// Pause between two rounds.
const ROUND: Duration = Duration::from_millis(500);

/// Without Java consumers in the group, only every so many rounds look for dropped entries.
const LOOK_EVERY: u32 = 20;

/// Entries in one page.
const PAGE: usize = 1000;

/// Entries of other consumers: whose each is, and since when.
type ForeignEntries = HashMap<String, (String, Instant)>;

impl Member {
    pub(super) async fn watch_others(self: Arc<Self>) {
        let (mut kept, mut round, mut logged) = (ForeignEntries::default(), 0, false);
        while !self.is_stopped() {
            match self.watch_once(&mut kept, round % LOOK_EVERY == 0).await {
                Ok(()) => logged = false,
                Err(error) if !logged => {
                    logged = true;
                    tracing::warn!(%error, "other consumers of the stream are not watched; trying again");
                }
                Err(_) => {}
            }
            round += 1;
            self.sleep(ROUND).await;
        }
    }

    async fn watch_once(&self, kept: &mut ForeignEntries, always: bool) -> Result<(), Error> {
        let consumers: StreamInfoConsumersReply = self
            .redis
            .clone()
            .xinfo_consumers(&*self.keys.stream, GROUP)
            .await?;
        let mut consumers = consumers.consumers.iter();
        if !always && consumers.all(|consumer| consumer.name.starts_with(CONSUMER_PREFIX)) {
            return Ok(());
        }
        let began = Instant::now();
        let mark = self.view(Ask::Tidy("")).await?.mark;
        // Before the entries: then one that is delivered meanwhile is not taken for a dropped one.
        let delivered = self.last_delivered().await?;
        let (mut after, mut all) = (String::new(), Vec::new());
        loop {
            let view = self.view(Ask::Page(&after)).await?;
            let Some(last) = view.entries.last().filter(|_| view.more) else {
                break;
            };
            after.clone_from(&last.id);
            all.extend(view.entries);
        }
        let pending = self.pending().await?;
        // Under one mark: a group that was lost and created again meanwhile has nothing pending.
        if self.view(Ask::Tidy("")).await?.mark != mark {
            return Ok(());
        }
        let names: HashSet<&str> = pending.iter().map(|(id, _)| id.as_str()).collect();
        let is_delivered = |entry: &Entry| order_of(&entry.id) <= order_of(&delivered);
        let join = mark
            .text
            .rsplit(' ')
            .next()
            .map(order_of)
            .unwrap_or_default();
        all.retain(|entry| {
            is_delivered(entry) && order_of(&entry.id) > join && !names.contains(entry.id.as_str())
        });
        for dropped in all.chunks(PAGE) {
            self.refuse_dropped(dropped.to_vec(), &mark).await;
        }
        let others = pending.iter().filter(|(_, of)| *of != self.consumer);
        self.claim_kept(kept, others.cloned().collect(), mark, began)
            .await
    }

    async fn last_delivered(&self) -> Result<String, Error> {
        let groups: StreamInfoGroupsReply =
            self.redis.clone().xinfo_groups(&*self.keys.stream).await?;
        let group = groups.groups.into_iter().find(|group| group.name == GROUP);
        Ok(group.map_or("0-0".to_owned(), |group| group.last_delivered_id))
    }

    /// Every pending entry, and whose it is.
    async fn pending(&self) -> Result<Vec<(String, String)>, Error> {
        let (mut redis, mut all, mut from) = (self.redis.clone(), Vec::new(), "-".to_owned());
        loop {
            let stream = &*self.keys.stream;
            let page: StreamPendingCountReply = redis
                .xpending_count(stream, GROUP, &from, "+", PAGE)
                .await?;
            let Some(last) = page.ids.last() else {
                return Ok(all);
            };
            from = format!("({}", last.id);
            all.extend(page.ids.into_iter().map(|entry| (entry.id, entry.consumer)));
        }
    }

    /// Claims what another consumer has had for too long, and decides it.
    async fn claim_kept(
        &self,
        kept: &mut ForeignEntries,
        pending: Vec<(String, String)>,
        mark: Mark,
        began: Instant,
    ) -> Result<(), Error> {
        let overdue = overdue(kept, pending, began, self.config.stream_min_idle);
        for ids in overdue.chunks(PAGE) {
            let mut claim = redis::cmd("XCLAIM");
            claim
                .arg(&*self.keys.stream)
                .arg(GROUP)
                .arg(&self.consumer)
                .arg(0)
                .arg(ids);
            let begun = Instant::now();
            let claimed: Value = claim.query_async(&mut self.redis.clone()).await?;
            let claimed = entries(&claimed);
            tracing::warn!(
                entries = claimed.len(),
                "entries that another consumer kept are claimed"
            );
            self.stats.claimed.fetch_add(claimed.len() as u64, Relaxed);
            for entries in by_sale(claimed).into_values() {
                // An entry that is not decided stays with us until any instance claims it.
                self.decide(entries, &mark, begun).await;
            }
        }
        Ok(())
    }
}

/// Takes note of what is pending now; returns what the same consumer has had for `limit`.
fn overdue(
    kept: &mut ForeignEntries,
    pending: Vec<(String, String)>,
    now: Instant,
    limit: Duration,
) -> Vec<String> {
    let mut before = std::mem::take(kept);
    let mut overdue = Vec::new();
    for (id, consumer) in pending {
        let since = before
            .remove(&id)
            .filter(|(of, _)| *of == consumer)
            .map_or(now, |(_, at)| at);
        if now - since >= limit {
            overdue.push(id);
        } else {
            kept.insert(id, (consumer, since));
        }
    }
    overdue
}

/// The order of entry ids.
fn order_of(id: &str) -> (u64, u64) {
    let (ms, number) = id.split_once('-').unwrap_or((id, "0"));
    (ms.parse().unwrap_or(0), number.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_overdue_once_one_consumer_has_had_it_for_long() {
        let pending = |consumer: &str| vec![("1-0".to_owned(), consumer.to_owned())];
        let (mut kept, limit, now) = (
            ForeignEntries::default(),
            Duration::from_secs(10),
            Instant::now(),
        );
        assert!(overdue(&mut kept, pending("c1"), now, limit).is_empty());
        // Another consumer begins anew.
        assert!(overdue(&mut kept, pending("c2"), now + limit, limit).is_empty());
        assert_eq!(
            overdue(&mut kept, pending("c2"), now + 2 * limit, limit),
            ["1-0"]
        );
        assert!(overdue(&mut kept, Vec::new(), now, limit).is_empty());
        assert!(kept.is_empty());
    }
}
