//! The fault proxy itself, where a test could not otherwise tell whether the fault took place.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use sqlx::{Connection, Executor, MySqlConnection};
use testkit::proxy::{Mode, Proxy};
use testkit::raw::query;
use testkit::redis_server::RedisServer;
use tokio::time::timeout;
use workload::{Access, sessions};

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

/// Held bytes never arrive if a middlebox forgets their connection, and [`Proxy::pass_held`] does not wait for them.
#[tokio::test]
async fn held_bytes_of_a_half_open_connection_do_not_arrive() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.address()).await.expect("a proxy");
    for closes in [false, true] {
        let mut held = connect(&proxy).await;
        ping(&mut held).await.expect("a reply");
        proxy.set(Mode::HoldBytes);
        let append = tokio::spawn(async move {
            let mut append = redis::cmd("APPEND");
            append.arg("k").arg("a").query_async::<i64>(&mut held).await
        });
        eventually("it is held", async || proxy.held() == 1).await;
        if closes {
            append.abort();
        }
        proxy.set(Mode::HalfOpen);
        proxy.pass_held().await;
        assert_eq!(proxy.held(), 0);
        let mut new = connect(&proxy).await;
        let arrived: i64 = query(&mut new, "EXISTS", &["k"]).await;
        assert_eq!(arrived, 0, "its client has closed it: {closes}");
    }
}

/// A late copy of what a client has long given up: the server executes all of it, in order, although the client is gone.
#[tokio::test]
async fn held_bytes_arrive_late_although_their_client_has_gone() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.address()).await.expect("a proxy");
    let mut held = connect(&proxy).await;
    ping(&mut held).await.expect("a reply");
    proxy.set(Mode::HoldBytes);
    let append = |text: &'static str, mut connection: MultiplexedConnection| async move {
        let mut append = redis::cmd("APPEND");
        append.arg("k").arg(text);
        append.query_async::<i64>(&mut connection).await
    };
    let first = tokio::spawn(append("a", held.clone()));
    eventually("the first is held", async || proxy.held() == 1).await;
    // Whatever the mode is now, what the same connection sends next is held, too.
    proxy.set(Mode::Forward);
    let sent = proxy.requests();
    let second = tokio::spawn(append("b", held));
    eventually("the second is held", async || proxy.requests() > sent).await;
    for given_up in [first, second] {
        given_up.abort();
        given_up.await.expect_err("it has no reply");
    }
    let mut new = connect(&proxy).await;
    append("c", new.clone())
        .await
        .expect("new connections work");
    assert_eq!(text(&mut new).await, "c", "nothing has arrived");

    proxy.pass_held().await;
    assert_eq!(text(&mut new).await, "cab");
    eventually("only the new one is open", async || {
        let clients: String = query(&mut new, "CLIENT", &["LIST", "TYPE", "normal"]).await;
        clients.lines().count() == 1
    })
    .await;
}

/// The value that the test appends to.
async fn text(connection: &mut MultiplexedConnection) -> String {
    query(connection, "GET", &["k"]).await
}

/// The tools sign buyers in beside faults, which may break the connection while it is being made.
#[tokio::test]
async fn sessions_are_written_although_the_first_connection_breaks() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.address()).await.expect("a proxy");
    let access = Access {
        database_url: String::new(),
        redis_url: format!("redis://{}/", proxy.address),
        admin_token: String::new(),
        time_zone: chrono_tz::Asia::Shanghai,
        key_style: None,
    };
    proxy.set(Mode::LoseReply);
    let signed_in = sessions::signed_in(&access, 1).await;
    assert_eq!(signed_in.expect("sessions").len(), 1);
    assert_eq!(proxy.mode(), Mode::Forward, "no connection was closed");
    let mut raw = redis.conn().await;
    let written: Vec<String> = query(&mut raw, "KEYS", &["login:token:*"]).await;
    assert_eq!(written.len(), 1);
}
