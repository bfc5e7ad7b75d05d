//! A player of the final-stage Java node: publishes, admits by its script, and takes ids, as section 7 of the contract
//! tells it. Our own script and SQL with the same behaviour; nothing of the original's text.

use chrono::Utc;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
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

/// A Java node, on the servers of a stack. Cheap to clone.
#[derive(Clone)]
pub struct JavaNode {
    pub redis: MultiplexedConnection,
    pub pool: MySqlPool,
}

impl JavaNode {
    /// Creates the group, as it is told to be done by hand.
    pub async fn join(stack: &Stack) -> Self {
        let mut redis = stack.redis.conn().await;
        let mut create = redis::cmd("XGROUP");
        create.arg("CREATE").arg("stream.orders").arg("g1").arg("0").arg("MKSTREAM");
        let created: redis::RedisResult<()> = create.query_async(&mut redis).await;
        assert!(
            created.as_ref().err().is_none_or(|error| error.code() == Some("BUSYGROUP")),
            "{created:?}"
        );
        JavaNode { redis, pool: stack.database.pool.clone() }
    }

    /// The same node on a connection of its own, for a consumer, which waits for entries.
    pub async fn clone_with_connection(&self, stack: &Stack) -> Self {
        JavaNode { redis: stack.redis.conn().await, pool: self.pool.clone() }
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
        let _: () = self.redis.set(format!("seckill:stock:{id}"), stock).await.unwrap();
        id.cast_signed()
    }

    /// A purchase.
    pub async fn buy(&self, user: i64, voucher: i64) -> Reply {
        let mut redis = self.redis.clone();
        let id = self.next_id().await;
        let script = redis::Script::new(ADMIT);
        let admitted: redis::RedisResult<i64> =
            script.arg(voucher).arg(user).arg(id).invoke_async(&mut redis).await;
        match admitted {
            Ok(0) => Reply::Admitted(id),
            Ok(1) => Reply::SoldOut,
            Ok(_) => Reply::AlreadyOrdered,
            Err(error) => Reply::Error(error.to_string()),
        }
    }

    async fn next_id(&self) -> i64 {
        let now = Utc::now().with_timezone(&chrono_tz::Asia::Shanghai).naive_local();
        let key = format!("icr:order:{}", now.format("%Y:%m:%d"));
        let sequence: i64 = self.redis.clone().incr(key, 1).await.unwrap();
        (now.and_utc().timestamp() - EPOCH) << 32 | sequence
    }
}
