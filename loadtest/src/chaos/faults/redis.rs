//! Faults of Redis itself: ended, stopped, emptied in part or whole, out of memory. What only one server has meets the
//! master of the round's first sale.

use std::time::Duration;

use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use tokio::time::sleep;

use crate::chaos::{
    layout::Layout,
    redis_data::{self, RedisData},
    redis_servers::RedisServers,
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
    /// One by one all other keys that serve the sales are deleted: counters, claims, marks, ids, the hash, the group.
    DeleteKeys,
    /// No memory is left, and nothing is evicted: commands that could write are refused.
    OutOfMemory,
}

use RedisFault::{DeleteKeys, DeleteStream, Empty, Kill, OutOfMemory, Stop};

impl RedisFault {
    /// Whether it forgets something that it had confirmed and that nothing but an instance's memory can replace. A server
    /// that is away for long is replaced by one that may not have its last writes.
    pub fn forgets(self, layout: Layout) -> bool {
        let away = matches!(self, Kill(_) | Stop);
        self.loses_data() || layout.redis_fails_over() && away
    }

    fn loses_data(self) -> bool {
        matches!(self, Kill(RedisData::Old | RedisData::Empty) | Empty | DeleteStream)
    }

    /// Whether sessions go with it.
    pub fn ends_sessions(self) -> bool {
        self.loses_data() && self != DeleteStream
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
        let redis = &mut *cluster.redis.lock().await;
        let keys = cluster.access.keys();
        let master = redis.master_of(&keys.stock(sales.first().copied().unwrap_or(1))).await?;
        match self {
            Kill(data) => {
                redis.nodes[master].kill();
                sleep(lasts).await;
                redis.restart(master, data).await?;
            }
            Stop => {
                let process = redis.nodes[master].process().map_err(server("Redis"))?;
                pause(process, lasts).await.map_err(server("Redis"))?;
            }
            Empty => on_all_masters(redis, &["FLUSHALL"]).await?,
            DeleteStream => delete(redis, &keys.stream()).await?,
            DeleteKeys => {
                let zone = cluster.access.time_zone;
                let day = chrono::Utc::now().with_timezone(&zone).format("%Y:%m:%d").to_string();
                let mut others = keys.replaceable(&day, sales);
                // As drawn as the time it takes.
                others.shuffle(&mut StdRng::seed_from_u64(lasts.as_millis() as u64));
                let pause = lasts / (others.len() as u32 + 1);
                for key in others {
                    delete(redis, &key).await?;
                    sleep(pause).await;
                }
                let stream = keys.stream();
                let master = &redis.nodes[redis.master_of(&stream).await?];
                let destroy = ["XGROUP", "DESTROY", &stream, "g1"];
                let _destroyed: i64 = redis_data::command(master, &destroy).await?;
            }
            OutOfMemory => {
                on_all_masters(redis, &["CONFIG", "SET", "maxmemory", "1"]).await?;
                sleep(lasts).await;
                on_all_masters(redis, &["CONFIG", "SET", "maxmemory", "0"]).await?;
            }
        }
        redis.replicated().await
    }
}

async fn on_all_masters(redis: &RedisServers, words: &[&str]) -> Result<(), Error> {
    for master in redis.masters().await? {
        let () = redis_data::command(&redis.nodes[master], words).await?;
    }
    Ok(())
}

/// Deletes a key on the server that has it.
async fn delete(redis: &RedisServers, key: &str) -> Result<(), Error> {
    let master = redis.master_of(key).await?;
    let _deleted: i64 = redis_data::command(&redis.nodes[master], &["DEL", key]).await?;
    Ok(())
}
