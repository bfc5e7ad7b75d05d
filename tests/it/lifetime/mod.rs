//! What becomes of an order: paid, cancelled by its owner, cancelled because nobody paid. A cancelled
//! order's stock comes back once, whoever cancels, however many at once, and whatever ends in between.

use std::sync::Arc;
use std::time::Duration;

use ladder::Strategy;
use seckill::clock::Zone;
use seckill::connection;
use seckill::order::audit::audit;
use seckill::order::store::OrderStore;
use serde_json::json;

use crate::support::api::{Answer, get, post};
use crate::support::database::TestDatabase;
use crate::support::stack::{SignedIn, Stack, buy};
use testkit::wait::eventually;

mod faults;

const PATIENCE: Duration = Duration::from_secs(40);

/// An hour: nothing that a test buys is that old, unless it says so.
const HOUR: [&str; 2] = ["--unpaid-seconds", "3600"];

async fn act(base: &str, what: &str, user: &SignedIn, order: i64) -> Answer {
    post(base, &format!("/voucher-order/{order}/{what}")).token(&user.token).send().await
}

async fn store(database: &TestDatabase) -> OrderStore {
    let limit = Duration::from_secs(20);
    let database = connection::mysql::connect(&database.url(), 8, limit).await.unwrap();
    OrderStore::new(database, Zone(chrono_tz::Asia::Shanghai))
}

/// Asserts that every sale accounts for what was put on sale; returns stock, orders and cancelled ones.
async fn accounts(stack: &Stack, sale: i64) -> (i64, i64, i64) {
    let store = store(&stack.database).await;
    for finding in audit(&store, None).await.unwrap() {
        assert!(!finding.is_broken(), "{finding:?}");
    }
    let finding = &audit(&store, Some(sale)).await.unwrap()[0];
    (finding.stock, finding.orders, finding.cancelled)
}

/// `count` orders of users 1, 2, … of a sale, as a purchase leaves them, but made two hours ago.
async fn old_orders(stack: &Stack, sale: i64, count: i64) {
    let rows: Vec<String> = (1..=count)
        .map(|n| format!("({}, {n}, {sale}, NOW() - INTERVAL 2 HOUR)", sale * 1_000_000 + n))
        .collect();
    let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id, create_time) VALUES ";
    stack.database.run(&(insert.to_owned() + &rows.join(","))).await;
    let lower =
        format!("UPDATE tb_seckill_voucher SET stock = stock - {count} WHERE voucher_id = {sale}");
    stack.database.run(&lower).await;
}

async fn age(stack: &Stack, order: i64) {
    let older = "UPDATE tb_voucher_order SET create_time = NOW() - INTERVAL 2 HOUR WHERE id = ";
    stack.database.run(&format!("{older}{order}")).await;
}

async fn unpaid(stack: &Stack) -> i64 {
    stack.database.number("SELECT COUNT(*) FROM tb_voucher_order WHERE status = 1").await
}

#[tokio::test]
async fn an_order_is_paid_or_cancelled_and_each_answers_the_same_again() {
    let stack = Stack::start(2, &[]).await;
    let [one, two] = [&stack.instances[0].url, &stack.instances[1].url];
    let users = stack.users(3).await;
    let sale = stack.publish(2, "reentrant-lock").await;
    let paid = buy(one, &users[0], sale).await.data().as_i64().unwrap();
    let dropped = buy(two, &users[1], sale).await.data().as_i64().unwrap();

    for url in [one, two, two] {
        let order = act(url, "pay", &users[0], paid).await;
        assert_eq!(
            (&order.data()["status"], &order.data()["orderId"]),
            (&json!(2), &json!(paid.to_string()))
        );
        assert!(order.data()["payTime"].is_string(), "{order:?}");
        act(url, "cancel", &users[0], paid).await.refused(200, "ALREADY_PAID");
    }
    assert_eq!(accounts(&stack, sale).await, (0, 2, 0));
    for url in [one, two, two] {
        let order = act(url, "cancel", &users[1], dropped).await;
        assert_eq!(order.data()["status"], 4, "{order:?}");
        act(url, "pay", &users[1], dropped).await.refused(200, "ORDER_CANCELLED");
    }
    assert_eq!(accounts(&stack, sale).await, (1, 1, 1));

    // Nobody else's, nothing unknown, nobody unknown.
    for what in ["pay", "cancel"] {
        act(one, what, &users[2], paid).await.refused(200, "ORDER_NOT_FOUND");
        act(one, what, &users[2], 1).await.refused(200, "ORDER_NOT_FOUND");
        post(one, &format!("/voucher-order/{paid}/{what}"))
            .send()
            .await
            .refused(401, "UNAUTHORIZED");
        let bad =
            post(one, &format!("/voucher-order/x/{what}")).token(&users[0].token).send().await;
        bad.refused(400, "INVALID_PARAMETER");
    }
    for (status, what, code) in [
        (3, "cancel", "ALREADY_PAID"),
        (5, "cancel", "ORDER_REFUNDED"),
        (6, "pay", "ORDER_REFUNDED"),
    ] {
        let change = format!("UPDATE tb_voucher_order SET status = {status} WHERE id = {paid}");
        stack.database.run(&change).await;
        act(one, what, &users[0], paid).await.refused(200, code);
    }
    assert_eq!(accounts(&stack, sale).await, (1, 1, 1));
}

