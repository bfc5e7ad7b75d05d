//! Faults of Redis itself: ended, stopped, emptied in part or whole, out of memory.

use std::{fmt, ops::Range, time::Duration};

use tokio::time::sleep;

use crate::chaos::{
    redis_data::{self, RedisData},
    test_cluster::{TestCluster, pause, server},
};
use workload::Error;

/// What is done to Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisFault {
    /// SIGKILL, then started again with this data.
    Kill(RedisData),
    /// SIGSTOP, then SIGCONT.
    Stop,
    /// FLUSHALL.
    Empty,
    /// The stream of admitted orders is deleted, and nothing else.
    DeleteStream,
    /// The stock counter of each sale is deleted, and nothing else.
    DeleteStockCounters,
    /// No memory is left, and nothing is evicted: commands that could write are refused.
    OutOfMemory,
}

use RedisFault::{DeleteStockCounters, DeleteStream, Empty, Kill, OutOfMemory, Stop};

impl RedisFault {
    /// Whether it forgets something that it had confirmed and that nothing but an instance's memory can replace.
    pub fn forgets(self) -> bool {
        matches!(self, Kill(RedisData::Old | RedisData::Empty) | Empty | DeleteStream)
    }

    /// Whether sessions go with it.
    pub fn ends_sessions(self) -> bool {
        self.forgets() && self != DeleteStream
    }

    /// How long it may last, in milliseconds.
    pub fn lasts(self) -> Range<u64> {
        match self {
            Kill(_) => 0..400,
            Stop => 50..1_500,
            OutOfMemory => 50..1_200,
            Empty | DeleteStream | DeleteStockCounters => 0..1,
        }
    }

    /// Injects it, and undoes it. `sales` are the vouchers on sale.
    ///
    /// # Errors
    /// [`Error::Server`], [`Error::Redis`].
    pub async fn inject(
        self,
        cluster: &TestCluster,
        sales: &[u64],
        lasts: Duration,
    ) -> Result<(), Error> {
        // Held for as long as it lasts: faults of one server take turns.
        let mut redis = cluster.redis.lock().await;
        match self {
            Kill(data) => {
                redis.kill();
                sleep(lasts).await;
                redis_data::restart(&mut redis, data).await
            }
            Stop => {
                let process = redis.process().map_err(server("Redis"))?;
                pause(process, lasts).await.map_err(server("Redis"))
            }
            Empty => redis_data::command(&redis, &["FLUSHALL"]).await.map(drop),
            DeleteStream => redis_data::command(&redis, &["DEL", "stream.orders"]).await.map(drop),
            DeleteStockCounters => {
                let keys: Vec<String> =
                    sales.iter().map(|id| format!("seckill:stock:{id}")).collect();
                let words: Vec<&str> =
                    std::iter::once("DEL").chain(keys.iter().map(String::as_str)).collect();
                if keys.is_empty() {
                    return Ok(());
                }
                redis_data::command(&redis, &words).await.map(drop)
            }
            OutOfMemory => {
                redis_data::command(&redis, &["CONFIG", "SET", "maxmemory", "1"]).await?;
                sleep(lasts).await;
                redis_data::command(&redis, &["CONFIG", "SET", "maxmemory", "0"]).await.map(drop)
            }
        }
    }
}

impl fmt::Display for RedisFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kill(RedisData::Intact) => "kill -9 redis, back intact",
            Kill(RedisData::Old) => "kill -9 redis, back with an old snapshot",
            Kill(RedisData::Empty) => "kill -9 redis, back empty",
            Stop => "stop redis",
            Empty => "FLUSHALL",
            DeleteStream => "delete stream.orders",
            DeleteStockCounters => "delete the stock counters",
            OutOfMemory => "redis out of memory",
        })
    }
}
