//! The gate of a sale, which is its stock and its claims in Redis: building it anew from the database when
//! it is missing or was found to be wrong. While there is no gate, nobody is admitted.
//!
//! The stock of a gate is what the database has left, less what is in flight: entries that are in the stream
//! and not in the database. Both must be read of one moment, while consumers go on. So whatever
//! changes either (an entry is settled, stock is added or returned) takes away the token under which a gate
//! is being built, and it is built once more.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::{AsyncCommands, Value};

use super::entry::{Entry, entries, position};
use super::{EPOCH, GROUP, Inner, STREAM, scripts};
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};

/// How long after a loss nobody builds a gate: by then every node has added again what it had admitted.
const GRACE: Duration = Duration::from_secs(1);

/// How long one may take to build a gate before another may try.
const TOKEN_LIFE: Duration = Duration::from_secs(5);

/// Pause before another look at a gate that could not be built just now.
const PAUSE: Duration = Duration::from_millis(50);

/// How often a sale is asked at most whether something of it is stranded.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Buyers of one sale whose claims a gate can hold.
const CLAIMS: u32 = 10_000_000;

/// Entries or claims that travel in one command.
const PAGE: usize = 1000;

/// `seckill:stock:{voucherId}`: how many more are admitted.
pub(super) fn stock_key(voucher_id: i64) -> String {
    format!("seckill:stock:{voucher_id}")
}

/// `seckill:order:{voucherId}`: the users who hold a place.
pub(super) fn claims_key(voucher_id: i64) -> String {
    format!("seckill:order:{voucher_id}")
}

/// `seckill:rebuild:{voucherId}`: the token under which a gate is being built.
pub(super) fn token_key(voucher_id: i64) -> String {
    format!("seckill:rebuild:{voucher_id}")
}

/// What this process remembers of each sale's gate.
#[derive(Default)]
pub(super) struct Gates(Mutex<HashMap<i64, Arc<Slot>>>);

/// Sales remembered at most; beyond it, those not in use are forgotten.
const SLOTS: usize = 1024;

/// A gate that is being opened: by one task, for which any number wait.
type Opening = Shared<BoxFuture<'static, Result<(), Error>>>;

#[derive(Default)]
struct Slot {
    opening: Mutex<Option<Opening>>,
    /// When it was last looked whether something is stranded.
    looked: Mutex<Option<Instant>>,
}

impl Gates {
    fn slot(&self, voucher_id: i64) -> Arc<Slot> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= SLOTS {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        slots.entry(voucher_id).or_default().clone()
    }
}

impl Slot {
    /// The opening under way, or else the one that `begin` begins.
    fn opening(&self, begin: impl FnOnce() -> Opening) -> Opening {
        let mut opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let under_way = opening.clone().filter(|opening| opening.peek().is_none());
        under_way.unwrap_or_else(|| opening.insert(begin()).clone())
    }

    /// Whether it is time for another look; counts as one.
    fn is_due(&self) -> bool {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let due = looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY);
        if due {
            *looked = Some(Instant::now());
        }
        due
    }
}

impl Inner {
    /// Waits until the sale has a gate, which this node builds if no other does. The building goes on when
    /// nobody waits any more: with many buyers in the database it may take longer than a purchase may.
    pub(super) async fn open_gate(self: &Arc<Self>, voucher_id: i64) -> Result<(), Error> {
        let opening = self.gates.slot(voucher_id).opening(|| {
            let building = self.tasks.spawn(self.clone().build_until_open(voucher_id));
            let failed = |fault| Err(Error::Internal(format!("a gate's task: {fault}")));
            building.map(move |built| built.unwrap_or_else(failed)).boxed().shared()
        });
        tokio::time::timeout(self.limits.timeout, opening)
            .await
            .unwrap_or(Err(Error::Unavailable("the sale's gate")))
    }

