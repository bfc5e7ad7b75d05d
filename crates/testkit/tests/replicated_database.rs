//! What a replicated database has confirmed: a semi-synchronous replica has received it, and an asynchronous one may
//! lack it.

use std::sync::Arc;
use std::time::Duration;

use seckill_testkit::database_server::{Product, Settings};
use seckill_testkit::process::TemporaryFolder;
use seckill_testkit::replicated_database::{ReplicatedDatabase, Replication};
use seckill_testkit::wait::eventually;
use sqlx::{Connection, Executor, MySqlConnection, Row};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(30);
/// How long the test waits for a commit that must not be confirmed.
const UNCONFIRMED: Duration = Duration::from_secs(1);

/// Runs a statement on a new connection through the proxy.
async fn run(pair: &ReplicatedDatabase, statement: &str) -> sqlx::Result<()> {
    MySqlConnection::connect(&pair.url())
        .await?
        .execute(statement)
        .await
        .map(drop)
}

async fn numbers(url: &str) -> Vec<i32> {
    let mut connection = MySqlConnection::connect(url).await.expect("connect");
    // A replica may not have the table yet.
    let rows = connection
        .fetch_all("SELECT n FROM numbers ORDER BY n")
        .await
        .unwrap_or_default();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn what_a_replica_has_not_received_is_confirmed_only_by_an_asynchronous_pair_and_is_lost() {
    if Product::chosen().expect("a product") != Product::MariaDb {
        return;
    }
    for replication in [Replication::SemiSynchronous, Replication::Asynchronous] {
        let folder = Arc::new(TemporaryFolder::new().expect("a folder"));
        let pair = ReplicatedDatabase::start_in(folder, replication, Settings::default()).await;
        let mut pair = pair.expect("a replicated database");
        run(&pair, "CREATE TABLE numbers (n INT PRIMARY KEY)")
            .await
            .expect("a table");
        run(&pair, "INSERT INTO numbers VALUES (1)")
            .await
            .expect("confirmed");
        let replica = pair.replica().url();
        eventually("it is applied", LIMIT, async || {
            numbers(&replica).await == [1]
        })
        .await;
        pair.stop_receiving().await.expect("stop");
        let adding = run(&pair, "INSERT INTO numbers VALUES (2)");
        let must_be_confirmed = replication == Replication::Asynchronous;
        let limit = if must_be_confirmed {
            LIMIT
        } else {
            UNCONFIRMED
        };
        let confirmed = timeout(limit, adding).await.is_ok();
        assert_eq!(confirmed, must_be_confirmed);
        let readable = if confirmed { vec![1, 2] } else { vec![1] };
        assert_eq!(
            numbers(&pair.url()).await,
            readable,
            "nobody reads what is not confirmed"
        );
        pair.kill_primary();
        pair.promote().await.expect("promote");
        assert_eq!(numbers(&pair.url()).await, [1]);
    }
}
