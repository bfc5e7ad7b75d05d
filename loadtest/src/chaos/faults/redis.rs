//! Faults of Redis itself: ended, stopped, emptied in part or whole, out of memory; and where there are replicas, failovers:
//! another server becomes the master, with or without the last writes, or a slot moves. A fault of a single server hits the
//! master of the round's first sale.

use std::time::Duration;

use anyhow::{Result, ensure};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use testkit::wait::until;
use tokio::{sync::MutexGuard, time::sleep};

use crate::chaos::{
    instance::pause,
    operator::Scene,
    options::RedisLayout,
    redis_data::{RedisData, command, take_snapshot},
    redis_servers::RedisServers,
};
use workload::sessions;

/// How long writes wait at most for a failover, in milliseconds: longer than one takes.
const PAUSE_MS: &str = "20000";
/// How long a replica may take to have everything once writes wait.
const COPY_LIMIT: Duration = Duration::from_secs(10);

/// Locks the servers; returns them, and which of them is the master of the round's first sale. A fault holds the lock for as
/// long as it lasts, so that faults of Redis take turns.
async fn hold(scene: Scene<'_>) -> Result<(MutexGuard<'_, RedisServers>, usize)> {
    let redis = scene.cluster.redis.lock().await;
    let master = redis.master_of(&key(scene)).await?;
    Ok((redis, master))
}

/// A key of the round's first sale.
fn key(scene: Scene<'_>) -> String {
    scene
        .cluster
        .access
        .keys()
        .stock(scene.operator.sales[0].voucher_id)
}

/// SIGKILL, then started again with this data. The old snapshot is taken before the kill, as long before as the server is
/// then away.
pub async fn kill(scene: Scene<'_>, data: RedisData) -> Result<()> {
    let (mut redis, master) = hold(scene).await?;
    if data == RedisData::Old {
        take_snapshot(&redis.nodes[master]).await?;
        sleep(scene.lasts).await;
    }
    redis.nodes[master].kill();
    sleep(scene.lasts).await;
    redis.restart(master, data).await?;
    redis.replicated().await?;
    if data == RedisData::Intact {
        Ok(())
    } else {
        sign_in_again(scene).await
    }
}

async fn sign_in_again(scene: Scene<'_>) -> Result<()> {
    Ok(sessions::open(&scene.cluster.access, &scene.operator.sales[0].buyers).await?)
}

/// SIGSTOP, then SIGCONT.
pub async fn stop(scene: Scene<'_>) -> Result<()> {
    let (mut redis, master) = hold(scene).await?;
    pause(redis.nodes[master].process()?, scene.lasts).await?;
    redis.replicated().await
}

pub async fn empty(scene: Scene<'_>) -> Result<()> {
    let (mut redis, _) = hold(scene).await?;
    on_all_masters(&redis, &["FLUSHALL"]).await?;
    redis.replicated().await?;
    sign_in_again(scene).await
}

/// Deletes the stream of admitted orders, and nothing else.
pub async fn delete_stream(scene: Scene<'_>) -> Result<()> {
    let (mut redis, _) = hold(scene).await?;
    delete(&redis, &scene.cluster.access.keys().stream()).await?;
    redis.replicated().await
}

/// Deletes one by one all other keys that serve the sales: counters, claims, marks, ids, the hash, the group.
pub async fn delete_keys(scene: Scene<'_>) -> Result<()> {
    let (mut redis, _) = hold(scene).await?;
    let access = &scene.cluster.access;
    let day = chrono::Utc::now()
        .with_timezone(&access.time_zone)
        .format("%Y:%m:%d")
        .to_string();
    let sales: Vec<u64> = scene
        .operator
        .sales
        .iter()
        .map(|sale| sale.voucher_id)
        .collect();
    let mut keys = access.keys().replaceable(&day, &sales);
    // The order follows from the fault's duration, which was drawn from the run's seed.
    keys.shuffle(&mut StdRng::seed_from_u64(scene.lasts.as_millis() as u64));
    let pause = scene.lasts / (keys.len() as u32 + 1);
    for key in keys {
        delete(&redis, &key).await?;
        sleep(pause).await;
    }
    let stream = access.keys().stream();
    let master = &redis.nodes[redis.master_of(&stream).await?];
    let _destroyed: i64 = command(master, &["XGROUP", "DESTROY", &stream, "g1"]).await?;
    redis.replicated().await
}

/// No memory is left, and nothing is evicted: commands that could write are refused.
pub async fn out_of_memory(scene: Scene<'_>) -> Result<()> {
    let (mut redis, _) = hold(scene).await?;
    on_all_masters(&redis, &["CONFIG", "SET", "maxmemory", "1"]).await?;
    sleep(scene.lasts).await;
    on_all_masters(&redis, &["CONFIG", "SET", "maxmemory", "0"]).await?;
    redis.replicated().await
}

