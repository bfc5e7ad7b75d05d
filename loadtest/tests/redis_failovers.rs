//! The Redis layouts of the chaos test by themselves: what is lost with a master is lost, and nothing else. That a failover
//! happens, and that the servers are whole after it, the chaos run insists on itself.

use std::sync::Arc;

use anyhow::Result;
use seckill_loadtest::chaos::{
    RedisLayout,
    redis_data::{RedisData, command, take_snapshot},
    redis_servers::RedisServers,
};
use testkit::process::TemporaryFolder;

const KEY: &str = "seckill:stock:{1}:1";

async fn start(layout: RedisLayout) -> Result<RedisServers> {
    let folder = Arc::new(TemporaryFolder::new().expect("a temporary folder"));
    RedisServers::start(layout, &folder, Vec::new(), 2).await
}

async fn set(redis: &RedisServers, value: &str) -> Result<()> {
    let master = redis.master_of(KEY).await?;
    command(&redis.nodes[master], &["SET", KEY, value]).await
}

async fn get(redis: &RedisServers) -> Result<Option<String>> {
    let master = redis.master_of(KEY).await?;
    command(&redis.nodes[master], &["GET", KEY]).await
}

/// Kills the master and restarts it; partitions the next one, and writes to it meanwhile.
async fn failovers(redis: &mut RedisServers) -> Result<()> {
    let first = redis.master_of(KEY).await?;
    let second = redis.replica_of(first);
    for data in [RedisData::Old, RedisData::Empty, RedisData::Intact] {
        set(redis, "before").await?;
        for node in &redis.nodes {
            take_snapshot(node).await?;
        }
        set(redis, "after").await?;
        redis.nodes[first].kill();
        redis.restart(first, data).await?;
        redis.replicated().await?;
        let expected = match data {
            RedisData::Old => Some("before"),
            RedisData::Empty => None,
            RedisData::Intact => Some("after"),
        };
        assert_eq!(get(redis).await?.as_deref(), expected, "{data:?}");
    }
    redis.nodes[first].kill();
    redis.took_over(second).await?;
    redis.restart(first, RedisData::Intact).await?;
    redis.replicated().await?;
    assert_eq!(redis.master_of(KEY).await?, second);
    assert_eq!(get(redis).await?.as_deref(), Some("after"));

    redis.partition(second, true);
    set(redis, "lost").await.expect("the old master takes writes");
    redis.took_over(first).await?;
    redis.partition(second, false);
    redis.replicated().await?;
    assert_eq!(redis.master_of(KEY).await?, first);
    assert_eq!(
        get(redis).await?.as_deref(),
        Some("after"),
        "what was written to the old master is gone"
    );
    Ok(())
}

/// Failovers take real time: `./dev test slow`.
mod slow {
    use super::*;

    #[tokio::test]
    async fn sentinel_fails_over() {
        failovers(&mut start(RedisLayout::Sentinel).await.expect("servers")).await.expect("whole");
    }

    #[tokio::test]
    async fn a_cluster_fails_over() {
        failovers(&mut start(RedisLayout::Cluster).await.expect("servers")).await.expect("whole");
    }
}
