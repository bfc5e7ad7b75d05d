//! Rebuilds a sale's stock counter and claims in Redis from the database, when the counter is missing or was found to
//! be wrong. While there is no counter, nothing is admitted.
//!
//! The counter is the stock in the database, less what is in flight: entries that are in the stream and not in the
//! database. Both must be read of one moment, while consumers go on. So whatever changes either (an entry is
//! acknowledged, stock is added or returned) deletes the token under which a counter is being rebuilt, and the rebuild
//! is repeated.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::FutureExt;
use redis::{AsyncCommands, Value};

use super::entry::{Entry, entries, position};
use super::names::{EPOCH, GROUP, STREAM, claims_key, rebuild_key, stock_key};
use super::node::StreamNode;
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};
use crate::scripts;

/// How long after a loss no counter is rebuilt: by then every node has added again what it had admitted.
const GRACE: Duration = Duration::from_secs(1);

/// How long a rebuild may take before another node may try.
const TOKEN_LIFE: Duration = Duration::from_secs(5);

/// Pause before the next try of a rebuild.
const PAUSE: Duration = Duration::from_millis(50);

/// Buyers of one sale whose claims can be rebuilt.
const CLAIMS: u32 = 10_000_000;

/// Entries or claims in one command.
const PAGE: usize = 1000;

impl StreamNode {
    /// Waits until the sale has a stock counter, which this node rebuilds if no other does. The rebuild goes on when
    /// this future is dropped: with many buyers in the database it may take longer than a purchase may.
    pub(super) async fn rebuild_stock_counter(
        self: &Arc<Self>,
        voucher_id: i64,
    ) -> Result<(), Error> {
        let rebuild = self.rebuilds.of_sale(voucher_id).join(|| {
            let task = self.tasks.spawn(self.clone().rebuild_until_done(voucher_id));
            let failed = |error| Err(Error::Internal(format!("stock counter task: {error}")));
            task.map(move |done| done.unwrap_or_else(failed)).boxed().shared()
        });
        tokio::time::timeout(self.limits.timeout, rebuild)
            .await
            .unwrap_or(Err(Error::Unavailable("the sale's stock counter")))
    }