    async fn build_until_open(self: Arc<Self>, voucher_id: i64) -> Result<(), Error> {
        while !self.build(voucher_id).await? {
            if self.stopped() {
                return Err(Error::Unavailable("the sale's gate"));
            }
            self.pause(PAUSE).await;
        }
        Ok(())
    }

    /// Closes the gate, so that it is built anew.
    pub(super) async fn close_gate(&self, voucher_id: i64) -> Result<(), Error> {
        tracing::warn!(voucher_id, "the gate is empty and the database is not: building it anew");
        Ok(self.redis.clone().del::<_, ()>(stock_key(voucher_id)).await?)
    }

    /// Takes back a claim for which there is no order.
    pub(super) async fn drop_claim(&self, buyer: Buyer) -> Result<(), Error> {
        tracing::warn!(
            user_id = buyer.user_id,
            voucher_id = buyer.voucher_id,
            "a claim without an order is dropped"
        );
        let claims = claims_key(buyer.voucher_id);
        Ok(self.redis.clone().srem::<_, _, ()>(claims, buyer.user_id).await?)
    }

    /// Whether the database has stock left though the gate is empty and nothing waits in the stream.
    /// Looks once a second; in between the answer is no.
    pub(super) async fn is_stranded(&self, buyer: Buyer) -> Result<bool, Error> {
        if !self.gates.slot(buyer.voucher_id).is_due() {
            return Ok(false);
        }
        Ok(self.store.standing(buyer).await?.is_some_and(|standing| standing.stock > 0))
    }

    /// Builds the gate once; `false` if it must be tried again.
    async fn build(&self, voucher_id: i64) -> Result<bool, Error> {
        let token = uuid::Uuid::new_v4().to_string();
        let begun: String = scripts::REBUILD_BEGIN
            .key(stock_key(voucher_id))
            .key(token_key(voucher_id))
            .key(EPOCH)
            .arg(&token)
            .arg(TOKEN_LIFE.as_millis() as u64)
            .arg(GRACE.as_millis() as u64)
            .invoke_async(&mut self.redis.clone())
            .await?;
        match begun.as_str() {
            "open" => return Ok(true),
            "begun" => {}
            _ => return Ok(false),
        }
        let in_flight = self.in_flight(voucher_id).await?;
        let (stock, committed) =
            self.store.left(voucher_id, &in_flight).await?.ok_or(Error::VoucherNotFound)?;
        let uncommitted = in_flight.len() as i64 - committed;
        let buyers = self.store.buyers(voucher_id, CLAIMS).await?;
        let buyers = buyers.ok_or_else(|| Error::Internal(format!("over {CLAIMS} buyers")))?;
        let mut claims: HashSet<i64> = buyers.into_iter().collect();
        claims.extend(in_flight.iter().map(|order| order.buyer.user_id));
        let new_claims = format!("seckill:rebuild:{voucher_id}:{token}");
        self.write_claims(&new_claims, &claims).await?;
        let opened: i64 = scripts::REBUILD_END
            .key(stock_key(voucher_id))
            .key(token_key(voucher_id))
            .key(claims_key(voucher_id))
            .key(&new_claims)
            .arg(&token)
            .arg(stock - uncommitted)
            .invoke_async(&mut self.redis.clone())
            .await?;
        if opened == 1 {
            self.stats.rebuilt.add(1);
            tracing::info!(voucher_id, stock, uncommitted, "a gate was built anew");
        }
        Ok(opened == 1)
    }

    async fn write_claims(&self, key: &str, claims: &HashSet<i64>) -> Result<(), Error> {
        let claims: Vec<i64> = claims.iter().copied().collect();
        for page in claims.chunks(PAGE) {
            let life = 12 * TOKEN_LIFE.as_secs() as i64;
            redis::pipe()
                .sadd(key, page)
                .ignore()
                // Should nobody come to use it.
                .expire(key, life)
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
        let pending = self.pending().await?;
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

    async fn pending(&self) -> Result<HashSet<(u64, u64)>, Error> {
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
