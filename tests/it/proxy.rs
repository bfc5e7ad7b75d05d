//! The fault proxy itself, where a test could not otherwise tell whether the fault took place.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use sqlx::{Connection, Executor, MySqlConnection};
use testkit::proxy::{Mode, Proxy};
use testkit::redis_server::RedisServer;
use tokio::time::timeout;

use crate::support::database::TestDatabase;
use crate::support::{PATIENCE, eventually};

/// Long enough for a reply that is on its way, on a busy machine.
const SILENCE: Duration = Duration::from_millis(400);

async fn ping(connection: &mut MultiplexedConnection) -> redis::RedisResult<String> {
    redis::cmd("PING").query_async(connection).await
}

/// A connection without a time limit for replies.
async fn connect(proxy: &Proxy) -> MultiplexedConnection {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    proxy
        .redis()
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .expect("connect")
}

#[tokio::test]
async fn half_open_connections_stay_silent_and_open_and_new_ones_work() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.address()).await.expect("a proxy");
    let mut forgotten = connect(&proxy).await;
    ping(&mut forgotten).await.expect("a reply");

    proxy.set(Mode::HalfOpen);
    assert!(
        timeout(SILENCE, ping(&mut forgotten)).await.is_err(),
        "neither a reply nor an error"
    );
    let mut new = connect(&proxy).await;
    ping(&mut new).await.expect("a reply on a new connection");

    proxy.set(Mode::Forward);
    assert!(
        timeout(SILENCE, ping(&mut forgotten)).await.is_err(),
        "forgotten for good"
    );
    proxy.set(Mode::HalfOpen);
    assert!(
        timeout(SILENCE, ping(&mut new)).await.is_err(),
        "forgotten the second time"
    );
    proxy.set(Mode::Cut);
    timeout(PATIENCE, ping(&mut new))
        .await
        .expect("an end")
        .expect_err("the connection is closed");
}

#[tokio::test]
async fn a_held_commit_takes_place_although_its_client_has_gone() {
    let database = TestDatabase::empty().await;
    database.run("CREATE TABLE t (id INT PRIMARY KEY)").await;
    let proxy = Proxy::start(database.server().to_owned())
        .await
        .expect("a proxy");
    let url = database.url_through(proxy.address);
    let mut connection = MySqlConnection::connect(&url).await.expect("connect");
    connection
        .execute("START TRANSACTION")
        .await
        .expect("begin");
    connection
        .execute("INSERT INTO t VALUES (1)")
        .await
        .expect("insert");

    proxy.set(Mode::HoldCommits);
    assert!(
        timeout(SILENCE, connection.execute("COMMIT"))
            .await
            .is_err(),
        "it is held"
    );
    connection.close_hard().await.expect("close");
    let uncommitted = "SELECT COUNT(*) FROM t";
    assert_eq!(
        database.number(uncommitted).await,
        0,
        "the transaction is still open"
    );
    proxy.set(Mode::Forward);
    eventually("the COMMIT arrives", async || {
        database.number(uncommitted).await == 1
    })
    .await;
}