    async fn rebuild_until_done(self: Arc<Self>, voucher_id: i64) -> Result<(), Error> {
        while !self.rebuild_once(voucher_id).await? {
            if self.is_stopped() {
                return Err(Error::Unavailable("the sale's stock counter"));
            }
            self.sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Deletes the stock counter, so that it is rebuilt.
    pub(super) async fn delete_stock_counter(&self, voucher_id: i64) -> Result<(), Error> {
        tracing::warn!(
            voucher_id,
            "the stock counter is empty and the database is not: rebuilding it"
        );
        Ok(self.redis.clone().del::<_, ()>(stock_key(voucher_id)).await?)
    }

    /// Removes a claim for which there is no order.
    pub(super) async fn drop_claim(&self, buyer: Buyer) -> Result<(), Error> {
        tracing::warn!(
            user_id = buyer.user_id,
            voucher_id = buyer.voucher_id,
            "a claim without an order is dropped"
        );
        let claims = claims_key(buyer.voucher_id);
        Ok(self.redis.clone().srem::<_, _, ()>(claims, buyer.user_id).await?)
    }

    /// Whether the database has stock left though the counter is empty and nothing waits in the stream.
    /// Checks once a second; in between the answer is no.
    pub(super) async fn has_stranded_stock(&self, buyer: Buyer) -> Result<bool, Error> {
        if !self.rebuilds.of_sale(buyer.voucher_id).is_check_due() {
            return Ok(false);
        }
        Ok(self.store.buyer_status(buyer).await?.is_some_and(|status| status.stock > 0))
    }

    /// Tries to rebuild the counter once; `false` if it must be tried again.
    async fn rebuild_once(&self, voucher_id: i64) -> Result<bool, Error> {
        let token = uuid::Uuid::new_v4().to_string();
        let begun: String = scripts::STREAM_REBUILD_BEGIN
            .key(stock_key(voucher_id))
            .key(rebuild_key(voucher_id))
            .key(EPOCH)
            .arg(&token)
            .arg(TOKEN_LIFE.as_millis() as u64)
            .arg(GRACE.as_millis() as u64)
            .invoke_async(&mut self.redis.clone())
            .await?;
        match begun.as_str() {
            "exists" => return Ok(true),
            "begun" => {}
            _ => return Ok(false),
        }
        let in_flight = self.in_flight(voucher_id).await?;
        let (stock, committed) = self
            .store
            .stock_and_committed(voucher_id, &in_flight)
            .await?
            .ok_or(Error::VoucherNotFound)?;
        let uncommitted = in_flight.len() as i64 - committed;
        let buyers = self.store.buyers(voucher_id, CLAIMS).await?;
        let buyers = buyers.ok_or_else(|| Error::Internal(format!("over {CLAIMS} buyers")))?;
        let mut claims: HashSet<i64> = buyers.into_iter().collect();
        claims.extend(in_flight.iter().map(|order| order.buyer.user_id));
        let new_claims = format!("seckill:rebuild:{voucher_id}:{token}");
        self.write_claims(&new_claims, &claims).await?;
        let rebuilt: i64 = scripts::STREAM_REBUILD_END
            .key(stock_key(voucher_id))
            .key(rebuild_key(voucher_id))
            .key(claims_key(voucher_id))
            .key(&new_claims)
            .arg(&token)
            .arg(stock - uncommitted)
            .invoke_async(&mut self.redis.clone())
            .await?;
        if rebuilt == 1 {
            self.stats.rebuilt.fetch_add(1, Relaxed);
            tracing::info!(voucher_id, stock, uncommitted, "a stock counter was rebuilt");
        }
        Ok(rebuilt == 1)
    }

    async fn write_claims(&self, key: &str, claims: &HashSet<i64>) -> Result<(), Error> {
        let claims: Vec<i64> = claims.iter().copied().collect();
        for page in claims.chunks(PAGE) {
            let ttl = 12 * TOKEN_LIFE.as_secs() as i64;
            redis::pipe()
                .sadd(key, page)
                .ignore()
                // In case the rebuild does not come to use it.
                .expire(key, ttl)
                .ignore()
                .query_async::<()>(&mut self.redis.clone())
                .await?;
        }
        Ok(())
    }

    /// The orders of a sale that are in the stream and not acknowledged: delivered or not.
    async fn in_flight(&self, voucher_id: i64) -> Result<Vec<NewOrder>, Error> {
        let mut redis = self.redis.clone();
        // Before the pending ones are read: an entry that is delivered in between is then in both.
        let delivered = self.last_delivered().await?;
        let mut orders: Vec<(Entry, NewOrder)> = Vec::new();
        let mut from = "-".to_owned();
        loop {
            let page: Value = redis::cmd("XRANGE")
                .arg(STREAM)
                .arg(&from)
                .arg("+")
                .arg("COUNT")
                .arg(PAGE)
                .query_async(&mut redis)
                .await?;
            let page = entries(&page);
            let Some(last) = page.last() else { break };
            from = format!("({}", last.id);
            orders.extend(page.into_iter().filter_map(|entry| {
                let order = entry.order().filter(|order| order.buyer.voucher_id == voucher_id)?;
                Some((entry, order))
            }));
        }
        let pending = self.pending_entries().await?;
        orders.retain(|(entry, _)| {
            position(&entry.id) > delivered || pending.contains(&position(&entry.id))
        });
        Ok(orders.into_iter().map(|(_, order)| order).collect())
    }

    async fn last_delivered(&self) -> Result<(u64, u64), Error> {
        let groups: Vec<HashMap<String, Value>> = redis::cmd("XINFO")
            .arg("GROUPS")
            .arg(STREAM)
            .query_async(&mut self.redis.clone())
            .await?;
        let text = |group: &HashMap<String, Value>, name: &str| match group.get(name) {
            Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        };
        let ours = groups.iter().find(|group| text(group, "name") == GROUP);
        Ok(ours.map(|group| position(&text(group, "last-delivered-id"))).unwrap_or_default())
    }

    async fn pending_entries(&self) -> Result<HashSet<(u64, u64)>, Error> {
        let mut pending = HashSet::new();
        let mut from = "-".to_owned();
        loop {
            let page: Vec<(String, String, i64, i64)> = redis::cmd("XPENDING")
                .arg(STREAM)
                .arg(GROUP)
                .arg(&from)
                .arg("+")
                .arg(PAGE)
                .query_async(&mut self.redis.clone())
                .await?;
            let Some((last, ..)) = page.last() else { return Ok(pending) };
            from = format!("({last}");
            pending.extend(page.iter().map(|(id, ..)| position(id)));
        }
    }
}
