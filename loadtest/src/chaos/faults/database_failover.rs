//! Failovers of the database: the replica becomes the primary, and the proxy leads to it. Only where there is a replica.

use std::{io, time::Duration};

use testkit::replicated_database::ReplicatedDatabase;
use tokio::time::sleep;

use super::scene::Scene;
use crate::chaos::instance::server;
use workload::Error;

/// SIGKILL of the primary; then the replica is promoted.
pub async fn kill(it: Scene<'_>) -> Result<(), Error> {
    fail_over(it, async |pair, lasts| {
        pair.kill_primary();
        sleep(lasts).await;
        pair.promote().await
    })
    .await
}

/// As [`kill`], with a replica that received nothing for a while: a semi-synchronous one has everything that was confirmed
/// all the same, an asynchronous one has not.
pub async fn kill_while_lagging(it: Scene<'_>) -> Result<(), Error> {
    fail_over(it, async |pair, lasts| {
        pair.stop_receiving().await?;
        sleep(lasts).await;
        pair.kill_primary();
        pair.promote().await
    })
    .await
}

/// A planned change of the roles; the old primary goes on, read-only, with its open connections.
pub async fn switch_over(it: Scene<'_>) -> Result<(), Error> {
    fail_over(it, async |pair, lasts| {
        pair.switch_over().await?;
        sleep(lasts).await;
        Ok(())
    })
    .await
}

/// Fails over as told, and makes the old primary the replica.
async fn fail_over(
    it: Scene<'_>,
    how: impl AsyncFnOnce(&mut ReplicatedDatabase, Duration) -> io::Result<()>,
) -> Result<(), Error> {
    // Held for as long as it lasts: faults of one server take turns.
    let mut pair = it.cluster.database.lock().await;
    let failover = async {
        how(&mut pair, it.lasts).await?;
        pair.rejoin().await
    };
    failover.await.map_err(server("the replicated database"))
}
