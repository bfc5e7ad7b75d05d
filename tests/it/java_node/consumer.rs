//! The Java node's consumer `c1` in group `g1`: one entry at a time, under the user's lock, acknowledged even where
//! no order came of it.

use std::time::Duration;

use redis::{AsyncCommands, Value};
use sqlx::Executor;

use super::player::JavaNode;

/// What it does with an entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Deed {
    /// Commits the order, or drops it where it cannot, and acknowledges.
    Commit,
    /// Acknowledges without an order, as where the user's lock was busy.
    Drop,
    /// Ends before it does anything: the entry stays pending under its name.
    Crash,
    /// Ends after the commit and before the acknowledgement.
    CrashAfterCommit,
    /// Stands still for this long, and then goes on as if nothing had been.
    Late(Duration),
}

/// An entry as it was delivered.
#[derive(Clone, Debug)]
pub struct Delivered {
    pub entry: String,
    pub user: i64,
    pub voucher: i64,
    pub order: i64,
}

/// Admits a buyer and delivers the entry to `c1` in one step, before a consumer of ours can have it. ARGV[4] is 1 where our
/// node admits, so that the hash of pending orders names it.
const HOLD: &str = "
redis.call('INCRBY', 'seckill:stock:' .. ARGV[1], -1)
redis.call('SADD', 'seckill:order:' .. ARGV[1], ARGV[2])
local entry = redis.call('XADD', 'stream.orders', '*', 'userId', ARGV[2], 'voucherId', ARGV[1], 'id', ARGV[3])
if ARGV[4] == '1' then
  redis.call('HSET', 'stream.orders.pending', ARGV[2], ARGV[1] .. ':' .. ARGV[3] .. ':' .. entry)
end
redis.call('XREADGROUP', 'GROUP', 'g1', 'c1', 'STREAMS', 'stream.orders', '>')
return entry";

impl JavaNode {
    /// An order that is admitted, by our node or else by a Java node, and whose entry `c1` holds.
    pub async fn hold(&self, user: i64, voucher: i64, order: i64, ours: bool) -> Delivered {
        let script = redis::Script::new(HOLD);
        let mut script = script.arg(voucher);
        script.arg(user).arg(order).arg(i32::from(ours));
        let entry: String = script.invoke_async(&mut self.redis.clone()).await.unwrap();
        Delivered { entry, user, voucher, order }
    }

    /// Reads one entry: a new one, for which it waits up to 200 ms, or else the first of its own pending ones. Needs
    /// a connection of its own.
    pub async fn read(&self, new: bool) -> Option<Delivered> {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("g1").arg("c1").arg("COUNT").arg(1);
        if new {
            read.arg("BLOCK").arg(200);
        }
        read.arg("STREAMS").arg("stream.orders").arg(if new { ">" } else { "0" });
        type Fields = Vec<(String, String)>;
        let reply: Value = read.query_async(&mut self.redis.clone()).await.ok()?;
        let streams: Vec<(String, Vec<(String, Fields)>)> = redis::from_redis_value(reply).ok()?;
        let (entry, fields) = streams.into_iter().next()?.1.into_iter().next()?;
        let number = |name| {
            fields.iter().find(|(field, _)| field == name).and_then(|(_, text)| text.parse().ok())
        };
        Some(Delivered {
            user: number("userId")?,
            voucher: number("voucherId")?,
            order: number("id")?,
            entry,
        })
    }

    /// Does it; `false` if the consumer ended.
    pub async fn handle(&self, delivered: &Delivered, deed: Deed) -> bool {
        match deed {
            Deed::Crash => return false,
            Deed::Drop => {}
            Deed::Late(pause) => {
                tokio::time::sleep(pause).await;
                self.commit(delivered).await;
            }
            Deed::Commit | Deed::CrashAfterCommit => self.commit(delivered).await,
        }
        if deed == Deed::CrashAfterCommit {
            return false;
        }
        self.acknowledge(delivered).await;
        true
    }

    /// How many entries are pending under its name.
    pub async fn pending(&self) -> usize {
        let mut pending = redis::cmd("XPENDING");
        pending.arg("stream.orders").arg("g1").arg("-").arg("+").arg(100).arg("c1");
        let entries: Vec<Value> = pending.query_async(&mut self.redis.clone()).await.unwrap();
        entries.len()
    }

    /// Acknowledges, whoever has the entry now.
    pub async fn acknowledge(&self, delivered: &Delivered) {
        let mut acknowledge = redis::cmd("XACK");
        acknowledge.arg("stream.orders").arg("g1").arg(&delivered.entry);
        let _: i64 = acknowledge.query_async(&mut self.redis.clone()).await.unwrap();
    }

    /// One transaction, under the user's lock; nothing where the lock is busy, a row of the user and voucher exists, or no
    /// stock is left.
    async fn commit(&self, delivered: &Delivered) {
        let Delivered { user, voucher, order, .. } = *delivered;
        let mut redis = self.redis.clone();
        let lock = format!("lock:order:{user}");
        let owner = "11111111-2222-4333-8444-555555555555:1";
        let acquire = redis::Script::new(
            "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end \
             redis.call('HSET', KEYS[1], ARGV[1], 1) redis.call('PEXPIRE', KEYS[1], 30000) return 1",
        );
        let acquired: i64 = acquire.key(&lock).arg(owner).invoke_async(&mut redis).await.unwrap();
        if acquired == 0 {
            return;
        }
        if let Err(error) = self.insert(user, voucher, order).await {
            eprintln!("the Java node could not commit {order}: {error}");
        }
        let _: () = redis.del(&lock).await.unwrap();
    }

    /// Whether it was inserted.
    pub async fn insert(&self, user: i64, voucher: i64, order: i64) -> sqlx::Result<bool> {
        let there = format!(
            "SELECT id FROM tb_voucher_order WHERE user_id = {user} AND voucher_id = {voucher}"
        );
        if self.pool.fetch_optional(there.as_str()).await?.is_some() {
            return Ok(false);
        }
        let mut transaction = self.pool.begin().await?;
        let take = format!(
            "UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id = {voucher} AND stock > 0"
        );
        if transaction.execute(take.as_str()).await?.rows_affected() == 0 {
            transaction.rollback().await?;
            return Ok(false);
        }
        let row = format!("({order}, {user}, {voucher})");
        let insert = format!("INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES {row}");
        transaction.execute(insert.as_str()).await?;
        transaction.commit().await?;
        Ok(true)
    }
}
