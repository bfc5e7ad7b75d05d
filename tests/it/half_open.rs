//! Half-open connections: a middlebox forgot them, so that nothing passes any more and nothing is reset. The server itself
//! is well, and new connections work.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use seckill::connection::{mysql, redis as redis_connection};
use testkit::proxy::{Mode, Proxy};
use testkit::redis_server::RedisServer;
use testkit::wait::until;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::resilience::while_sale_is_locked;
use crate::support::api::metric;
use crate::support::database::TestDatabase;
use crate::support::eventually;
use crate::support::stack::Stack;

/// Waits until as many connections to the database are open as the instance may open.
async fn open_all_connections(stack: &Stack, sale: i64, connections: usize) {
    let users = stack.users(connections as i64).await;
    while_sale_is_locked(stack, sale, async {
        let buying = users.iter().map(|user| stack.buy(user, sale));
        let used = "seckill_database_connections{state=\"in_use\"}";
        let opened = eventually("all connections are used", async || {
            metric(stack.url(), used).await == connections as u64
        });
        // Bought when the lock is gone; dropped here, they run on.
        tokio::select! {
            _ = join_all(buying) => {}
            () = opened => {}
        }
    })
    .await;
    let bought = async || stack.orders(sale).await == connections as i64;
    eventually("all have bought", bought).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_connections_to_the_database_are_closed_and_replaced() {
    let connections = 12;
    let argument = connections.to_string();
    let stack = Stack::behind_proxies(&["--database-connections", &argument]).await;
    let warm = stack.publish(1000, "row-lock").await;
    open_all_connections(&stack, warm, connections).await;
    let sale = stack.publish(1000, "reentrant-lock").await;
    let users = stack.users(4).await;
    for user in &users {
        stack.proxies.database.set(Mode::HalfOpen);
        let broken = Instant::now();
        stack.ready().await;
        // A ready answer may be a moment old.
        let sold = async || stack.buy(user, sale).await.status == 200;
        eventually("it sells", sold).await;
        println!("sells after {:?}", broken.elapsed());
    }
    assert_eq!(stack.orders(sale).await, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_is_told_what_became_of_it_and_half_open_connections_block_and_stop_no_sale() {
    let stack = Stack::behind_proxies(&[]).await;
    let user = stack.users(1).await.remove(0);
    for strategy in ["reentrant-lock", "group-commit", "row-lock"] {
        let sale = stack.publish(5, strategy).await;
        while_sale_is_locked(&stack, sale, async {
            let buying = stack.buy(&user, sale);
            let fault = async {
                stack.database.wait_for_statement("UPDATE").await;
                stack.proxies.database.set(Mode::HalfOpen);
            };
            // On a busy machine the purchase may end before: then nothing was done either.
            let mut buying = std::pin::pin!(buying);
            let answer = tokio::select! {
                answer = &mut buying => answer,
                () = fault => buying.await,
            };
            if strategy != "row-lock" && answer.body["code"] == "OUTCOME_UNKNOWN" {
                // The row is waited for in the request that commits: what became of it is looked up, until the time
                // limit, which comes before the server gives the silent connection up.
                assert_eq!(answer.status, 503);
            } else {
                answer.refused(503, "UNAVAILABLE");
            }
        })
        .await;
        stack.ready().await;
    }
    assert_eq!(stack.all_orders().await, 0);

    // An instance is cut off in mid-transaction: its connection is not closed, so the server would keep the transaction, which
    // holds the sale's row, for hours.
    let users = stack.users(2).await;
    // The strategy whose transactions hold the row while they wait for a request.
    let sale = stack.publish(5, "row-lock").await;
    while_sale_is_locked(&stack, sale, async {
        let fault = async {
            stack.database.wait_for_statement("UPDATE").await;
            stack.proxies.database.set(Mode::HalfOpen);
        };
        // A purchase that a busy machine ends before is followed by another.
        let buying = async {
            loop {
                stack.buy(&users[0], sale).await.refused(503, "UNAVAILABLE");
            }
        };
        tokio::select! {
            () = buying => {}
            () = fault => {}
        }
    })
    .await;
    let lost = Instant::now();
    let sold = async || stack.buy(&users[1], sale).await.status == 200;
    // The server ends the transaction after 5 s; MySQL, which has no such limit, closes the connection after 30 s.
    let seconds = if stack.database.is_mariadb().await { 20 } else { 60 };
    let is_sold = until(Duration::from_secs(seconds), sold).await;
    assert!(is_sold, "the row is still held");
    println!("sold {:?} after the transaction was lost", lost.elapsed());
    assert_eq!(stack.orders(sale).await, 1);

    // Those to Redis are replaced.
    let (users, before) = (stack.users(4).await, stack.all_orders().await);
    let mut sales = Vec::new();
    for strategy in ["reentrant-lock", "setnx-lock", "stream", "group-commit"] {
        let sale = stack.publish(1000, strategy).await;
        stack.buy(&users[0], sale).await.bought();
        sales.push(sale);
    }
    for user in &users[1..] {
        stack.proxies.redis.set(Mode::HalfOpen);
        let broken = Instant::now();
        stack.ready().await;
        println!("ready after {:?}", broken.elapsed());
        for sale in &sales {
            // The locks have a connection of their own, which nothing but a purchase uses.
            let bought = async || {
                let answer = stack.buy(user, *sale).await;
                matches!(answer.status, 200 | 202) && answer.body["code"] != "LOCK_BUSY"
            };
            eventually("it sells", bought).await;
        }
        println!("sells after {:?}", broken.elapsed());
    }
    stack.stream_drained().await;
    let bought = (users.len() * sales.len()) as i64;
    assert_eq!(stack.all_orders().await, before + bought);
}

/// A connection whose statement was answered must give its place back, even if it goes silent at that moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_goes_silent_while_it_is_released_gives_its_place_back() {
    let database = TestDatabase::empty().await;
    let proxy = Proxy::start(database.server().to_owned()).await.expect("a proxy");
    let url = database.url_through(proxy.address).into();
    let limit = Duration::from_secs(2);
    let pool = mysql::connect(&url, 1, limit).await.expect("connect");
    for _ in 0..3 {
        let mut connection = pool.pool.acquire().await.expect("the only connection");
        let one = sqlx::query_scalar::<_, i64>("SELECT 1").fetch_one(&mut *connection).await;
        proxy.set(Mode::HalfOpen);
        assert_eq!(one.expect("a reply"), 1);
        drop(connection);
        // It is handed on untested, or not; either way the place is free in time.
        eventually("the database answers", async || mysql::ping(&pool).await.is_ok()).await;
    }
    let [idle, in_use, _] = pool.pool.usage();
    assert_eq!(in_use + idle, 1, "{in_use} in use, {idle} idle");
}

/// An address that leads to the one server or the other: connections stay where they were opened.
async fn forward(servers: [String; 2], to: watch::Receiver<usize>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.expect("a connection");
            let server = servers[*to.borrow()].clone();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    address
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_left_for_its_successor() {
    let (old, new) = (RedisServer::start().await, RedisServer::start().await);
    let (switch, to) = watch::channel(0);
    let address = forward([old.address(), new.address()], to).await;
    let url = format!("redis://{address}/").into();
    let server = redis_connection::server(&url, None, None).expect("an address");
    let limit = Duration::from_secs(1);
    let redis = redis_connection::connect(server, limit).await.expect("connect");
    let mut shared = redis.commands();
    let mut write = redis::cmd("SET");
    write.arg("key").arg("value");
    write.exec_async(&mut shared).await.expect("a write");

    let (host, port) = ("127.0.0.1", new.port());
    let mut raw = old.conn().await;
    let mut demote = redis::cmd("REPLICAOF");
    demote.arg(host).arg(port).exec_async(&mut raw).await.expect("a replica");
    write.exec_async(&mut shared).await.expect_err("a replica takes no writes");
    switch.send_replace(1);
    let script = redis::Script::new("return redis.call('SET', KEYS[1], 'value')");
    eventually("writes reach the new master", async || {
        script.key("by script").invoke_async::<()>(&mut shared.clone()).await.is_ok()
    })
    .await;
    write.exec_async(&mut shared).await.expect("a write");
}
