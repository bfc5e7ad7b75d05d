//! The replicated database is what its name says: what it confirms survives its primary if replication is
//! semi-synchronous, and may be lost if it is not.

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
async fn what_a_semi_synchronous_pair_confirmed_survives_its_primary() {
    let Some(mut pair) = start(Replication::SemiSynchronous).await else { return };
    run(&pair, "CREATE TABLE numbers (n INT PRIMARY KEY)").await.expect("a table");
    run(&pair, "INSERT INTO numbers VALUES (1)").await.expect("confirmed");
    eventually("it is applied", LIMIT, async || numbers(&pair.replica().url()).await == [1]).await;
    // Confirmed when it is received, applied or not.
    pair.stop_applying().await.expect("stop");
    run(&pair, "INSERT INTO numbers VALUES (2)").await.expect("confirmed");
    assert_eq!(numbers(&pair.replica().url()).await, [1]);
    pair.kill_primary();
    assert!(run(&pair, "SELECT 1").await.is_err());
    pair.promote().await.expect("promote");
    assert_eq!(numbers(&pair.url()).await, [1, 2]);
    run(&pair, "INSERT INTO numbers VALUES (3)").await.expect("the new primary takes writes");

    // A planned change: open connections stay at the old primary, which refuses their writes.
    pair.rejoin().await.expect("rejoin");
    pair.primary_mut().try_restart().await.expect("restart");
    let mut old = MySqlConnection::connect(&pair.url()).await.expect("connect");
    pair.switch_over().await.expect("switch over");
    let refused = old.execute("INSERT INTO numbers VALUES (4)").await.expect_err("read-only");
    assert!(refused.to_string().contains("read-only"), "{refused}");
    run(&pair, "INSERT INTO numbers VALUES (5)").await.expect("the new primary takes writes");

    // What is not received is not confirmed, and nobody reads it.
    pair.rejoin().await.expect("rejoin");
    pair.stop_receiving().await.expect("stop");
    let waiting = run(&pair, "INSERT INTO numbers VALUES (6)");
    assert!(timeout(Duration::from_secs(1), waiting).await.is_err(), "it was not received");
    assert_eq!(numbers(&pair.url()).await, [1, 2, 3, 5]);
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
