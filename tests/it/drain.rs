//! Graceful shutdown: an instance that is to stop waits for what it has begun, beyond the grace period in which it still
//! accepts connections. Each step leaves the instance one thing to wait for, so that nothing else keeps it running. What becomes
//! of connections is shown by unit tests of `http/listen.rs` as well, and by a rolling restart, in [`crate::slow`].

use hyper::Method;
use hyper::header::CONNECTION;
use redis::AsyncCommands;
use serde_json::json;
use workload::http::{Call, Connection};

use crate::reads::{lock, unlock};
use crate::resilience::COMMITTING;
use crate::support::api::{get, metric, post};
use crate::support::receiver::Receiver;
use crate::support::stack::{SignedIn, Stack};
use crate::support::{PATIENCE, eventually, until_refused};
use crate::webhook::arguments;

/// Sends SIGTERM to the first instance, and waits until the second, which is told later and has nothing to wait for, has
/// ended: the first must still run.
async fn drain_beyond_the_grace(stack: &mut Stack) {
    let mut idle = stack.instances.pop().expect("a second instance");
    for instance in [&stack.instances[0], &idle] {
        instance.terminate();
        instance.wait_for_line("draining").await;
    }
    idle.ended().await;
    assert!(stack.instances[0].is_running(), "it did not wait");
}

/// A purchase waits for the sale's row when the instance is to stop, and the row stays locked beyond the grace period. Its
/// client has hung up, so that there is no connection to wait for. Then a read has nothing but a connection, and a payment goes
/// on without one.
#[tokio::test]
async fn a_drain_waits_for_what_was_begun_by_clients_that_hung_up_and_for_a_read() {
    let mut stack = Stack::start(0, &[]).await;
    let user = stack.users(1).await.remove(0);
    for strategy in COMMITTING {
        for _ in 0..2 {
            stack.add_instance(&[]).await;
        }
        let sale = stack.publish(5, strategy.name()).await;
        let holder = stack.lock_sale(sale).await;
        let client = stack.start_buying(&user, sale);
        stack.wait_for_insert(&user).await;
        client.abort();
        drain_beyond_the_grace(&mut stack).await;
        holder.rollback().await.unwrap();
        assert!(
            client.await.is_err_and(|end| end.is_cancelled()),
            "{strategy}"
        );
        stack.instances.remove(0).ended().await;
        assert_eq!(stack.tables(sale).await, (1, 4));
        let locks_left: Vec<String> = stack.redis.conn().await.keys("lock:*").await.unwrap();
        assert!(locks_left.is_empty(), "{locks_left:?}");
        stack.database.run("DELETE FROM tb_voucher_order").await;
    }

    // No purchase, no task of its own: only a connection.
    for _ in 0..2 {
        stack.add_instance(&[]).await;
    }
    let stranger = lock(&stack, "tb_voucher_order WRITE").await;
    let read = get(stack.url(), "/voucher-order/of/me").token(&user.token);
    let client = tokio::spawn(read.send());
    stack
        .database
        .wait_for_statement("ORDER BY tb_voucher_order.id DESC")
        .await;
    drain_beyond_the_grace(&mut stack).await;
    unlock(stranger).await;
    assert_eq!(client.await.unwrap().data(), &json!([]));
    stack.instances.remove(0).ended().await;

    // No purchase and no connection: only a request that goes on.
    for _ in 0..2 {
        stack.add_instance(&[]).await;
    }
    let order = "INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES";
    let order = format!("{order} (1001, {}, 7)", user.id);
    stack.database.run(&order).await;
    let stranger = lock(&stack, "tb_voucher_order WRITE").await;
    let pay = post(stack.url(), "/voucher-order/1001/pay").token(&user.token);
    let client = tokio::spawn(pay.send());
    stack
        .database
        .wait_for_statement("FROM tb_voucher_order WHERE id =")
        .await;
    client.abort();
    drain_beyond_the_grace(&mut stack).await;
    unlock(stranger).await;
    stack.instances[0].ended().await;
    let status = "SELECT status FROM tb_voucher_order WHERE id = 1001";
    assert_eq!(stack.database.number(status).await, 2, "it is not paid");
}

