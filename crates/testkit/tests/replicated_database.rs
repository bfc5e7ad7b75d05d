//! The replicated database is what its name says: what it confirms, a semi-synchronous replica has received, and an
//! asynchronous one may lack.

use std::sync::Arc;
use std::time::Duration;

use seckill_testkit::database_server::{Product, Settings};
use seckill_testkit::process::TemporaryFolder;
use seckill_testkit::replicated_database::{ReplicatedDatabase, Replication};
use seckill_testkit::wait::eventually;
use sqlx::{Connection, Executor, MySqlConnection, Row};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(30);

/// `None` where the environment asks for MySQL.
async fn start(replication: Replication) -> Option<ReplicatedDatabase> {
    if Product::chosen().expect("a product") == Product::MySql {
        return None;
    }
    let folder = Arc::new(TemporaryFolder::new().expect("a folder"));
    let pair = ReplicatedDatabase::start_in(folder, replication, Settings::default()).await;
    Some(pair.expect("a replicated database"))
}

/// Runs a statement on a new connection through the proxy.
async fn run(pair: &ReplicatedDatabase, statement: &str) -> sqlx::Result<()> {
    MySqlConnection::connect(&pair.url()).await?.execute(statement).await.map(drop)
}

async fn numbers(url: &str) -> Vec<i32> {
    let mut connection = MySqlConnection::connect(url).await.expect("connect");
    // A replica may not have the table yet.
    let rows = connection.fetch_all("SELECT n FROM numbers ORDER BY n").await.unwrap_or_default();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn what_a_semi_synchronous_replica_has_not_received_is_not_confirmed_and_nobody_reads_it() {
    let Some(pair) = start(Replication::SemiSynchronous).await else { return };
    run(&pair, "CREATE TABLE numbers (n INT PRIMARY KEY)").await.expect("a table");
    run(&pair, "INSERT INTO numbers VALUES (1)").await.expect("confirmed");
    eventually("it is applied", LIMIT, async || numbers(&pair.replica().url()).await == [1]).await;
    pair.stop_receiving().await.expect("stop");
    let waiting = run(&pair, "INSERT INTO numbers VALUES (2)");
    assert!(timeout(Duration::from_secs(1), waiting).await.is_err(), "it was not received");
    assert_eq!(numbers(&pair.url()).await, [1]);
}

#[tokio::test]
async fn what_an_asynchronous_pair_confirmed_is_lost_with_its_primary() {
    let Some(mut pair) = start(Replication::Asynchronous).await else { return };
    run(&pair, "CREATE TABLE numbers (n INT PRIMARY KEY)").await.expect("a table");
    run(&pair, "INSERT INTO numbers VALUES (1)").await.expect("confirmed");
    eventually("it is applied", LIMIT, async || numbers(&pair.replica().url()).await == [1]).await;
    pair.stop_receiving().await.expect("stop");
    run(&pair, "INSERT INTO numbers VALUES (2)").await.expect("confirmed");
    pair.kill_primary();
    pair.promote().await.expect("promote");
    assert_eq!(numbers(&pair.url()).await, [1]);
}
