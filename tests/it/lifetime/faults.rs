//! Faults during cancellation: a node that is killed, a database that loses a commit, a Redis that is away. The stock is
//! returned once all the same.

use redis::AsyncCommands;
use sqlx::{MySql, pool::PoolConnection};

use super::{HOUR, accounts, act, old_orders, pending_returns_are, unpaid};
use crate::reads::{lock, unlock};
use crate::support::database::shows_uncommitted_rows;
use crate::support::eventually;
use crate::support::stack::{SignedIn, Stack};
use testkit::proxy::Mode;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_nodes_finish_what_a_killed_node_was_cancelling() {
    let mut stack = Stack::start(0, &[]).await;
    let row =
        "INSERT INTO tb_seckill_voucher (voucher_id, stock, issued, begin_time, end_time) VALUES ";
    for sale in 1..=3 {
        let window = "'2021-01-01', '2037-01-01'";
        stack
            .database
            .run(&format!("{row} ({sale}, 3000, 3000, {window})"))
            .await;
        old_orders(&stack, sale, 2500).await;
    }
    // The row of the third sale is locked, so the first node cannot finish it.
    let holder = stack.lock_sale(3).await;
    stack.add_instance(&HOUR).await;
    eventually("it has started", || async { unpaid(&stack).await < 7500 }).await;
    stack.instances[0].kill();
    holder.rollback().await.unwrap();
    stack.add_instance(&HOUR).await;
    stack.add_instance(&HOUR).await;
    eventually("the others finish", || async { unpaid(&stack).await == 0 }).await;
    eventually("the outbox is empty", || pending_returns_are(&stack, 0)).await;
    for sale in 1..=3 {
        assert_eq!(accounts(&stack, sale).await, (3000, 0, 2500));
    }
}

#[tokio::test]
async fn a_fault_at_any_step_neither_loses_nor_doubles_the_stock() {
    let stack = Stack::behind_proxies(&HOUR).await;
    let database = &stack.proxies.database;
    let user = stack.users(1).await.remove(0);
    let modes = [
        Mode::LoseCommit,
        Mode::LoseCommitReply,
        Mode::LoseCommitReplyThenCut,
        Mode::Cut,
    ];
    for mode in modes {
        // Expiry.
        let sale = stack.publish(10, "row-lock").await;
        database.set(mode);
        old_orders(&stack, sale, 10).await;
        if mode == Mode::LoseCommit {
            // It must fail before the proxy forwards again.
            stack.instances[0]
                .wait_for_line("unpaid orders are not cancelled")
                .await;
        }
        if mode != Mode::LoseCommitReply {
            database.set(Mode::Forward);
        }
        eventually("all are cancelled", || async { unpaid(&stack).await == 0 }).await;
        database.set(Mode::Forward);
        eventually("the outbox is empty", || pending_returns_are(&stack, 0)).await;
        assert_eq!(accounts(&stack, sale).await, (10, 0, 10), "{mode:?}");
    }
    for mode in modes.into_iter().chain([Mode::FailCommit]) {
        // Cancellation by the owner, and payment: the answer is true.
        for (what, status) in [("cancel", 4), ("pay", 2)] {
            let sale = stack.publish(1, "row-lock").await;
            stack.buy_eventually(&user, sale).await;
            let order = stack
                .database
                .number("SELECT MAX(id) FROM tb_voucher_order")
                .await;
            database.set(mode);
            let answer = act(stack.url(), what, &user, order).await;
            database.set(Mode::Forward);
            assert_eq!(answer.status, 503, "{answer:?}");
            assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
            if answer.body["code"] == "OUTCOME_UNKNOWN" {
                assert_eq!(answer.body["orderId"], order.to_string());
            } else {
                // Definite: nothing was done.
                assert_eq!(answer.body["code"], "UNAVAILABLE");
                assert_eq!(unpaid(&stack).await, 1, "{mode:?} {what}");
            }
            // A second request succeeds, whatever the outcome of the first.
            eventually("it is done", || async {
                act(stack.url(), what, &user, order).await.body["data"]["status"] == status
            })
            .await;
            accounts(&stack, sale).await;
        }
    }
}

/// The order is paid, and cannot be read again: somebody has locked the table as soon as the payment was committed.
#[tokio::test]
async fn a_payment_that_was_made_is_not_denied() {
    if !shows_uncommitted_rows() {
        return;
    }
    let stack = Stack::behind_proxies(&["--database-timeout-ms", "1500"]).await;
    let user = stack.users(1).await.remove(0);
    let sale = stack.publish(1, "row-lock").await;
    stack.buy_eventually(&user, sale).await;
    let order = stack
        .database
        .number("SELECT MAX(id) FROM tb_voucher_order")
        .await;
    stack.proxies.database.set(Mode::HoldCommits);
    let pay = act(stack.url(), "pay", &user, order);
    let (answer, stranger) = tokio::join!(pay, lock_orders_behind_payment(&stack, order));
    unlock(stranger).await;
    answer.refused(503, "OUTCOME_UNKNOWN");
    assert_eq!(answer.body["orderId"], order.to_string());
}