async fn on_all_masters(redis: &RedisServers, words: &[&str]) -> Result<()> {
    for master in redis.masters().await? {
        let () = command(&redis.nodes[master], words).await?;
    }
    Ok(())
}

/// Deletes a key on the server that has it.
async fn delete(redis: &RedisServers, key: &str) -> Result<()> {
    let master = redis.master_of(key).await?;
    let _deleted: i64 = command(&redis.nodes[master], &["DEL", key]).await?;
    Ok(())
}

/// SIGKILL; the replica takes over, and the old master comes back as its replica. If `lagging`, the replica has stopped
/// copying before, and what was confirmed since is lost.
pub async fn kill_master(scene: Scene<'_>, lagging: bool) -> Result<()> {
    let (mut redis, master) = hold(scene).await?;
    if lagging {
        stop_copying(&redis, master).await?;
        sleep(scene.lasts).await;
    }
    redis.nodes[master].kill();
    redis.took_over(redis.replica_of(master)).await?;
    sleep(scene.lasts).await;
    redis.restart(master, RedisData::Intact).await?;
    redis.replicated().await
}

/// A failover without a loss: writes wait until the replica has everything and the old master has become a replica. In a
/// cluster the servers see to that themselves; with Sentinel it is done here.
pub async fn hand_over(scene: Scene<'_>) -> Result<()> {
    let (mut redis, master) = hold(scene).await?;
    let replica = redis.replica_of(master);
    if redis.layout == RedisLayout::Cluster {
        redis.replace_by(replica, &[]).await?;
        return redis.replicated().await;
    }
    let () = command(
        &redis.nodes[master],
        &["CLIENT", "PAUSE", PAUSE_MS, "WRITE"],
    )
    .await?;
    let offset = async |node: usize| -> Option<String> {
        let facts: String = command(&redis.nodes[node], &["INFO", "replication"])
            .await
            .ok()?;
        facts
            .lines()
            .find_map(|line| line.strip_prefix("master_repl_offset:"))
            .map(str::to_owned)
    };
    let has_caught_up = until(COPY_LIMIT, async || {
        let master_offset = offset(master).await;
        let replica_offset = offset(replica).await;
        master_offset.is_some() && master_offset == replica_offset
    });
    ensure!(
        has_caught_up.await,
        "the replica of Redis does not catch up"
    );
    redis.ask_for_failover().await?;
    redis.took_over(replica).await?;
    redis.demote(master, replica).await?;
    let () = command(&redis.nodes[master], &["CLIENT", "UNPAUSE"]).await?;
    redis.replicated().await
}

/// A replica that has stopped copying takes over from a living master, which goes on as a master for a moment. In a cluster
/// `how` says whether the other masters vote on it (`FORCE`) or not (`TAKEOVER`).
pub async fn replace_while_lagging(scene: Scene<'_>, how: &str) -> Result<()> {
    let (mut redis, master) = hold(scene).await?;
    let replica = redis.replica_of(master);
    stop_copying(&redis, master).await?;
    sleep(scene.lasts).await;
    if redis.layout == RedisLayout::Sentinel {
        redis.ask_for_failover().await?;
        redis.took_over(replica).await?;
        sleep(scene.lasts).await;
    } else {
        redis.replace_by(replica, &[how]).await?;
    }
    let allow = ["ACL", "SETUSER", "default", "+psync", "+sync"];
    let () = command(&redis.nodes[master], &allow).await?;
    redis.replicated().await
}

/// The slot of the round's first sale moves to another master, half of its keys earlier than the others.
pub async fn move_slot(scene: Scene<'_>) -> Result<()> {
    let (mut redis, _) = hold(scene).await?;
    redis.move_slot(&key(scene), scene.lasts).await?;
    redis.replicated().await
}

/// The master is cut off from all other servers, not from its clients, until the replica has taken over and longer.
pub async fn partition(scene: Scene<'_>) -> Result<()> {
    let (mut redis, master) = hold(scene).await?;
    redis.partition(master, true);
    let took_over = redis.took_over(redis.replica_of(master)).await;
    sleep(scene.lasts).await;
    redis.partition(master, false);
    took_over?;
    redis.replicated().await
}

/// Stops all replicas of a master from copying it any further.
async fn stop_copying(redis: &RedisServers, master: usize) -> Result<()> {
    let node = &redis.nodes[master];
    let () = command(node, &["ACL", "SETUSER", "default", "-psync", "-sync"]).await?;
    let _links: i64 = command(node, &["CLIENT", "KILL", "TYPE", "replica"]).await?;
    Ok(())
}
