//! Failovers of Redis and what leads to them: another server becomes the master, with or without the last writes; a slot
//! moves. Only where there are replicas.

use std::time::Duration;

use testkit::wait::until;
use tokio::time::sleep;

use super::{redis::hold, scene::Scene};
use crate::chaos::{
    layout::RedisLayout,
    redis_data::{RedisData, command},
    redis_servers::RedisServers,
};
use workload::Error;

/// How long writes wait at most, in milliseconds: longer than a failover takes.
const PAUSE_MS: &str = "20000";
/// How long a replica may take to have everything once writes wait.
const COPY_LIMIT: Duration = Duration::from_secs(10);

/// SIGKILL; the replica takes over. The old master comes back as its replica.
pub async fn kill(it: Scene<'_>) -> Result<(), Error> {
    let (mut redis, master) = hold(it).await?;
    kill_master(&mut redis, master, it.lasts).await
}

/// As [`kill`], with a replica that had stopped copying: what was confirmed since is gone.
pub async fn kill_while_lagging(it: Scene<'_>) -> Result<(), Error> {
    let (mut redis, master) = hold(it).await?;
    stop_copying(&redis, master).await?;
    sleep(it.lasts).await;
    kill_master(&mut redis, master, Duration::ZERO).await
}

/// Sentinel's failover without a loss: writes wait until the replica has everything, and until the master is one itself.
pub async fn hand_over(it: Scene<'_>) -> Result<(), Error> {
    let (mut redis, master) = hold(it).await?;
    let replica = redis.replica_of(master);
    let () = command(&redis.nodes[master], &["CLIENT", "PAUSE", PAUSE_MS, "WRITE"]).await?;
    let offset = async |node: usize| -> Option<String> {
        let facts: String = command(&redis.nodes[node], &["INFO", "replication"]).await.ok()?;
        facts.lines().find_map(|line| line.strip_prefix("master_repl_offset:")).map(str::to_owned)
    };
    let has_all = until(COPY_LIMIT, async || {
        let (of_master, of_replica) = (offset(master).await, offset(replica).await);
        of_master.is_some() && of_master == of_replica
    });
    if !has_all.await {
        return Err(Error::server("redis-server", "its replica does not catch up".to_owned()));
    }
    redis.ask_for_failover().await?;
    redis.took_over(replica).await?;
    redis.demote(master, replica).await?;
    let () = command(&redis.nodes[master], &["CLIENT", "UNPAUSE"]).await?;
    redis.replicated().await
}

/// A cluster's failover without a loss: its master has writes wait until the replica has everything and is the master.
pub async fn replace(it: Scene<'_>) -> Result<(), Error> {
    let (mut redis, master) = hold(it).await?;
    redis.replace_by(redis.replica_of(master), &[]).await?;
    redis.replicated().await
}

/// A replica that had stopped copying takes over from a master that lives, which for a moment goes on as one. In a cluster
/// `how` says whether the other masters are asked: `FORCE` or `TAKEOVER`.
pub async fn replace_while_lagging(it: Scene<'_>, how: &str) -> Result<(), Error> {
    let (mut redis, master) = hold(it).await?;
    let replica = redis.replica_of(master);
    stop_copying(&redis, master).await?;
    sleep(it.lasts).await;
    if redis.layout == RedisLayout::Sentinel {
        redis.ask_for_failover().await?;
        redis.took_over(replica).await?;
        sleep(it.lasts).await;
    } else {
        redis.replace_by(replica, &[how]).await?;
    }
    let allow = ["ACL", "SETUSER", "default", "+psync", "+sync"];
    let () = command(&redis.nodes[master], &allow).await?;
    redis.replicated().await
}

/// The slot of the round's first sale moves to another master, half of its keys earlier than the others.
pub async fn move_slot(it: Scene<'_>) -> Result<(), Error> {
    let (mut redis, _) = hold(it).await?;
    let key = it.cluster.access.keys().stock(it.sales.first().copied().unwrap_or(1));
    redis.move_slot(&key, it.lasts).await?;
    redis.replicated().await
}

/// The master is cut off from all other servers, not from its clients, until the replica has taken over and longer.
pub async fn partition(it: Scene<'_>) -> Result<(), Error> {
    let (mut redis, master) = hold(it).await?;
    redis.partition(master, true);
    let took_over = redis.took_over(redis.replica_of(master)).await;
    sleep(it.lasts).await;
    redis.partition(master, false);
    took_over?;
    redis.replicated().await
}

async fn kill_master(
    redis: &mut RedisServers,
    master: usize,
    lasts: Duration,
) -> Result<(), Error> {
    redis.nodes[master].kill();
    redis.took_over(redis.replica_of(master)).await?;
    sleep(lasts).await;
    redis.restart(master, RedisData::Intact).await?;
    redis.replicated().await
}

/// The replicas of a master get nothing more of what it does.
async fn stop_copying(redis: &RedisServers, master: usize) -> Result<(), Error> {
    let node = &redis.nodes[master];
    let () = command(node, &["ACL", "SETUSER", "default", "-psync", "-sync"]).await?;
    let _links: i64 = command(node, &["CLIENT", "KILL", "TYPE", "replica"]).await?;
    Ok(())
}
