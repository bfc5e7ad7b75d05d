//! Rebuilds a sale's stock counter and claims in Redis from the database, when the counter is missing or was found to
//! be wrong. Meanwhile the old counter stays in its place, because a Java node's script needs it; our own nodes admit
//! nothing until the sale is in the set of those whose counter is exact.
//!
//! The counter is the stock in the database, less what is in flight: entries of the stream that are not in the
//! database. Both must be of one moment, while consumers go on. Entries first, then the stock together with which of
//! those entries are committed: an order that is committed in between is in both, or in neither. So is not one that is
//! refused, or that was admitted after the entries were read; and stock is added and returned. Each of these deletes the
//! token under which a counter is being rebuilt, and the rebuild is repeated. What another node's script admitted after the
//! entries were read, and is in the stream still, is counted when the new number is put in place.
//!
//! The claims of millions of buyers take seconds. They are only written where they may be incomplete, page by page, into
//! the set in place, and before the token is taken: a claim too many (its order was cancelled just then) is dropped when
//! its buyer meets it, while one that is missing would be a second yes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use backon::{ConstantBuilder, Retryable};
use futures_util::FutureExt;
use redis::{AsyncCommands, Value};

use super::entry::entries;
use super::entry_id::EntryId;
use super::names::STATUS_TTL_S;
use super::node::StreamNode;
use super::rebuilds::Rebuild;
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};
use crate::order::store::rebuild::SaleSnapshot;
use crate::scripts;

/// How long after a loss no counter is rebuilt: by then every node has added again what it had admitted.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// How long a step of a rebuild may take before another node may try.
const TOKEN_LIFE: Duration = Duration::from_secs(5);

/// Pause before the next try of a rebuild.
const PAUSE: Duration = Duration::from_millis(50);

/// Entries or claims in one command.
const PAGE: usize = 1000;

/// Buyers in one query.
const BUYERS: u32 = 10_000;

/// A page of claims that could not be read or written is tried again, for 5 s and the time limits of the tries.
const PAGE_RETRIES: ConstantBuilder =
    ConstantBuilder::new().with_delay(Duration::from_millis(250)).with_max_times(20);

/// How often entries that came in between are read again, before they are counted without a look at the database.
const READINGS: u32 = 10;

/// A rebuild by this process.
struct Attempt {
    voucher_id: i64,
    token: String,
    /// The epoch in which the claims of all buyers were written by it; empty where they were not.
    claims_written_in: String,
}

/// The entries of a sale in the stream, and up to where it was read.
struct InFlight {
    /// By order id: an order that was added again may have two entries.
    orders: BTreeMap<i64, NewOrder>,
    last: EntryId,
}

impl StreamNode {
    /// Waits until the sale has a stock counter, which this node rebuilds if no other does. The rebuild goes on when
    /// this future is dropped: with many buyers in the database it may take longer than a purchase may.
    pub(super) async fn rebuild_stock_counter(
        self: &Arc<Self>,
        voucher_id: i64,
    ) -> Result<(), Error> {
        let rebuild = self.start_rebuild(voucher_id);
        tokio::time::timeout(self.limits.timeout, rebuild)
            .await
            .unwrap_or(Err(Error::Unavailable("the sale's stock counter")))
    }

    /// Starts to rebuild the counter in the background, unless this node is doing so already.
    pub(super) fn start_rebuild(self: &Arc<Self>, voucher_id: i64) -> Rebuild {
        self.rebuilds.of_sale(voucher_id).join(|| {
            let task = self.tasks.spawn(self.clone().rebuild_until_done(voucher_id));
            let failed = |error| Err(Error::Internal(format!("stock counter task: {error}")));
            let rebuild: Rebuild =
                task.map(move |done| done.unwrap_or_else(failed)).boxed().shared();
            // Whether it has ended is known once somebody has polled it, and perhaps nobody waits.
            let ended = rebuild.clone();
            self.tasks.spawn(async move {
                if let Err(error) = ended.await {
                    tracing::debug!(voucher_id, %error, "a stock counter is not rebuilt yet");
                }
            });
            rebuild
        })
    }