#[tokio::test]
async fn a_cancelled_order_frees_the_place_and_every_node_sells_it_again() {
    let stack = Stack::start(2, &[]).await;
    let users = stack.users(2).await;
    let safe = Strategy::ALL.into_iter().filter(|strategy| !strategy.is_unsafe());
    for strategy in safe {
        let sale = stack.publish(1, strategy.name()).await;
        let first = buy(stack.url(), &users[0], sale).await.bought();
        stack.decided().await;
        for url in stack.urls() {
            // Twice: from the strategy, and from memory.
            for _ in 0..2 {
                buy(&url, &users[1], sale).await.refused(200, "SOLD_OUT");
            }
        }
        // The node that cancels knows at once, and the other soon.
        act(stack.url(), "cancel", &users[0], first).await.data();
        let second = buy(stack.url(), &users[1], sale).await.bought();
        stack.decided().await;
        act(stack.url(), "cancel", &users[1], second).await.data();
        // Whoever has cancelled may buy again.
        eventually("the other node sells", PATIENCE, || async {
            let again = buy(&stack.instances[1].url, &users[0], sale).await;
            again.body["success"] == true && again.body["data"] != first
        })
        .await;
        stack.decided().await;
        assert_eq!(accounts(&stack, sale).await, (0, 1, 2), "{strategy}");
    }
}

/// On both nodes, over and over: the owner pays and cancels in the same moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_payment_and_a_cancellation_at_once_one_wins() {
    let stack = Stack::start(2, &[]).await;
    let users = stack.users(40).await;
    let sale = stack.publish(100, "group-commit").await;
    let (mut paid, mut cancelled) = (0, 0);
    for user in &users {
        let order = buy(stack.url(), user, sale).await.data().as_i64().unwrap();
        let (one, two) = (&stack.instances[0].url, &stack.instances[1].url);
        let (pay, cancel, again) = tokio::join!(
            act(one, "pay", user, order),
            act(two, "cancel", user, order),
            act(one, "cancel", user, order)
        );
        let status = get(one, &format!("/voucher-order/{order}")).token(&user.token).send().await;
        if status.data()["status"] == 2 {
            paid += 1;
            pay.data();
            cancel.refused(200, "ALREADY_PAID");
            again.refused(200, "ALREADY_PAID");
        } else {
            cancelled += 1;
            pay.refused(200, "ORDER_CANCELLED");
            cancel.data();
            again.data();
        }
    }
    assert_eq!(accounts(&stack, sale).await, (100 - paid, paid, cancelled));
}

#[tokio::test]
async fn only_what_is_unpaid_and_too_old_is_cancelled() {
    let stack = Stack::start(2, &HOUR).await;
    let users = stack.users(3).await;
    let sale = stack.publish(3, "reentrant-lock").await;
    let mut orders = Vec::new();
    for user in &users {
        orders.push(buy(stack.url(), user, sale).await.data().as_i64().unwrap());
    }
    // The first is paid in time, the second never, and the third is young.
    act(stack.url(), "pay", &users[0], orders[0]).await.data();
    age(&stack, orders[0]).await;
    age(&stack, orders[1]).await;
    eventually("the second is cancelled", PATIENCE, || async { unpaid(&stack).await == 1 }).await;
    // A node goes on looking: what is to be left alone is left alone at the next look, too.
    old_orders(&stack, stack.publish(9, "row-lock").await, 1).await;
    eventually("another look", PATIENCE, || async { unpaid(&stack).await == 1 }).await;
    assert_eq!(accounts(&stack, sale).await, (1, 2, 1));
    act(stack.url(), "pay", &users[1], orders[1]).await.refused(200, "ORDER_CANCELLED");
    act(stack.url(), "pay", &users[2], orders[2]).await.data();
    buy(stack.url(), &users[1], sale).await.data();
}

