//! The lock of one buyer's purchase, in mid-work: does its lease end, does its release delete another's lock, and is there a
//! second order where the lock was lost?
//!
//! The sale's row is locked meanwhile, so the purchase stands in the database and holds its lock in Redis.

use std::collections::HashSet;
use std::time::Duration;

use redis::AsyncCommands;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use workload::{
    Error, Target,
    buyers::Buyer,
    http::{Call, Connection},
    reply::Reply,
};

use super::{
    flaws::{Finding, Flaw},
    keys,
    sales::{Opened, Planned, Seller},
    traces::{database_error, redis_error},
};

/// How long a lock is looked for.
const APPEARS_WITHIN: Duration = Duration::from_secs(3);
/// How long the purchase stands in the database: Redisson's watchdog renews a lock after 10 s.
const WORK: Duration = Duration::from_millis(10_800);
/// By so much later ends a lease that was renewed.
const RENEWED_BY: Duration = Duration::from_secs(1);
/// What PTTL says where there is no such key.
const NO_KEY: i64 = -2;
/// When another's lock goes by itself, milliseconds, should the judgement end early: later than any purchase.
const GOES_AFTER_MS: i64 = 120_000;
/// How long one request may take.
const LIMIT: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(50);
/// How long a node may take to write its orders, and how long they must not change.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
const QUIET: Duration = Duration::from_millis(500);

const TRIAL: Planned = Planned {
    name: ["the lock", "锁"],
    buyers: 2,
    tries: 1,
    stock: 10,
    is_held: true,
};

