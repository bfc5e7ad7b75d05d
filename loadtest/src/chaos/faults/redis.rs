//! Faults of Redis itself: ended, stopped, emptied in part or whole, out of memory. What only one server has meets the
//! master of the round's first sale.

use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use tokio::{sync::MutexGuard, time::sleep};

use super::scene::Scene;
use crate::chaos::{
    instance::{pause, server},
    redis_data::{RedisData, command, take_snapshot},
    redis_servers::RedisServers,
};
use workload::{Error, sessions};

/// The servers, and which of them is the master of the round's first sale. Held for as long as a fault lasts: those of one
/// server take turns.
pub async fn hold(it: Scene<'_>) -> Result<(MutexGuard<'_, RedisServers>, usize), Error> {
    let redis = it.cluster.redis.lock().await;
    let key = it.cluster.access.keys().stock(it.sales.first().copied().unwrap_or(1));
    let master = redis.master_of(&key).await?;
    Ok((redis, master))
}

/// SIGKILL, then started again with this data. The old snapshot is taken before, as long as the server is away.
pub async fn kill(it: Scene<'_>, data: RedisData) -> Result<(), Error> {
    let (mut redis, master) = hold(it).await?;
    if data == RedisData::Old {
        take_snapshot(&redis.nodes[master]).await?;
        sleep(it.lasts).await;
    }
    redis.nodes[master].kill();
    sleep(it.lasts).await;
    redis.restart(master, data).await?;
    redis.replicated().await?;
    if data == RedisData::Intact {
        return Ok(());
    }
    sessions::open(&it.cluster.access, it.buyers).await
}

/// SIGSTOP, then SIGCONT.
pub async fn stop(it: Scene<'_>) -> Result<(), Error> {
    let (mut redis, master) = hold(it).await?;
    let process = redis.nodes[master].process().map_err(server("Redis"))?;
    pause(process, it.lasts).await.map_err(server("Redis"))?;
    redis.replicated().await
}

pub async fn empty(it: Scene<'_>) -> Result<(), Error> {
    let (mut redis, _) = hold(it).await?;
    on_all_masters(&redis, &["FLUSHALL"]).await?;
    redis.replicated().await?;
    sessions::open(&it.cluster.access, it.buyers).await
}

/// The stream of admitted orders is deleted, and nothing else.
pub async fn delete_stream(it: Scene<'_>) -> Result<(), Error> {
    let (mut redis, _) = hold(it).await?;
    delete(&redis, &it.cluster.access.keys().stream()).await?;
    redis.replicated().await
}

/// One by one all other keys that serve the sales are deleted: counters, claims, marks, ids, the hash, the group.
pub async fn delete_keys(it: Scene<'_>) -> Result<(), Error> {
    let (mut redis, _) = hold(it).await?;
    let access = &it.cluster.access;
    let day = chrono::Utc::now().with_timezone(&access.time_zone).format("%Y:%m:%d").to_string();
    let mut others = access.keys().replaceable(&day, it.sales);
    // As drawn as the time it takes.
    others.shuffle(&mut StdRng::seed_from_u64(it.lasts.as_millis() as u64));
    let pause = it.lasts / (others.len() as u32 + 1);
    for key in others {
        delete(&redis, &key).await?;
        sleep(pause).await;
    }
    let stream = access.keys().stream();
    let master = &redis.nodes[redis.master_of(&stream).await?];
    let _destroyed: i64 = command(master, &["XGROUP", "DESTROY", &stream, "g1"]).await?;
    redis.replicated().await
}

/// No memory is left, and nothing is evicted: commands that could write are refused.
pub async fn out_of_memory(it: Scene<'_>) -> Result<(), Error> {
    let (mut redis, _) = hold(it).await?;
    on_all_masters(&redis, &["CONFIG", "SET", "maxmemory", "1"]).await?;
    sleep(it.lasts).await;
    on_all_masters(&redis, &["CONFIG", "SET", "maxmemory", "0"]).await?;
    redis.replicated().await
}

async fn on_all_masters(redis: &RedisServers, words: &[&str]) -> Result<(), Error> {
    for master in redis.masters().await? {
        let () = command(&redis.nodes[master], words).await?;
    }
    Ok(())
}

/// Deletes a key on the server that has it.
async fn delete(redis: &RedisServers, key: &str) -> Result<(), Error> {
    let master = redis.master_of(key).await?;
    let _deleted: i64 = command(&redis.nodes[master], &["DEL", key]).await?;
    Ok(())
}