#[tokio::test]
async fn by_default_nothing_is_cancelled_however_old() {
    let mut stack = Stack::start(1, &[]).await;
    let sale = stack.publish(10, "reentrant-lock").await;
    old_orders(&stack, sale, 5).await;
    // Of this it is told, so it has looked.
    stack
        .database
        .run("INSERT INTO tb_stock_return (order_id, voucher_id, user_id) VALUES (1, 1, 1)")
        .await;
    eventually("a look", PATIENCE, || untold(&stack, 0)).await;
    assert_eq!(accounts(&stack, sale).await, (5, 5, 0));
    stack.add_instance(&HOUR).await;
    eventually("all are cancelled", PATIENCE, || async { unpaid(&stack).await == 0 }).await;
    assert_eq!(accounts(&stack, sale).await, (10, 0, 5));
}

async fn untold(stack: &Stack, count: i64) -> bool {
    stack.database.number("SELECT COUNT(*) FROM tb_stock_return").await == count
}

/// The heart of it: the same orders, cancelled by eight at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_comes_back_once_however_many_cancel_at_once() {
    let stack = Stack::start(0, &[]).await;
    let store = Arc::new(store(&stack.database).await);
    for round in 0..15 {
        let sale = round + 1;
        let row = "INSERT INTO tb_seckill_voucher (voucher_id, stock, issued) VALUES ";
        stack.database.run(&format!("{row} ({sale}, 50, 50)")).await;
        old_orders(&stack, sale, 40).await;
        let mut cancelling = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let store = store.clone();
            cancelling.spawn(async move {
                let due = store.unpaid_since(3600, 100).await.unwrap();
                let ids: Vec<i64> = due.iter().map(|place| place.order_id).collect();
                store.cancel(sale, &ids).await.unwrap().len()
            });
        }
        let cancelled: usize = cancelling.join_all().await.into_iter().sum();
        assert_eq!(cancelled, 40, "round {round}: each order is cancelled by one of them");
        assert_eq!(accounts(&stack, sale).await, (50, 0, 40), "round {round}");
    }
}

/// A commit that is lost, one whose reply is lost, and a database that is away.
/// The gate of the strategy `stream` and of Java nodes: whoever came in by it gives the place back there too,
/// once, also when Redis is away at that moment; and who did not, does not.
/// Users buy, pay and cancel on two nodes while both cancel what is too old: nothing goes astray.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buying_paying_cancelling_and_expiring_together_keep_the_ledger() {
    let stack = Arc::new(Stack::start(2, &["--unpaid-seconds", "1"]).await);
    let users = stack.users(24).await;
    for strategy in ["reentrant-lock", "group-commit"] {
        let sale = stack.publish(12, strategy).await;
        let mut busy = tokio::task::JoinSet::new();
        for (number, user) in users.iter().cloned().enumerate() {
            let stack = stack.clone();
            busy.spawn(async move {
                for turn in 0..25 {
                    let url = &stack.instances[(number + turn) % 2].url;
                    let other = &stack.instances[(number + turn + 1) % 2].url;
                    let bought = buy(url, &user, sale).await;
                    let Some(order) = bought.body["data"].as_i64() else { continue };
                    match (number + turn) % 4 {
                        0 => drop(act(other, "cancel", &user, order).await),
                        1 => drop(tokio::join!(
                            act(url, "cancel", &user, order),
                            act(other, "cancel", &user, order)
                        )),
                        // Left to expire.
                        2 => {}
                        _ if turn > 20 => drop(act(other, "pay", &user, order).await),
                        _ => drop(act(url, "cancel", &user, order).await),
                    }
                }
            });
        }
        busy.join_all().await;
        eventually("the rest expires", PATIENCE, || async { unpaid(&stack).await == 0 }).await;
        let (stock, orders, cancelled) = accounts(&stack, sale).await;
        assert_eq!(stock + orders, 12, "{strategy}");
        assert!(cancelled > 12, "{strategy}: places went round: {cancelled}");
    }
    eventually("all is told", PATIENCE, || untold(&stack, 0)).await;
}

#[tokio::test]
async fn the_search_reads_the_index_and_a_node_that_searches_drains() {
    let mut stack = Stack::start(1, &HOUR).await;
    let sale = stack.publish(4000, "row-lock").await;
    old_orders(&stack, sale, 4000).await;
    stack.database.run("UPDATE tb_voucher_order SET status = 2 WHERE user_id > 3990").await;
    let plan: Vec<sqlx::mysql::MySqlRow> = sqlx::query(
        "EXPLAIN SELECT id FROM tb_voucher_order WHERE status = 1 AND create_time < NOW() \
         ORDER BY create_time LIMIT 500",
    )
    .fetch_all(&stack.database.pool)
    .await
    .unwrap();
    let key: String = sqlx::Row::get(&plan[0], "key");
    assert_eq!(key, "idx_status_create_time");
    stack.instances[0].signal("TERM");
    assert!(stack.instances[0].ended().await.success());
    let left = unpaid(&stack).await;
    assert_eq!(accounts(&stack, sale).await, (3990 - left, left + 10, 3990 - left));
}
