//! Java consumers in our group: an entry that one of them acknowledges without an order becomes a definite refusal, and an
//! entry that any consumer keeps for too long is claimed.
//!
//! A Java consumer acknowledges an entry after its transaction, whether it committed the order or dropped it (the user's lock
//! was busy, there is an order row, or nothing is left), and deletes no entry. So an entry from after we joined that was
//! delivered and is not pending has an order or was dropped. We write its refusal to find out: the primary key lets only one
//! of the two exist.
//!
//! We measure ourselves how long a consumer has kept an entry, be it a Java node's, another instance's or our own. Redis' idle
//! time does not tell: a Java node asks for its unfinished entries again and again, which resets it, and it stands still after
//! Redis' clock was stepped back. What is kept for too long is made idle, so that the next claim takes it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use redis::AsyncCommands;
use redis::streams::{StreamInfoConsumersReply, StreamInfoGroupsReply, StreamPendingCountReply};
use tokio::time::Instant;

use super::replies::Ask;
use super::{CONSUMER_PREFIX, GROUP, Member};
use crate::error::Error;

/// Pause between two rounds.
const ROUND: Duration = Duration::from_millis(500);

/// Pause between two looks at the entries if the group has no Java consumers; shorter if an entry may be idle for less.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Entries in one page.
const PAGE: usize = 1000;

/// Who has a pending entry.
#[derive(Clone, Debug, PartialEq)]
struct Holder {
    consumer: String,
    /// How often the entry was delivered; `None` for a Java node, which asks again for what it has.
    deliveries: Option<usize>,
}

/// Pending entries: whose each is, and since when.
type KeptEntries = HashMap<String, (Holder, Instant)>;

impl Member {
    pub(super) async fn watch_others(self: Arc<Self>) {
        let look_every = LOOK_EVERY.min(self.config.stream_min_idle);
        let mut kept = KeptEntries::default();
        let mut look_due = Instant::now();
        let mut logged = false;
        while !self.is_stopped() {
            let is_due = Instant::now() >= look_due;
            if is_due {
                look_due = Instant::now() + look_every;
            }
            match self.watch_once(&mut kept, is_due).await {
                Ok(()) => logged = false,
                Err(error) if !logged => {
                    logged = true;
                    tracing::warn!(%error, "other consumers of the stream are not watched; trying again");
                }
                Err(_) => {}
            }
            self.sleep(ROUND).await;
        }
    }

    /// One round. In a group without Java consumers, looks at the entries only if `always`.
    async fn watch_once(&self, kept: &mut KeptEntries, always: bool) -> Result<(), Error> {
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
        let mut after = String::new();
        let mut all = Vec::new();
        loop {
            let view = self.view(Ask::Page(&after)).await?;
            let Some(last) = view.entries.last().filter(|_| view.has_more) else {
                break;
            };
            after.clone_from(&last.id);
            all.extend(view.entries);
        }
        let pending = self.pending().await?;
        // All must be of one mark: a group that was lost and created again meanwhile has nothing pending.
        if self.view(Ask::Tidy("")).await?.mark != mark {
            return Ok(());
        }
        let names: HashSet<&str> = pending.iter().map(|(id, _)| id.as_str()).collect();
        let join = id_numbers(&mark.join);
        let delivered = id_numbers(&delivered);
        all.retain(|entry| {
            let id = id_numbers(&entry.id);
            join < id && id <= delivered && !names.contains(entry.id.as_str())
        });
        for dropped in all.chunks(PAGE) {
            self.refuse_dropped(dropped.to_vec(), &mark).await;
        }
        let overdue = overdue(kept, pending, began, self.config.stream_min_idle);
        if !overdue.is_empty() {
            let entries = overdue.len();
            tracing::warn!(entries, "entries that a consumer kept are taken over");
        }
        for ids in overdue.chunks(PAGE) {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            self.set_idle(&ids, self.config.stream_min_idle).await?;
        }
        Ok(())
    }

    async fn last_delivered(&self) -> Result<String, Error> {
        let groups: StreamInfoGroupsReply =
            self.redis.clone().xinfo_groups(&*self.keys.stream).await?;
        let group = groups.groups.into_iter().find(|group| group.name == GROUP);
        Ok(group.map_or("0-0".to_owned(), |group| group.last_delivered_id))
    }

    /// Every pending entry, and whose it is.
    async fn pending(&self) -> Result<Vec<(String, Holder)>, Error> {
        let mut redis = self.redis.clone();
        let mut all = Vec::new();
        let mut from = "-".to_owned();
        loop {
            let stream = &*self.keys.stream;
            let page: StreamPendingCountReply = redis
                .xpending_count(stream, GROUP, &from, "+", PAGE)
                .await?;
            let Some(last) = page.ids.last() else {
                return Ok(all);
            };
            from = format!("({}", last.id);
            all.extend(page.ids.into_iter().map(|entry| {
                let is_ours = entry.consumer.starts_with(CONSUMER_PREFIX);
                let holder = Holder {
                    deliveries: is_ours.then_some(entry.times_delivered),
                    consumer: entry.consumer,
                };
                (entry.id, holder)
            }));
        }
    }
}

/// Takes note of what is pending now; returns what the same holder has had for `limit`.
fn overdue(
    kept: &mut KeptEntries,
    pending: Vec<(String, Holder)>,
    now: Instant,
    limit: Duration,
) -> Vec<String> {
    let mut before = std::mem::take(kept);
    let mut overdue = Vec::new();
    for (id, holder) in pending {
        let since = before
            .remove(&id)
            .filter(|(of, _)| *of == holder)
            .map_or(now, |(_, at)| at);
        if now - since >= limit {
            overdue.push(id);
        } else {
            kept.insert(id, (holder, since));
        }
    }
    overdue
}

/// The two numbers of an entry's id, by which ids are compared.
fn id_numbers(id: &str) -> (u64, u64) {
    let (ms, number) = id.split_once('-').unwrap_or((id, "0"));
    (ms.parse().unwrap_or(0), number.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_overdue_once_one_holder_has_had_it_for_long() {
        let pending = |consumer: &str, deliveries| {
            let consumer = consumer.to_owned();
            let holder = Holder {
                consumer,
                deliveries,
            };
            vec![("1-0".to_owned(), holder)]
        };
        let mut kept = KeptEntries::default();
        let limit = Duration::from_secs(10);
        let now = Instant::now();
        let mut overdue_after =
            |limits: u32, pending| overdue(&mut kept, pending, now + limits * limit, limit);
        assert!(overdue_after(0, pending("c1", None)).is_empty());
        // Another consumer begins anew, and so does one of ours to which it is delivered again.
        assert!(overdue_after(1, pending("seckill-1", Some(1))).is_empty());
        assert!(overdue_after(2, pending("seckill-1", Some(2))).is_empty());
        assert_eq!(overdue_after(3, pending("seckill-1", Some(2))), ["1-0"]);
        assert!(overdue_after(4, Vec::new()).is_empty());
        assert!(kept.is_empty());
    }
}