/// Locks the orders' table as soon as the payment is committed: the proxy holds the commit until this lock waits for the table.
async fn lock_orders_behind_payment(stack: &Stack, order: i64) -> PoolConnection<MySql> {
    let status = format!("SELECT status FROM tb_voucher_order WHERE id = {order}");
    eventually("it is about to be paid", async || {
        stack.database.uncommitted(&status).await == 2
    })
    .await;
    let (stranger, ()) = tokio::join!(lock(stack, "tb_voucher_order WRITE"), async {
        eventually("somebody waits for the table", async || {
            stack.database.waiting().await == 1
        })
        .await;
        stack.proxies.database.set(Mode::Forward);
    });
    stranger
}

/// Somebody refunds the order before it is read again.
#[tokio::test]
async fn a_payment_that_is_refunded_at_once_is_still_a_success() {
    let stack = Stack::start(1, &[]).await;
    let user = stack.users(1).await.remove(0);
    let sale = stack.publish(1, "row-lock").await;
    let order = stack.buy(&user, sale).await.bought();
    let refund = "CREATE TRIGGER refund BEFORE UPDATE ON tb_voucher_order FOR EACH ROW \
                  SET NEW.status = IF(NEW.status = 2, 5, NEW.status)";
    stack.database.run(refund).await;
    let paid = act(stack.url(), "pay", &user, order).await;
    assert_eq!(paid.data()["status"], 5, "{paid:?}");
    let again = act(stack.url(), "pay", &user, order).await;
    again.refused(200, "ORDER_REFUNDED");
}

#[tokio::test]
async fn the_claim_in_redis_is_returned_once() {
    let stack = Stack::start(2, &[]).await;
    let users = stack.users(3).await;
    let sale = stack.publish(10, "stream").await;
    let mut orders = Vec::new();
    for user in &users {
        orders.push(stack.buy(user, sale).await.bought());
    }
    stack.stream_drained().await;
    for url in stack.urls() {
        act(&url, "cancel", &users[0], orders[0]).await.data();
    }
    counted(&stack, sale, 8, &users[1..]).await;

    // Although a claim is left over, the user may buy again after the cancelled order.
    let mut redis = stack.redis.conn().await;
    let claims = stack.keys.claims(sale);
    let _: () = redis.sadd(claims, users[0].id).await.unwrap();
    stack.buy_eventually(&users[0], sale).await;
    stack.stream_drained().await;

    // Delivered a second time, after the user was admitted again: nothing happens.
    let note = format!(
        "INSERT INTO tb_stock_return (order_id, voucher_id, user_id) VALUES ({}, {sale}, {})",
        orders[0], users[0].id
    );
    stack.database.run(&note).await;
    eventually("it is delivered again", || pending_returns_are(&stack, 0)).await;
    counted(&stack, sale, 7, &users).await;

    // While Redis is away, the order is cancelled all the same, and the stock is returned to Redis later.
    let order = orders[1];
    act(stack.url(), "cancel", &users[2], orders[2])
        .await
        .data();
    counted(&stack, sale, 8, &users[..2]).await;
    stack.redis.pause();
    let cancelled = act(stack.url(), "cancel", &users[1], order).await;
    if cancelled.body["success"] == true {
        let status = format!("SELECT status FROM tb_voucher_order WHERE id = {order}");
        assert_eq!(stack.database.number(&status).await, 4);
        assert!(pending_returns_are(&stack, 1).await, "{cancelled:?}");
    } else {
        // The session could not be looked up.
        cancelled.refused(503, "UNAVAILABLE");
    }
    stack.redis.resume();
    eventually("cancelled", || async {
        act(stack.url(), "cancel", &users[1], order).await.body["success"] == true
    })
    .await;
    counted(&stack, sale, 9, &users[..1]).await;
}

/// Waits until the counter is this, these users have a claim, and nothing is to be returned any more.
async fn counted(stack: &Stack, sale: i64, expected: i64, users: &[SignedIn]) {
    let claims: Vec<i64> = users.iter().map(|user| user.id).collect();
    eventually(&format!("{expected} are left"), async || {
        stack.counter(sale).await == Some(expected)
            && stack.claims(sale).await == claims
            && pending_returns_are(stack, 0).await
    })
    .await;
}