    async fn rebuild_until_done(self: Arc<Self>, voucher_id: i64) -> Result<(), Error> {
        let token = uuid::Uuid::new_v4().to_string();
        let mut attempt = Attempt { voucher_id, token, claims_written_in: String::new() };
        while !self.rebuild_once(&mut attempt).await? {
            if self.is_stopped() {
                return Err(Error::Unavailable("the sale's stock counter"));
            }
            self.sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Marks the stock counter as wrong, so that it is rebuilt.
    pub(super) async fn distrust_stock_counter(&self, voucher_id: i64) -> Result<(), Error> {
        tracing::warn!(
            voucher_id,
            "the stock counter is empty and the database is not: rebuilding it"
        );
        Ok(self.redis.clone().srem::<_, _, ()>(&self.keys.exact_counters, voucher_id).await?)
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
    async fn rebuild_once(&self, attempt: &mut Attempt) -> Result<bool, Error> {
        let begun = self.begin_rebuild(attempt).await?;
        let begun: Vec<&str> = begun.iter().map(String::as_str).collect();
        let epoch = match begun[..] {
            ["exists"] => return Ok(true),
            ["claims", epoch] => {
                self.write_claims(attempt).await?;
                epoch.clone_into(&mut attempt.claims_written_in);
                return Ok(false);
            }
            ["begun", epoch] => epoch,
            _ => return Ok(false),
        };
        let mut in_flight = InFlight { orders: BTreeMap::new(), last: EntryId::default() };
        for reading in 1..=READINGS {
            self.read_in_flight(attempt.voucher_id, &mut in_flight).await?;
            let ids = in_flight.orders.keys().copied();
            let sale = self.store.sale_snapshot(attempt.voucher_id, ids).await?;
            let sale = sale.ok_or(Error::VoucherNotFound)?;
            if attempt.claims_written_in == epoch
                && !self.claim_in_flight(attempt, &in_flight).await?
            {
                return Ok(false);
            }
            let last_reading = reading == READINGS;
            match self.end_rebuild(attempt, epoch, &in_flight, &sale, last_reading).await?.as_str()
            {
                "done" => return Ok(true),
                "moved" => {}
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    async fn begin_rebuild(&self, attempt: &Attempt) -> Result<Vec<String>, Error> {
        let (voucher_id, keys) = (attempt.voucher_id, &self.keys);
        let mut begin = scripts::STREAM_REBUILD_BEGIN.key(keys.stock(voucher_id));
        begin.key(keys.claims(voucher_id)).key(&keys.epoch);
        begin.key(&keys.exact_counters).key(&keys.complete_claims);
        begin.key(keys.rebuild(voucher_id)).key(keys.claims_rebuild(voucher_id)).key(&keys.stream);
        begin.arg(&attempt.token).arg(TOKEN_LIFE.as_millis() as u64);
        begin.arg(GRACE.as_millis() as u64).arg(voucher_id).arg(&attempt.claims_written_in);
        Ok(begin.invoke_async(&mut self.redis.clone()).await?)
    }

    /// Adds the claims of all buyers in the database to those that are there. A page that fails is tried again, so that one
    /// hiccup in minutes does not begin it all anew.
    async fn write_claims(&self, attempt: &Attempt) -> Result<(), Error> {
        let (mut after, mut written) = (0, 0);
        while !self.is_stopped() {
            let page = (|| self.write_page_of_claims(attempt, after)).retry(PAGE_RETRIES).await?;
            written += page.len();
            match page.last() {
                Some(last) if page.len() == BUYERS as usize => after = *last,
                _ => break,
            }
        }
        tracing::info!(voucher_id = attempt.voucher_id, written, "claims were written");
        Ok(())
    }

    /// The claims of the first buyers above `after`; returns these buyers.
    async fn write_page_of_claims(&self, attempt: &Attempt, after: i64) -> Result<Vec<i64>, Error> {
        let claims = self.keys.claims(attempt.voucher_id);
        let buyers = self.store.buyers_after(attempt.voucher_id, after, BUYERS).await?;
        let mut write = redis::pipe();
        for page in buyers.chunks(PAGE) {
            write.sadd(&claims, page).ignore();
        }
        // It is still being done.
        let life = TOKEN_LIFE.as_millis() as i64;
        write.pexpire(self.keys.claims_rebuild(attempt.voucher_id), life).ignore();
        write.query_async::<()>(&mut self.redis.clone()).await?;
        Ok(buyers)
    }

    /// Adds the claims of buyers in flight; `false` if one of them was resolved meanwhile.
    async fn claim_in_flight(
        &self,
        attempt: &Attempt,
        in_flight: &InFlight,
    ) -> Result<bool, Error> {
        let users: Vec<i64> = in_flight.orders.values().map(|order| order.buyer.user_id).collect();
        for page in users.chunks(PAGE) {
            let voucher_id = attempt.voucher_id;
            let mut write = scripts::STREAM_REBUILD_CLAIMS.key(self.keys.rebuild(voucher_id));
            write.key(self.keys.claims(voucher_id)).arg(&attempt.token).arg(page);
            if write.invoke_async::<i64>(&mut self.redis.clone()).await? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn end_rebuild(
        &self,
        attempt: &Attempt,
        epoch: &str,
        in_flight: &InFlight,
        sale: &SaleSnapshot,
        last_reading: bool,
    ) -> Result<String, Error> {
        let (voucher_id, keys) = (attempt.voucher_id, &self.keys);
        let uncommitted =
            in_flight.orders.keys().filter(|id| !sale.committed.contains(id)).count() as i64;
        let mut end = scripts::STREAM_REBUILD_END.key(&keys.stream);
        end.key(&keys.epoch).key(&keys.exact_counters).key(&keys.complete_claims);
        end.key(keys.stock(voucher_id)).key(keys.claims(voucher_id)).key(keys.returned(voucher_id));
        end.key(keys.rebuild(voucher_id)).key(keys.claims_rebuild(voucher_id));
        end.arg(&attempt.token).arg(epoch).arg(voucher_id).arg(sale.stock - uncommitted);
        end.arg(in_flight.last).arg(PAGE).arg(i32::from(last_reading)).arg(STATUS_TTL_S);
        let buyers: HashSet<i64> =
            in_flight.orders.values().map(|order| order.buyer.user_id).collect();
        for returned in &sale.pending_returns {
            let keeps_claim = returned.has_order || buyers.contains(&returned.user_id);
            let user = if keeps_claim { String::new() } else { returned.user_id.to_string() };
            end.arg(returned.order_id).arg(user);
        }
        let ended: String = end.invoke_async(&mut self.redis.clone()).await?;
        if ended == "done" {
            self.stats.rebuilt.fetch_add(1, Relaxed);
            let stock = sale.stock;
            tracing::info!(voucher_id, stock, uncommitted, "a stock counter was rebuilt");
        }
        Ok(ended)
    }

    /// Reads the sale's entries above those read before. Every entry in the stream is in flight: the script that resolves
    /// one deletes it.
    async fn read_in_flight(&self, voucher_id: i64, in_flight: &mut InFlight) -> Result<(), Error> {
        loop {
            let page: Value = redis::cmd("XRANGE")
                .arg(&self.keys.stream)
                .arg(format!("({}", in_flight.last))
                .arg("+")
                .arg("COUNT")
                .arg(PAGE)
                .query_async(&mut self.redis.clone())
                .await?;
            let page = entries(&page);
            let Some(last) = page.last() else { return Ok(()) };
            in_flight.last = last.id;
            let of_sale = page
                .iter()
                .filter_map(|entry| entry.order())
                .filter(|order| order.buyer.voucher_id == voucher_id);
            in_flight.orders.extend(of_sale.map(|order| (order.id, order)));
            if page.len() < PAGE {
                return Ok(());
            }
        }
    }
}
