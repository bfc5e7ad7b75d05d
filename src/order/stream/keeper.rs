//! The round that every node makes four times a second: it gives a sign of life, trims what is decided, and
//! notices when Redis has lost its data or was started anew. Then a new *epoch* begins: gates are built
//! anew, and each node adds again what it had admitted and the database does not have.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::entry::position;
use super::{CONSUMERS, DEAD, EPOCH, GROUP, Inner, PREFIX, REMEMBERED_S, STREAM, gate, scripts};
use crate::error::Error;

/// Pause between two rounds.
const ROUND: Duration = Duration::from_millis(250);

/// How often it is looked for entries of consumers that are gone.
const RECLAIM_EVERY: Duration = Duration::from_secs(1);

/// Without a sign of life for so long, a consumer of our kind is gone. If it only stood still, its entries
/// are decided twice, which the database notices.
const GONE_AFTER: Duration = Duration::from_secs(5);

/// Orders that are added again by one script.
const REPLAYED_AT_ONCE: usize = 500;

impl Inner {
    /// Keeps on until the process stops.
    pub(super) async fn keep_on(self: Arc<Self>) {
        let mut told = false;
        let mut reclaimed = Instant::now();
        while !self.stopped() {
            let mut round = self.keep().await;
            if round.is_ok() && reclaimed.elapsed() >= RECLAIM_EVERY {
                reclaimed = Instant::now();
                round = self.reclaim().await;
            }
            match round {
                Ok(()) => told = false,
                Err(fault) if !told => {
                    told = true;
                    tracing::warn!(%fault, "the stream cannot be looked after; trying again");
                }
                Err(_) => {}
            }
            tokio::select! {
                () = self.pause(ROUND) => {}
                () = self.look.notified() => {}
            }
        }
    }

    /// One round.
    pub(super) async fn keep(&self) -> Result<(), Error> {
        let said: Vec<String> = scripts::KEEP
            .key(STREAM)
            .key(EPOCH)
            .key(CONSUMERS)
            .key(DEAD)
            .arg(GROUP)
            .arg(&self.name)
            .invoke_async(&mut self.redis.clone())
            .await?;
        let words: Vec<&str> = said.iter().map(String::as_str).collect();
        let ["kept", epoch, bound, waiting, pending, dead, now] = words[..] else {
            return self.renew().await;
        };
        self.replay(epoch).await?;
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);
        let left = self.outstanding.decided_below(epoch, bound);
        let stats = &self.stats;
        stats.outstanding.set(left as u64);
        stats.waiting.set(number(waiting));
        stats.pending.set(number(pending));
        stats.dead.set(number(dead));
        let oldest = if number(waiting) > 0 { position(bound).0 } else { number(now) };
        stats.lag_ms.set(number(now).saturating_sub(oldest));
        Ok(())
    }

    /// Begins a new epoch.
    async fn renew(&self) -> Result<(), Error> {
        let sales = self.store.stream_sales().await?;
        let mut script = scripts::RENEW.key(STREAM);
        script.key(EPOCH).arg(GROUP);
        for sale in &sales {
            script.key(gate::stock_key(*sale));
        }
        let epoch: String = script.invoke_async(&mut self.redis.clone()).await?;
        tracing::warn!(epoch, sales = sales.len(), "a new Redis, or one that lost its data");
        self.replay(&epoch).await
    }

    /// Adds again what this node admitted in another epoch, unless it is in the database.
    async fn replay(&self, epoch: &str) -> Result<(), Error> {
        self.enter(epoch);
        let orders = self.outstanding.of_other_epochs(epoch);
        for orders in orders.chunks(REPLAYED_AT_ONCE) {
            let known = self.store.known(orders).await?;
            let (decided, lost): (Vec<_>, Vec<_>) =
                orders.iter().copied().partition(|order| known.contains_key(&order.id));
            decided.iter().for_each(|order| self.outstanding.forget(order.id));
            if lost.is_empty() {
                continue;
            }
            let mut script = scripts::REPLAY.key(STREAM);
            script.arg(REMEMBERED_S);
            for order in &lost {
                script.arg(order.id).arg(order.buyer.user_id).arg(order.buyer.voucher_id);
            }
            let entries: Vec<String> = script.invoke_async(&mut self.redis.clone()).await?;
            for (order, entry) in lost.iter().zip(&entries) {
                if entry.is_empty() {
                    self.outstanding.forget(order.id);
                } else {
                    self.outstanding.keep(*order, epoch.to_owned(), entry);
                }
            }
            self.stats.replayed.add(lost.len() as u64);
            tracing::warn!(
                orders = lost.len(),
                "orders that Redis may have lost are in the stream"
            );
        }
        Ok(())
    }

    /// Takes over what is left behind by consumers that are gone.
    async fn reclaim(&self) -> Result<(), Error> {
        let taken: u64 = scripts::RECLAIM
            .key(STREAM)
            .key(CONSUMERS)
            .arg(GROUP)
            .arg(&self.name)
            .arg(PREFIX)
            .arg(GONE_AFTER.as_millis() as u64)
            .arg(self.limits.min_idle.as_millis() as u64)
            .arg(self.limits.batch)
            .invoke_async(&mut self.redis.clone())
            .await
            // It may have run: then they are pending under our name, and nobody else will take them.
            .inspect_err(|_| self.read_own_again())?;
        if taken > 0 {
            tracing::warn!(entries = taken, "entries of another consumer are taken over");
            self.stats.taken_over.add(taken);
            self.read_own_again();
        }
        Ok(())
    }
}
