//! Failovers of the database: the replica becomes the primary, and the proxy leads to it. Only where there is a replica.

use std::time::Duration;

use tokio::time::sleep;

use crate::chaos::test_cluster::{TestCluster, server};
use workload::Error;

/// What is done to the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseFailover {
    /// SIGKILL; then the replica is promoted.
    Kill,
    /// As [`DatabaseFailover::Kill`], with a replica that received nothing for a while: a semi-synchronous one has
    /// everything that was confirmed all the same, an asynchronous one has not.
    KillWhileLagging,
    /// A planned change of the roles; the old primary goes on, read-only, with its open connections.
    SwitchOver,
}

use DatabaseFailover::{Kill, KillWhileLagging, SwitchOver};

/// How a failing pair is called in messages.
const WHAT: &str = "the replicated database";

impl DatabaseFailover {
    /// Every one.
    pub const ALL: [Self; 3] = [Kill, SwitchOver, KillWhileLagging];

    /// Injects it, and makes the old primary the replica.
    ///
    /// # Errors
    /// [`Error::Server`].
    pub async fn inject(self, cluster: &TestCluster, lasts: Duration) -> Result<(), Error> {
        // Held for as long as it lasts: faults of one server take turns.
        let mut database = cluster.database.lock().await;
        let pair = database.pair().map_err(server(WHAT))?;
        let failover = async {
            match self {
                Kill => {
                    pair.kill_primary();
                    sleep(lasts).await;
                    pair.promote().await?;
                }
                KillWhileLagging => {
                    pair.stop_receiving().await?;
                    sleep(lasts).await;
                    pair.kill_primary();
                    pair.promote().await?;
                }
                SwitchOver => {
                    pair.switch_over().await?;
                    sleep(lasts).await;
                }
            }
            pair.rejoin().await
        };
        failover.await.map_err(server(WHAT))
    }
}