impl Seller<'_> {
    /// Tries the lock; `None` where a purchase takes no lock in Redis.
    pub async fn try_lock(&mut self) -> Result<Option<Vec<Finding>>, Error> {
        self.options.progress.say("trying the lock");
        let sale = self.open_sale(&self.options.targets[..1], &TRIAL).await?;
        let Some((key, mut findings)) = self.try_lease_and_release(&sale).await? else {
            return Ok(None);
        };
        // A node that is killed leaves its locks.
        let number = self.buyers[0].user_id;
        let of_buyers = self.buyers.iter();
        let keys = of_buyers.map(|buyer| keys::with_number(&key, number, buyer.user_id));
        self.traces.made_keys(keys);
        findings.extend(self.try_without_lock(&sale).await?);
        Ok(Some(findings))
    }

    fn finding(&self, flaw: Flaw, example: String) -> Finding {
        Finding {
            flaw,
            nodes: self.options.targets.len(),
            count: 1,
            sales: 1,
            example: vec![example],
        }
    }

    /// A purchase that takes long, and whose lock is another's when it ends. Returns the lock's key as well.
    async fn try_lease_and_release(
        &self,
        sale: &Opened,
    ) -> Result<Option<(String, Vec<Finding>)>, Error> {
        let buyer = &self.buyers[0];
        let before = self.keys_of(buyer).await?;
        let transaction = self.traces.hold(sale.voucher_id).await?;
        let purchase = start_purchase(&self.options.targets[0], buyer, sale.voucher_id);
        let Some(key) = self.find_lock(buyer, &before).await? else {
            transaction.rollback().await.map_err(database_error)?;
            self.finish(sale, [purchase]).await?;
            return Ok(None);
        };
        let mut findings = Vec::new();
        if let Some(lease) = self.find_end_of_lease(&key).await? {
            let lease = lease.as_secs_f64();
            let example = format!("{key}: gone after {lease:.1} s, in the middle of its purchase");
            findings.push(self.finding(Flaw::LeaseEnded, example));
        }
        self.give_to_another(&key).await?;
        transaction.rollback().await.map_err(database_error)?;
        self.finish(sale, [purchase]).await?;
        if !self.exists(&key).await? {
            let example = format!("{key}: another held it, and the purchase deleted it at its end");
            findings.push(self.finding(Flaw::ForeignDelete, example));
        }
        self.delete(&key).await?;
        Ok(Some((key, findings)))
    }

    /// Two purchases of one buyer; the lock of the first is deleted before the second begins.
    async fn try_without_lock(&self, sale: &Opened) -> Result<Option<Finding>, Error> {
        let buyer = &self.buyers[1];
        let targets = &self.options.targets;
        let before = self.keys_of(buyer).await?;
        let transaction = self.traces.hold(sale.voucher_id).await?;
        let first = start_purchase(&targets[0], buyer, sale.voucher_id);
        let Some(key) = self.find_lock(buyer, &before).await? else {
            transaction.rollback().await.map_err(database_error)?;
            self.finish(sale, [first]).await?;
            return Ok(None);
        };
        self.delete(&key).await?;
        let second = start_purchase(&targets[targets.len() - 1], buyer, sale.voucher_id);
        let begin = Instant::now();
        while begin.elapsed() < APPEARS_WITHIN
            && !second.is_finished()
            && !self.exists(&key).await?
        {
            sleep(POLL).await;
        }
        // It has the lock; now it looks for an order.
        sleep(QUIET).await;
        transaction.rollback().await.map_err(database_error)?;
        let orders = self.finish(sale, [first, second]).await?;
        let ids: Vec<i64> = orders
            .into_iter()
            .filter(|(user_id, _)| *user_id == buyer.user_id)
            .map(|(_, id)| id)
            .collect();
        let example = format!(
            "{key}: deleted in mid-work; user {}: orders {ids:?}",
            buyer.user_id
        );
        Ok((ids.len() > 1).then(|| self.finding(Flaw::OnlyTheLock, example)))
    }

    /// The key of this buyer's lock, as soon as there is one. What was there `before` the purchase is none: it is somebody
    /// else's, and must not be touched.
    async fn find_lock(
        &self,
        buyer: &Buyer,
        before: &HashSet<String>,
    ) -> Result<Option<String>, Error> {
        let begin = Instant::now();
        while begin.elapsed() < APPEARS_WITHIN {
            let found = self.keys_of(buyer).await?;
            for key in found.difference(before) {
                if self.is_like_a_lock(key).await? {
                    return Ok(Some(key.clone()));
                }
            }
            sleep(POLL).await;
        }
        Ok(None)
    }

    /// The keys that have the buyer's id in their names, as a number of its own.
    async fn keys_of(&self, buyer: &Buyer) -> Result<HashSet<String>, Error> {
        keys::find(&self.options.access.redis_url, "", buyer.user_id).await
    }

    /// Whether it is of a type that locks have, and is called one or goes by itself.
    async fn is_like_a_lock(&self, key: &str) -> Result<bool, Error> {
        let mut redis = self.traces.redis();
        let kind = keys::kind(&mut redis, key).await?;
        let left: i64 = redis.pttl(key).await.map_err(|error| redis_error(&error))?;
        Ok(matches!(&*kind, "string" | "hash") && (key.contains("lock") || left >= 0))
    }

    /// After how long the lease ended, if it did before it was renewed. A lock that goes earlier was released: its node has
    /// given up, or begins again.
    async fn find_end_of_lease(&self, key: &str) -> Result<Option<Duration>, Error> {
        let begin = Instant::now();
        let mut redis = self.traces.redis();
        let mut end: Option<Instant> = None;
        while begin.elapsed() < WORK {
            let asked = Instant::now();
            let left: i64 = redis.pttl(key).await.map_err(|error| redis_error(&error))?;
            if left == NO_KEY {
                let has_ended = end.is_some_and(|end| end <= Instant::now());
                return Ok(has_ended.then(|| begin.elapsed()));
            }
            let new_end = u64::try_from(left)
                .ok()
                .map(|left| asked + Duration::from_millis(left));
            if end.is_some_and(|end| new_end > Some(end + RENEWED_BY)) {
                break;
            }
            end = new_end;
            sleep(POLL).await;
        }
        Ok(None)
    }

    /// Puts another's lock in place of this one, of the same type, so that a release can compare it.
    async fn give_to_another(&self, key: &str) -> Result<(), Error> {
        let mut redis = self.traces.redis();
        let kind = keys::kind(&mut redis, key).await?;
        self.delete(key).await?;
        let mut set = redis::cmd(if kind == "hash" { "HSET" } else { "SET" });
        set.arg(key).arg("judge");
        if kind == "hash" {
            set.arg(1);
        }
        let set = set.exec_async(&mut redis).await;
        set.map_err(|error| redis_error(&error))?;
        let expires = redis.pexpire(key, GOES_AFTER_MS).await;
        expires.map_err(|error| redis_error(&error))
    }

    async fn exists(&self, key: &str) -> Result<bool, Error> {
        let exists = self.traces.redis().exists(key).await;
        exists.map_err(|error| redis_error(&error))
    }

    async fn delete(&self, key: &str) -> Result<(), Error> {
        let deleted = self.traces.redis().del(key).await;
        deleted.map_err(|error| redis_error(&error))
    }

    /// Waits for the replies, and for the orders; returns the user and the id of each order.
    async fn finish<const N: usize>(
        &self,
        sale: &Opened,
        purchases: [JoinHandle<Reply>; N],
    ) -> Result<Vec<(u64, i64)>, Error> {
        for purchase in purchases {
            purchase.await?;
        }
        let vouchers = sale.voucher_id..=sale.voucher_id;
        let waiting = sale
            .order_rows
            .wait_until_unchanged(vouchers, 1, QUIET, WRITE_LIMIT);
        let (snapshots, _) = waiting.await?;
        let rows = snapshots.into_iter().flat_map(|sale| sale.rows);
        Ok(rows.map(|row| (row.user_id, row.id)).collect())
    }
}

fn start_purchase(node: &Target, buyer: &Buyer, voucher_id: u64) -> JoinHandle<Reply> {
    let mut connection = Connection::new(node.clone(), LIMIT);
    let call = Call::post(format!("/voucher-order/seckill/{voucher_id}")).token(&buyer.token);
    tokio::spawn(async move { Reply::from_answer(&connection.send(&call).await) })
}
