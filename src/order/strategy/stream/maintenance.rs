//! Maintenance of the stream: a round that every node makes four times a second. It reports that the consumer is alive,
//! and notices when Redis has lost its data or was started anew. Then a new *epoch* begins:
//! stock counters are rebuilt, and each node adds again what it had admitted and the database does not have.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::entry_id::EntryId;
use super::heartbeats::Heartbeats;
use super::lease::DEAD_AFTER;
use super::names::{CONSUMER_PREFIX, EPOCH_GROUP, GROUP, STATUS_TTL_S};
use super::node::StreamNode;
use crate::error::Error;
use crate::keys::record::record;
use crate::order::model::NewOrder;
use crate::scripts;

/// Pause between two rounds.
const ROUND: Duration = Duration::from_millis(250);

/// How often entries of dead consumers are reclaimed.
const RECLAIM_EVERY: Duration = Duration::from_secs(1);

/// Entries that are taken over at a time from one consumer: Lua can unpack some thousands.
const RECLAIMED_AT_ONCE: usize = 500;

/// Orders that are added again by one script.
const REPLAYED_AT_ONCE: usize = 500;

impl StreamNode {
    /// Makes round after round until the process stops.
    pub(super) async fn maintain(self: Arc<Self>) {
        let mut logged = false;
        let (mut heartbeats, mut reclaimed) = (Heartbeats::default(), Instant::now());
        while !self.is_stopped() {
            let mut round = self.maintain_once().await;
            if round.is_ok() && reclaimed.elapsed() >= RECLAIM_EVERY {
                reclaimed = Instant::now();
                round = self.reclaim(&mut heartbeats).await;
            }
            match round {
                Ok(()) => logged = false,
                Err(error) if !logged => {
                    logged = true;
                    tracing::warn!(%error, "the stream cannot be maintained; trying again");
                }
                Err(_) => {}
            }
            tokio::select! {
                () = self.sleep(ROUND) => {}
                () = self.maintenance_due.notified() => {}
            }
        }
    }