/// An open connection to the instance at this address, and a purchase to be sent on it.
async fn connected_buyer(url: &str, user: &SignedIn, sale: i64) -> (Connection, Call) {
    let mut connection = Connection::new(url.parse().expect("a URL"), PATIENCE);
    connection.open().await.expect("a connection");
    let purchase = Call::new(Method::POST, format!("/voucher-order/seckill/{sale}"));
    let token = user.token.parse().expect("a header's value");
    (connection, purchase.token(&token))
}

/// The first instance accepts connections for longer than the test takes, the second for a moment.
#[tokio::test]
async fn a_draining_instance_says_so_and_sells_and_closes_connections_once_it_accepts_no_more() {
    let mut stack = Stack::start(0, &[]).await;
    for (grace, idle) in [("30000", "1"), ("1", "30000")] {
        let times = ["--drain-grace-ms", grace, "--drain-idle-ms", idle];
        stack.add_instance(&times).await;
    }
    let users = stack.users(2).await;
    let sale = stack.publish(5, "reentrant-lock").await;
    let urls = stack.urls();
    let (mut kept, purchase) = connected_buyer(&urls[1], &users[1], sale).await;
    for instance in &stack.instances {
        instance.terminate();
        instance.wait_for_line("draining").await;
    }

    let ready = get(&urls[0], "/health/ready").send().await;
    let expected = json!({ "success": false, "database": true, "redis": true, "draining": true });
    assert_eq!((ready.status, &ready.body), (503, &expected));
    assert_eq!(metric(&urls[0], "seckill_ready").await, 0);
    get(&urls[0], "/health/live").send().await.data();
    let bought = stack.buy(&users[0], sale).await;
    bought.data();
    // A balancer would open a new connection for each request of the grace period.
    assert_eq!(bought.headers.get(CONNECTION), None, "{bought:?}");

    let address = urls[1].trim_start_matches("http://");
    until_refused(address).await;
    let bought = kept
        .send(&purchase)
        .await
        .expect("a reply on a kept connection");
    assert_eq!(
        (bought.status, bought.headers[CONNECTION].as_bytes()),
        (200, &b"close"[..])
    );
    // Nothing is left to wait for.
    stack.instances[1].ended().await;
    assert_eq!(stack.orders(sale).await, 2);
}

/// A request waits for a receiver of sign-in codes that does not answer.
#[tokio::test]
async fn an_instance_whose_requests_outlast_the_deadline_ends_with_exit_1() {
    let receiver = Receiver::start().await;
    receiver.will_answer([0]);
    let url = receiver.url();
    let limits = [
        // Shorter ones would end its start on a busy machine.
        ["--database-timeout-ms", "500"],
        ["--redis-timeout-ms", "500"],
        ["--drain-grace-ms", "1"],
        ["--drain-idle-ms", "1"],
        ["--drain-deadline-ms", "6100"],
    ];
    let arguments = [arguments(&url, "100000"), limits.concat()].concat();
    let mut stack = Stack::start(1, &arguments).await;
    let ask = || tokio::spawn(post(stack.url(), "/user/code?phone=13800000001").status());
    let mut client = ask();
    eventually("the request waits", async || {
        // On a busy machine Redis may need longer than its time limit here.
        if client.is_finished() {
            client = ask();
        }
        receiver.count() == 1
    })
    .await;
    stack.instances[0].terminate();
    stack.instances[0].ended_with(1).await;
    let why = stack.instances[0].lines_with("--drain-deadline-ms");
    assert_eq!(why.len(), 1, "{:#?}", stack.instances[0].log());
    client.await.expect_err("its connection was cut off");
}
