//! Failovers of Redis and what leads to them: another server becomes the master, with or without the last writes; a slot
//! moves. Only where there are replicas.

use std::time::Duration;

use testkit::wait::until;
use tokio::time::sleep;

use crate::chaos::{
    layout::RedisLayout,
    redis_data::{RedisData, command},
    redis_servers::RedisServers,
    test_cluster::TestCluster,
};
use workload::Error;

/// What is done to the master of the round's first sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisFailover {
    /// SIGKILL; the replica takes over. The old master comes back as its replica.
    Kill,
    /// As [`RedisFailover::Kill`], with a replica that had stopped copying: what was confirmed since is gone.
    KillWhileLagging,
    /// Writes wait until the replica has everything and is the master: nothing is lost.
    Graceful,
    /// A replica that had stopped copying takes over from a master that lives, which for a moment goes on as one.
    Forced,
    /// As [`RedisFailover::Forced`], without asking the other masters: CLUSTER FAILOVER TAKEOVER.
    Takeover,
    /// The master is cut off from all other servers, not from its clients, until the replica has taken over and longer.
    Partition,
    /// The slot of the round's first sale moves to another master, half of its keys earlier than the others.
    MoveSlot,
}

use RedisFailover::{Forced, Graceful, Kill, KillWhileLagging, MoveSlot, Partition, Takeover};

/// How long writes wait at most, in milliseconds: longer than a failover takes.
const PAUSE_MS: &str = "20000";
/// How long a replica may take to have everything once writes wait.
const COPY_LIMIT: Duration = Duration::from_secs(10);

impl RedisFailover {
    /// Every one that this layout can have.
    pub fn all(layout: RedisLayout) -> &'static [Self] {
        match layout {
            RedisLayout::Single => &[],
            RedisLayout::Sentinel => &[KillWhileLagging, Graceful, Partition, Forced, Kill],
            RedisLayout::Cluster => {
                &[KillWhileLagging, MoveSlot, Partition, Forced, Graceful, Kill, Takeover]
            }
        }
    }

    /// Whether writes that were confirmed may be gone: replication is asynchronous.
    pub fn forgets(self) -> bool {
        !matches!(self, Graceful | MoveSlot)
    }

    /// Injects it, and waits until every master has its replica again. `sales` are the vouchers on sale.
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
        let key = cluster.access.keys().stock(sales.first().copied().unwrap_or(1));
        let master = redis.master_of(&key).await?;
        let replica = redis.replica_of(master);
        match self {
            Kill => kill(redis, master, lasts).await?,
            KillWhileLagging => {
                stop_copying(redis, master).await?;
                sleep(lasts).await;
                kill(redis, master, Duration::ZERO).await?;
            }
            Graceful if redis.layout() == RedisLayout::Sentinel => hand_over(redis, master).await?,
            Graceful => redis.replace_by(replica, &[]).await?,
            Forced | Takeover => {
                stop_copying(redis, master).await?;
                sleep(lasts).await;
                match redis.layout() {
                    RedisLayout::Sentinel => {
                        redis.ask_for_failover().await?;
                        redis.took_over(replica).await?;
                        sleep(lasts).await;
                    }
                    _ if self == Takeover => redis.replace_by(replica, &["TAKEOVER"]).await?,
                    _ => redis.replace_by(replica, &["FORCE"]).await?,
                }
                allow_copying(redis, master).await?;
            }
            MoveSlot => redis.move_slot(&key, lasts).await?,
            Partition => {
                redis.partition(master, true);
                let took_over = redis.took_over(replica).await;
                sleep(lasts).await;
                redis.partition(master, false);
                took_over?;
            }
        }
        redis.replicated().await
    }
}

async fn kill(redis: &mut RedisServers, master: usize, lasts: Duration) -> Result<(), Error> {
    redis.nodes[master].kill();
    redis.took_over(redis.replica_of(master)).await?;
    sleep(lasts).await;
    redis.restart(master, RedisData::Intact).await
}

/// The replicas of a master get nothing more of what it does.
async fn stop_copying(redis: &RedisServers, master: usize) -> Result<(), Error> {
    let node = &redis.nodes[master];
    let () = command(node, &["ACL", "SETUSER", "default", "-psync", "-sync"]).await?;
    let _links: i64 = command(node, &["CLIENT", "KILL", "TYPE", "replica"]).await?;
    Ok(())
}

async fn allow_copying(redis: &RedisServers, master: usize) -> Result<(), Error> {
    command(&redis.nodes[master], &["ACL", "SETUSER", "default", "+psync", "+sync"]).await
}

/// Sentinel's failover without a loss: writes wait until the replica has everything, and until the master is one itself.
async fn hand_over(redis: &mut RedisServers, master: usize) -> Result<(), Error> {
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
    command(&redis.nodes[master], &["CLIENT", "UNPAUSE"]).await
}