    /// One round.
    pub(super) async fn maintain_once(&self) -> Result<(), Error> {
        let sent = Instant::now();
        let reply: Vec<String> = scripts::STREAM_MAINTAIN
            .key(&self.keys.stream)
            .key(&self.keys.epoch)
            .key(&self.keys.consumers)
            .key(&self.keys.dead)
            .key(&self.keys.held)
            .arg(GROUP)
            .arg(&self.consumer)
            .arg(EPOCH_GROUP)
            .invoke_async(&mut self.redis.clone())
            .await?;
        let words: Vec<&str> = reply.iter().map(String::as_str).collect();
        let ["current", epoch, bound, waiting, pending, dead, now] = words[..] else {
            return self.begin_epoch().await;
        };
        self.enter_epoch(epoch);
        self.lease.renew(sent);
        self.replay(epoch).await?;
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);
        let bound = EntryId::parse(bound).unwrap_or_default();
        let unconfirmed = self.unconfirmed.forget_below(epoch, bound);
        let stats = &self.stats;
        stats.unconfirmed.store(unconfirmed as u64, Relaxed);
        stats.waiting.store(number(waiting), Relaxed);
        stats.pending.store(number(pending), Relaxed);
        stats.dead_letters.store(number(dead), Relaxed);
        let oldest = if number(waiting) > 0 { bound.ms } else { number(now) };
        stats.lag_ms.store(number(now).saturating_sub(oldest), Relaxed);
        Ok(())
    }

    /// Begins a new epoch.
    async fn begin_epoch(&self) -> Result<(), Error> {
        let keys = &self.keys;
        let mut script = scripts::STREAM_NEW_EPOCH.key(&keys.stream);
        script
            .key(&keys.epoch)
            .key(&keys.exact_counters)
            .key(&keys.complete_claims)
            .key(&keys.held)
            .arg(GROUP)
            .arg(EPOCH_GROUP);
        let epoch: String = script.invoke_async(&mut self.redis.clone()).await?;
        tracing::warn!(
            stream = keys.stream,
            epoch,
            "a new epoch: Redis was restarted, replaced or lost its data, or the stream"
        );
        self.enter_epoch(&epoch);
        // The record may be lost too.
        let style = self.keys.style();
        if let Err(error) = record(&mut self.redis.clone(), style).await {
            tracing::error!("{error:#}");
        }
        self.replay(&epoch).await
    }

    /// Adds again what this node admitted in another epoch, unless it is in the database.
    async fn replay(&self, epoch: &str) -> Result<(), Error> {
        let orders = self.unconfirmed.of_other_epochs(epoch);
        for orders in orders.chunks(REPLAYED_AT_ONCE) {
            let ids: Vec<NewOrder> = orders.iter().map(|(order, _)| *order).collect();
            let buyers = self.store.buyers_of(&ids).await?;
            let (committed, lost): (Vec<_>, Vec<_>) =
                orders.iter().copied().partition(|(order, _)| buyers.contains_key(&order.id));
            committed.iter().for_each(|(order, _)| self.unconfirmed.forget(order.id));
            if lost.is_empty() {
                continue;
            }
            let mut script = scripts::STREAM_REPLAY.key(&self.keys.stream);
            script.key(&self.keys.exact_counters).arg(STATUS_TTL_S);
            for (order, entry) in &lost {
                script.arg(order.id).arg(order.buyer.user_id).arg(order.buyer.voucher_id);
                script.arg(entry);
            }
            let buyers = lost.iter().map(|(order, _)| order.buyer);
            let buyers = buyers.map(|buyer| (buyer.user_id, buyer.voucher_id));
            self.keys.declare(&mut script, buyers);
            let entries: Vec<String> = script.invoke_async(&mut self.redis.clone()).await?;
            let epoch: Arc<str> = epoch.into();
            for ((order, _), entry) in lost.iter().zip(&entries) {
                match EntryId::parse(entry) {
                    Some(entry) => self.unconfirmed.keep(&epoch, [(*order, entry)]),
                    // It was refused.
                    None => self.unconfirmed.forget(order.id),
                }
            }
            self.stats.replayed.fetch_add(lost.len() as u64, Relaxed);
            tracing::warn!(orders = lost.len(), "orders that Redis may have lost were added again");
        }
        Ok(())
    }

    /// Takes over what dead consumers hold or have pending.
    async fn reclaim(&self, heartbeats: &mut Heartbeats) -> Result<(), Error> {
        let consumers: Vec<String> = scripts::STREAM_CONSUMERS
            .key(&self.keys.stream)
            .key(&self.keys.consumers)
            .key(&self.keys.held)
            .arg(GROUP)
            .arg(&self.consumer)
            .arg(CONSUMER_PREFIX)
            .invoke_async(&mut self.redis.clone())
            .await?;
        let consumers = consumers.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
        let dead = heartbeats.dead(consumers, DEAD_AFTER, Instant::now());
        if dead.is_empty() {
            return Ok(());
        }
        let mut script = scripts::STREAM_RECLAIM.key(&self.keys.stream);
        script.key(&self.keys.consumers).key(&self.keys.held);
        script.arg(GROUP).arg(&self.consumer).arg(RECLAIMED_AT_ONCE);
        for (consumer, heartbeat) in &dead {
            script.arg(consumer).arg(heartbeat);
        }
        let reclaimed: u64 = script
            .invoke_async(&mut self.redis.clone())
            .await
            // It may have run: then they are pending under our name, and no other node will take them over.
            .inspect_err(|_| self.read_own_pending_soon())?;
        if reclaimed > 0 {
            tracing::warn!(entries = reclaimed, "entries of another consumer are taken over");
            self.stats.taken_over.fetch_add(reclaimed, Relaxed);
            self.read_own_pending_soon();
        }
        Ok(())
    }
}
