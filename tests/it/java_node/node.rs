//! A simulated final-stage Java node on the servers of a stack: it publishes, admits by its script, takes ids, and commits what
//! its consumer `c1` in group `g1` reads, as section 7 of the contract describes. The scripts and the SQL are our own, with the
//! same behaviour, and have none of the original's text.

use chrono::Utc;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamPendingCountReply, StreamReadReply};
use redis::{AsyncCommands, RedisResult};
use sqlx::{Executor, MySqlPool};

use crate::support::stack::Stack;

/// Admits by the counter and the claims alone: no window, no database, no other key. A missing counter is an error
/// of the script, as there.
const ADMIT: &str = "
local stock = 'seckill:stock:' .. ARGV[1]
local users = 'seckill:order:' .. ARGV[1]
if tonumber(redis.call('GET', stock)) <= 0 then return 1 end
if redis.call('SISMEMBER', users, ARGV[2]) == 1 then return 2 end
redis.call('INCRBY', stock, -1)
redis.call('SADD', users, ARGV[2])
redis.call('XADD', 'stream.orders', '*', 'userId', ARGV[2], 'voucherId', ARGV[1], 'id', ARGV[3])
return 0";

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

/// Seconds between 1970 and 2022, where the ids begin.
const EPOCH: i64 = 1_640_995_200;

/// What a purchase at a Java node is answered.
#[derive(Debug, PartialEq)]
pub enum Reply {
    /// 200 with this id, which means "admitted".
    Admitted(i64),
    /// "库存不足！"
    SoldOut,
    /// "不能重复下单！"
    AlreadyOrdered,
    /// "服务器异常": the script failed.
    Error(String),
}

pub struct Delivered {
    pub entry: String,
    pub user: i64,
    pub voucher: i64,
    pub order: i64,
}

/// A Java node, on a connection of its own.
pub struct JavaNode {
    pub redis: MultiplexedConnection,
    pub pool: MySqlPool,
}

impl JavaNode {
    /// Creates the group, which for a Java node is done by hand.
    pub async fn join(stack: &Stack) -> Self {
        let mut redis = stack.redis.conn().await;
        let created: RedisResult<()> = redis
            .xgroup_create_mkstream("stream.orders", "g1", "0")
            .await;
        assert!(
            created
                .as_ref()
                .err()
                .is_none_or(|error| error.code() == Some("BUSYGROUP")),
            "{created:?}"
        );
        JavaNode {
            redis,
            pool: stack.database.pool.clone(),
        }
    }

    /// Publishes a sale that is on now: two rows that know nothing of our columns, then the counter.
    pub async fn publish(&mut self, stock: i64) -> i64 {
        let voucher = "INSERT INTO tb_voucher (shop_id, title, pay_value, actual_value, type, status) \
                       VALUES (1, '秒杀', 100, 1000, 1, 1)";
        let id = self.pool.execute(voucher).await.unwrap().last_insert_id();
        let sale = format!(
            "INSERT INTO tb_seckill_voucher (voucher_id, stock, begin_time, end_time) \
             VALUES ({id}, {stock}, '2022-01-01 00:00:00', '2037-01-01 00:00:00')"
        );
        self.pool.execute(sale.as_str()).await.unwrap();
        let _: () = self
            .redis
            .set(format!("seckill:stock:{id}"), stock)
            .await
            .unwrap();
        id.cast_signed()
    }

    pub async fn buy(&self, user: i64, voucher: i64) -> Reply {
        let mut redis = self.redis.clone();
        let now = Utc::now()
            .with_timezone(&chrono_tz::Asia::Shanghai)
            .naive_local();
        let key = format!("icr:order:{}", now.format("%Y:%m:%d"));
        let sequence: i64 = redis.incr(key, 1).await.unwrap();
        let id = (now.and_utc().timestamp() - EPOCH) << 32 | sequence;
        let script = redis::Script::new(ADMIT);
        let admitted: RedisResult<i64> = script
            .arg(voucher)
            .arg(user)
            .arg(id)
            .invoke_async(&mut redis)
            .await;
        match admitted {
            Ok(0) => Reply::Admitted(id),
            Ok(1) => Reply::SoldOut,
            Ok(_) => Reply::AlreadyOrdered,
            Err(error) => Reply::Error(error.to_string()),
        }
    }

    /// Admits an order, by our node if `ours`, else by a Java node, and delivers its entry to `c1`, which holds it.
    pub async fn hold(&self, user: i64, voucher: i64, order: i64, ours: bool) -> Delivered {
        let script = redis::Script::new(HOLD);
        let mut script = script.arg(voucher);
        script.arg(user).arg(order).arg(i32::from(ours));
        let entry: String = script.invoke_async(&mut self.redis.clone()).await.unwrap();
        Delivered {
            entry,
            user,
            voucher,
            order,
        }
    }

    /// Reads one entry: a new one, for which it waits up to 200 ms, or else the first of its own pending ones.
    pub async fn read(&self, new: bool) -> Option<Delivered> {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("g1").arg("c1").arg("COUNT").arg(1);
        if new {
            read.arg("BLOCK").arg(200);
        }
        read.arg("STREAMS")
            .arg("stream.orders")
            .arg(if new { ">" } else { "0" });
        let reply: Option<StreamReadReply> =
            read.query_async(&mut self.redis.clone()).await.ok()?;
        let entry = reply?.keys.into_iter().next()?.ids.into_iter().next()?;
        let number = |name| entry.get(name);
        let user = number("userId")?;
        let voucher = number("voucherId")?;
        let order = number("id")?;
        Some(Delivered {
            user,
            voucher,
            order,
            entry: entry.id,
        })
    }

    /// Commits the order, or drops it where it cannot, and acknowledges.
    pub async fn handle(&self, delivered: &Delivered) {
        self.commit(delivered).await;
        self.acknowledge(delivered).await;
    }

    pub async fn pending(&self) -> usize {
        let mut redis = self.redis.clone();
        let pending: StreamPendingCountReply = redis
            .xpending_consumer_count("stream.orders", "g1", "-", "+", 100, "c1")
            .await
            .unwrap();
        pending.ids.len()
    }

    /// Acknowledges, whoever has the entry now; also without an order, as where the user's lock was busy.
    pub async fn acknowledge(&self, delivered: &Delivered) {
        let mut redis = self.redis.clone();
        let _: i64 = redis
            .xack("stream.orders", "g1", &[&delivered.entry])
            .await
            .unwrap();
    }

    /// Inserts the order. Does nothing where a row of the user and voucher exists, or no stock is left.
    pub async fn commit(
        &self,
        &Delivered {
            user,
            voucher,
            order,
            ..
        }: &Delivered,
    ) {
        if let Err(error) = self.insert(user, voucher, order).await {
            eprintln!("the Java node could not commit {order}: {error}");
        }
    }

    /// Whether it was inserted.
    pub async fn insert(&self, user: i64, voucher: i64, order: i64) -> sqlx::Result<bool> {
        let existing_order = format!(
            "SELECT id FROM tb_voucher_order WHERE user_id = {user} AND voucher_id = {voucher}"
        );
        if self
            .pool
            .fetch_optional(existing_order.as_str())
            .await?
            .is_some()
        {
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
