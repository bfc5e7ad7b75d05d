//! Payment, cancellation and expiry of orders. The stock of a cancelled order is returned once, however many cancel it at
//! once, and whatever fails in between.

use std::time::Duration;

use chrono::{NaiveDateTime, TimeDelta};
use seckill::clock::Zone;
use seckill::connection;
use seckill::order::audit::audit;
use seckill::order::store::OrderStore;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use sqlx::{Connection, MySqlConnection};
use strategies::Strategy;

use crate::decided::{SALE, Scene, place};
use crate::support::api::{Answer, get, post};
use crate::support::database::{TestDatabase, is_oceanbase};
use crate::support::eventually;
use crate::support::stack::{SignedIn, Stack, buy};

mod faults;

/// Orders expire after an hour: none that a test buys is that old, unless the test makes it so.
const HOUR: [&str; 2] = ["--unpaid-seconds", "3600"];

pub async fn act(base: &str, what: &str, user: &SignedIn, order: i64) -> Answer {
    post(base, &format!("/voucher-order/{order}/{what}"))
        .token(&user.token)
        .send()
        .await
}

/// The orders, as an instance reaches them.
async fn order_store(stack: &Stack) -> OrderStore {
    let limit = Duration::from_secs(20);
    let database = connection::mysql::connect(&stack.database.url(), 1, limit)
        .await
        .unwrap();
    OrderStore::new(database, Zone(chrono_tz::Asia::Shanghai))
}

/// Asserts that the audit finds every sale correct; returns stock, orders and cancelled orders of one.
async fn accounts(stack: &Stack, sale: i64) -> (i64, i64, i64) {
    let store = order_store(stack).await;
    for finding in audit(&store, None).await.unwrap() {
        assert!(!finding.is_broken(), "{finding:?}");
    }
    let finding = &audit(&store, Some(sale)).await.unwrap()[0];
    (
        finding.totals.stock,
        finding.totals.orders,
        finding.totals.cancelled,
    )
}

/// `count` orders of users 1, 2, … of a sale, as a purchase makes them, but two hours old.
async fn old_orders(stack: &Stack, sale: i64, count: i64) {
    let rows: Vec<String> = (1..=count)
        .map(|n| {
            format!(
                "({}, {n}, {sale}, NOW() - INTERVAL 2 HOUR)",
                sale * 1_000_000 + n
            )
        })
        .collect();
    let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id, create_time) VALUES ";
    stack
        .database
        .run(&(insert.to_owned() + &rows.join(",")))
        .await;
    stack
        .database
        .set_sale(sale, &format!("stock = stock - {count}"))
        .await;
}

/// Makes an order two hours old, by the database's clock and by the seconds in its id; returns its new id.
async fn age(stack: &Stack, order: i64) -> i64 {
    let older = order - (7200 << 32);
    let update = format!(
        "UPDATE tb_voucher_order SET id = {older}, create_time = NOW() - INTERVAL 2 HOUR \
         WHERE id = {order}"
    );
    stack.database.run(&update).await;
    older
}

async fn unpaid(stack: &Stack) -> i64 {
    stack
        .database
        .number("SELECT COUNT(*) FROM tb_voucher_order WHERE status = 1")
        .await
}

#[tokio::test]
async fn an_order_is_paid_or_cancelled_for_good_and_its_stock_is_sold_again_on_every_node() {
    let stack = Stack::start(2, &[]).await;
    let [first_url, second_url] = [&stack.instances[0].url, &stack.instances[1].url];
    let users = stack.users(3).await;
    let sale = stack.publish(2, "reentrant-lock").await;
    let paid = buy(first_url, &users[0], sale)
        .await
        .data()
        .as_i64()
        .unwrap();
    let dropped = buy(second_url, &users[1], sale)
        .await
        .data()
        .as_i64()
        .unwrap();

    for url in [first_url, second_url, second_url] {
        let order = act(url, "pay", &users[0], paid).await;
        assert_eq!(
            (&order.data()["status"], &order.data()["orderId"]),
            (&json!(2), &json!(paid.to_string()))
        );
        assert!(order.data()["payTime"].is_string(), "{order:?}");
        act(url, "cancel", &users[0], paid)
            .await
            .refused(200, "ALREADY_PAID");
    }
    assert_eq!(accounts(&stack, sale).await, (0, 2, 0));
    for url in [first_url, second_url, second_url] {
        let order = act(url, "cancel", &users[1], dropped).await;
        assert_eq!(order.data()["status"], 4, "{order:?}");
        act(url, "pay", &users[1], dropped)
            .await
            .refused(200, "ORDER_CANCELLED");
    }
    assert_eq!(accounts(&stack, sale).await, (1, 1, 1));

    stack.settled().await;
    // An unknown order, and an id that is no number. Orders of another user are in [`crate::strangers`].
    for what in ["pay", "cancel"] {
        act(first_url, what, &users[2], 1)
            .await
            .refused(200, "ORDER_NOT_FOUND");
        let bad = post(first_url, &format!("/voucher-order/x/{what}"))
            .token(&users[0].token)
            .send()
            .await;
        bad.refused(400, "INVALID_PARAMETER");
    }
    for (status, what, code) in [
        (3, "cancel", "ALREADY_PAID"),
        (5, "cancel", "ORDER_REFUNDED"),
        (6, "pay", "ORDER_REFUNDED"),
    ] {
        let change = format!("UPDATE tb_voucher_order SET status = {status} WHERE id = {paid}");
        stack.database.run(&change).await;
        act(first_url, what, &users[0], paid)
            .await
            .refused(200, code);
        let guards = format!("SELECT buyer <=> user_id FROM tb_voucher_order WHERE id = {paid}");
        let guards = stack.database.number(&guards).await;
        assert_eq!(
            guards, 1,
            "an order of status {status} keeps its buyer from another"
        );
    }
    assert_eq!(accounts(&stack, sale).await, (1, 1, 1));
    // An order that was used counts as paid.
    let used = format!("UPDATE tb_voucher_order SET status = 3 WHERE id = {paid}");
    stack.database.run(&used).await;
    let order = act(first_url, "pay", &users[0], paid).await;
    assert_eq!(order.data()["status"], 3, "{order:?}");

    let safe = Strategy::ALL
        .into_iter()
        .filter(|strategy| !strategy.is_unsafe());
    for strategy in safe {
        let sale = stack.publish(1, strategy.name()).await;
        let first = stack.buy(&users[0], sale).await.bought();
        stack.stream_drained().await;
        for url in stack.urls() {
            // Twice: by the strategy, and from the cache.
            for _ in 0..2 {
                buy(&url, &users[1], sale).await.refused(200, "SOLD_OUT");
            }
        }
        // The node that cancels sells at once, on the stream as soon as it has counted, and the other soon.
        act(stack.url(), "cancel", &users[0], first).await.data();
        if strategy.is_deferred() {
            stack.counted(sale, 1).await;
        }
        let second = stack.buy(&users[1], sale).await.bought();
        stack.stream_drained().await;
        act(stack.url(), "cancel", &users[1], second).await.data();
        // A user who has cancelled may buy again.
        eventually("the other node sells", || async {
            let again = buy(&stack.instances[1].url, &users[0], sale).await;
            again.body["success"] == true && again.body["data"] != first
        })
        .await;
        stack.stream_drained().await;
        assert_eq!(accounts(&stack, sale).await, (0, 1, 2), "{strategy}");
    }
}

/// The user also has cancelled orders. The id of one is larger than that of the valid order, as if two instances had drawn both
/// in one second.
#[tokio::test]
async fn a_second_purchase_is_refused_with_the_valid_order_and_not_with_a_cancelled_one() {
    let stack = Stack::start(1, &[]).await;
    let user = stack.users(1).await.remove(0);
    for strategy in Strategy::ALL {
        if strategy.is_unsafe() {
            continue;
        }
        let sale = stack.publish(3, strategy.name()).await;
        let order = stack.buy_committed(&user, sale).await;
        let cancelled = format!(
            "INSERT INTO tb_voucher_order (id, user_id, voucher_id, status) \
             VALUES ({order} + 1000000, {}, {sale}, 4), (1000000 + {sale}, {}, {sale}, 4)",
            user.id, user.id
        );
        stack.database.run(&cancelled).await;
        let again = stack.buy(&user, sale).await;
        again.refused(200, "ALREADY_ORDERED");
        assert_eq!(again.body["orderId"], order.to_string(), "{strategy}");
    }
}

/// Between the search for unpaid orders and their cancellation one is paid, and another one is cancelled.
#[tokio::test]
async fn a_cancellation_returns_the_stock_of_only_those_orders_that_it_changes() {
    let stack = Stack::start(1, &[]).await;
    let store = order_store(&stack).await;
    for strategy in ["row-lock", "stream"] {
        let sale = stack.publish(10, strategy).await;
        let other_sale = stack.publish(10, strategy).await;
        old_orders(&stack, sale, 4).await;
        old_orders(&stack, other_sale, 1).await;
        let id = |sale: i64, user: i64| sale * 1_000_000 + user;
        assert!(store.pay(id(sale, 1), 1).await.expect("it is paid"));
        let cancelled = store.cancel(sale, &[id(sale, 2)]).await;
        assert_eq!(cancelled.expect("it is cancelled"), 1);
        let mut batch: Vec<i64> = (1..=4).map(|user| id(sale, user)).collect();
        batch.push(id(other_sale, 1));
        let cancelled = store.cancel(sale, &batch).await;
        assert_eq!(cancelled.expect("two are cancelled"), 2, "{strategy}");
        assert_eq!(accounts(&stack, sale).await, (9, 1, 3), "{strategy}");
        assert_eq!(accounts(&stack, other_sale).await, (9, 1, 0), "{strategy}");
        let paid = store.pay(id(sale, 3), 3).await;
        assert!(
            !paid.expect("an answer"),
            "{strategy}: a cancelled order is paid"
        );
    }
}

#[tokio::test]
async fn replies_say_when_an_unpaid_order_expires_or_has_expired() {
    let mut stack = Stack::start(1, &[]).await;
    stack.add_instance(&HOUR).await;
    let [silent, url] = [0, 1].map(|index| stack.instances[index].url.clone());
    let sale = stack.publish(2, "reentrant-lock").await;
    let users = stack.users(2).await;
    let orders_of = async |url: &str, user: &SignedIn| {
        let mine = get(url, "/voucher-order/of/me").token(&user.token).send();
        mine.await.data()[0].clone()
    };
    let time = |order: &Value, name: &str| -> NaiveDateTime {
        order[name].as_str().expect("a time").parse().expect(name)
    };

    let id = buy(&url, &users[0], sale).await.data().as_i64().unwrap();
    let order = orders_of(&url, &users[0]).await;
    let lifetime = time(&order, "expireTime") - time(&order, "createTime");
    assert_eq!(lifetime, TimeDelta::hours(1));
    let one = get(&url, &format!("/voucher-order/{id}")).token(&users[0].token);
    assert_eq!(one.send().await.data(), &order);
    // An instance that lets no order expire does not say that it will.
    assert_eq!(
        orders_of(&silent, &users[0]).await["expireTime"],
        Value::Null
    );
    let cancelled = act(&url, "cancel", &users[0], id).await;
    let cancelled = cancelled.data();
    assert!(time(cancelled, "updateTime") < time(cancelled, "expireTime"));
    let id = buy(&url, &users[1], sale).await.data().as_i64().unwrap();
    let paid = act(&url, "pay", &users[1], id).await;
    assert_eq!(paid.data()["expireTime"], Value::Null);

    let sale = stack.publish(1, "reentrant-lock").await;
    let id = buy(&url, &users[1], sale).await.data().as_i64().unwrap();
    let id = age(&stack, id).await;
    eventually("it expires", async || unpaid(&stack).await == 0).await;
    let expired = get(&url, &format!("/voucher-order/{id}")).token(&users[1].token);
    let expired = expired.send().await;
    let expired = expired.data();
    assert_eq!(expired["status"], 4);
    assert!(time(expired, "updateTime") > time(expired, "expireTime"));
}

#[tokio::test]
async fn orders_expire_only_where_that_is_set_and_only_old_unpaid_ones() {
    let mut stack = Stack::start(1, &[]).await;
    let sale = stack.publish(10, "reentrant-lock").await;
    old_orders(&stack, sale, 5).await;
    // The same task empties the outbox: once this row is gone, the task has run.
    let note = "INSERT INTO tb_stock_return (order_id, voucher_id, user_id) VALUES (1, 1, 1)";
    stack.database.run(note).await;
    eventually("a run", || pending_returns_are(&stack, 0)).await;
    assert_eq!(accounts(&stack, sale).await, (5, 5, 0));
    stack.add_instance(&HOUR).await;
    eventually("all are cancelled", async || unpaid(&stack).await == 0).await;
    assert_eq!(accounts(&stack, sale).await, (10, 0, 5));

    let users = stack.users(3).await;
    let sale = stack.publish(3, "reentrant-lock").await;
    let mut orders = Vec::new();
    for user in &users {
        orders.push(stack.buy(user, sale).await.data().as_i64().unwrap());
    }
    // The first is paid in time, the second never, and the third is young.
    act(stack.url(), "pay", &users[0], orders[0]).await.data();
    age(&stack, orders[0]).await;
    orders[1] = age(&stack, orders[1]).await;
    eventually("the second is cancelled", || async {
        unpaid(&stack).await == 1
    })
    .await;
    // The search is repeated: the other orders are not cancelled by the next one either.
    old_orders(&stack, stack.publish(9, "row-lock").await, 1).await;
    eventually("another search", || async { unpaid(&stack).await == 1 }).await;
    assert_eq!(accounts(&stack, sale).await, (1, 2, 1));
    act(stack.url(), "pay", &users[1], orders[1])
        .await
        .refused(200, "ORDER_CANCELLED");
    act(stack.url(), "pay", &users[2], orders[2]).await.data();
    stack.buy(&users[1], sale).await.data();

    // The search uses the index, and a node that searches drains.
    let sale = stack.publish(4000, "row-lock").await;
    old_orders(&stack, sale, 4000).await;
    let paid = "UPDATE tb_voucher_order SET status = 2 WHERE user_id > 3990 AND voucher_id =";
    stack.database.run(&format!("{paid} {sale}")).await;
    // OceanBase's plans have no columns.
    if !is_oceanbase() {
        // Not prepared: MySQL does not name the columns of a prepared EXPLAIN.
        let plan: Vec<sqlx::mysql::MySqlRow> = sqlx::raw_sql(
            "EXPLAIN FORMAT=TRADITIONAL SELECT id FROM tb_voucher_order \
             WHERE status = 1 AND create_time < NOW() ORDER BY create_time LIMIT 500",
        )
        .fetch_all(&stack.database.pool)
        .await
        .unwrap();
        let key: String = sqlx::Row::get(&plan[0], "key");
        assert_eq!(key, "idx_status_create_time");
    }
    stack.instances[1].stop().await;
    // Without the last purchase above.
    let still_unpaid = unpaid(&stack).await - 1;
    assert_eq!(
        accounts(&stack, sale).await,
        (3990 - still_unpaid, still_unpaid + 10, 3990 - still_unpaid)
    );
}

/// In the tables of others an order may lack its voucher: no sale gets anything back. There are more of them than are cancelled
/// at a time, and they are the oldest.
#[tokio::test]
async fn orders_without_a_voucher_keep_no_other_from_expiring() {
    const WITHOUT: i64 = 501;
    let mut stack = Stack::start(1, &[]).await;
    let nullable = "ALTER TABLE tb_voucher_order MODIFY voucher_id BIGINT UNSIGNED NULL";
    stack.database.run(nullable).await;
    let sale = stack.publish(1000, "row-lock").await;
    old_orders(&stack, sale, WITHOUT + 1).await;
    let without = format!(
        "UPDATE tb_voucher_order SET voucher_id = NULL, create_time = create_time - INTERVAL 1 HOUR \
         WHERE user_id <= {WITHOUT}"
    );
    stack.database.run(&without).await;
    stack.add_instance(&HOUR).await;
    eventually("the last one is cancelled", async || {
        unpaid(&stack).await == WITHOUT
    })
    .await;
}

/// Of the sale whose row is locked, more orders are due than are cancelled at a time, and they are the oldest.
#[tokio::test]
async fn a_sale_whose_row_is_locked_keeps_no_other_from_expiring_nor_the_outbox_full() {
    let mut stack = Stack::start(1, &[]).await;
    let locked = stack.publish(600, "row-lock").await;
    let unlocked = stack.publish(10, "row-lock").await;
    old_orders(&stack, locked, 600).await;
    old_orders(&stack, unlocked, 5).await;
    let younger = "UPDATE tb_voucher_order SET create_time = NOW() - INTERVAL 90 MINUTE";
    stack
        .database
        .run(&format!("{younger} WHERE voucher_id = {unlocked}"))
        .await;
    stack.instances.clear();
    let note = "INSERT INTO tb_stock_return (order_id, voucher_id, user_id, create_time) \
                VALUES (1, 1, 1, NOW() - INTERVAL 2 MINUTE)";
    stack.database.run(note).await;
    let holder = stack.lock_sale(locked).await;
    stack.add_instance(&HOUR).await;
    eventually("the others expire", async || unpaid(&stack).await == 600).await;
    eventually("the outbox is empty", || pending_returns_are(&stack, 0)).await;
    assert_eq!(accounts(&stack, unlocked).await, (10, 0, 5));
    holder.rollback().await.unwrap();
    eventually("all expire", async || unpaid(&stack).await == 0).await;
    assert_eq!(accounts(&stack, locked).await, (600, 0, 600));
}

/// A cancellation that stands still has locked a sale's row. The search of the outbox waits for no row of a sale, and removes the
/// rows of sales that have no counter, or whose counter is no longer needed.
#[tokio::test]
async fn the_outbox_is_emptied_while_sales_are_locked() {
    let stack = Stack::start(1, &[]).await;
    let locked = stack.publish(5, "row-lock").await;
    let ended = stack.publish(5, "stream").await;
    stack.database.set_sale(ended, "end_time = NOW()").await;
    let holder = stack.lock_sale(locked).await;
    let note = "INSERT INTO tb_stock_return (order_id, voucher_id, user_id) VALUES";
    stack
        .database
        .run(&format!("{note} (1, {locked}, 1), (2, {ended}, 1)"))
        .await;
    eventually("the outbox is empty", || pending_returns_are(&stack, 0)).await;
    holder.rollback().await.unwrap();
}

/// No instance runs here that would empty the outbox. A trigger that refuses rows would not do: a CREATE TRIGGER that takes too
/// long is run again by OceanBase, which then says that the trigger exists already.
#[tokio::test]
async fn a_cancelled_order_is_in_the_outbox_only_if_a_counter_waits_for_it() {
    let scene = Scene::new().await;
    let in_outbox = "SELECT COUNT(*) FROM tb_stock_return";
    let on_sale = "end_time = NOW() + INTERVAL 1 HOUR";
    for (user, sale, rows) in [
        (1, "strategy = 'stream'", 1),
        // Its row is there already.
        (2, "strategy = 'stream'", 1),
        (3, "strategy = 'row-lock'", 0),
        // A Java node has published it.
        (4, "strategy = 'row-lock', issued = NULL", 1),
        (
            5,
            "strategy = 'stream', end_time = NOW() - INTERVAL 1 HOUR",
            0,
        ),
    ] {
        let assignments = format!("issued = 5, {on_sale}, {sale}");
        scene.database.set_sale(SALE, &assignments).await;
        let order = scene.order(user, 0);
        place(&scene.store, &order).await.expect("bought");
        if user == 2 {
            let row = "INSERT INTO tb_stock_return (order_id, voucher_id, user_id) VALUES";
            let row = format!("{row} ({}, {SALE}, 2)", order.id);
            scene.database.run(&row).await;
        }
        let cancelled = scene.store.cancel(SALE, &[order.id]).await;
        assert_eq!(cancelled.expect("it is cancelled"), 1, "{sale}");
        assert_eq!(scene.database.number(in_outbox).await, rows, "{sale}");
        assert_eq!(scene.tables().await, (user, 5), "{sale}");
        scene.database.run("DELETE FROM tb_stock_return").await;
    }
}

/// On this server a statement that writes must name a key. Each writing statement of ours is run there, on every safe strategy.
#[tokio::test]
async fn no_write_of_ours_is_refused_by_sql_safe_updates() {
    let database = TestDatabase::on_own_server().await;
    database
        .run("SET GLOBAL init_connect = 'SET SESSION sql_safe_updates = 1'")
        .await;
    let mut session = MySqlConnection::connect(database.url().expose_secret())
        .await
        .unwrap();
    let is_safe = sqlx::query_scalar::<_, i64>("SELECT CAST(@@sql_safe_updates AS SIGNED)")
        .fetch_one(&mut session)
        .await;
    assert_eq!(is_safe.unwrap(), 1, "the user may do everything");
    let migrated = connection::migrate::run(&database.url()).await;
    assert_eq!(migrated.expect("a second migration"), 0);
    let stack = Stack::start_on(database, 1, &HOUR).await;
    let users = stack.users(2).await;
    for strategy in Strategy::ALL {
        if strategy.is_unsafe() {
            continue;
        }
        let sale = stack.publish(3, strategy.name()).await;
        let [paid, dropped] = [
            stack.buy_committed(&users[0], sale).await,
            stack.buy_committed(&users[1], sale).await,
        ];
        act(stack.url(), "pay", &users[0], paid).await.data();
        act(stack.url(), "cancel", &users[1], dropped).await.data();
        stack.add_stock(sale, 2).await;
    }
    let note = "INSERT INTO tb_stock_return (order_id, voucher_id, user_id) VALUES (1, 1, 1)";
    stack.database.run(note).await;
    eventually("the outbox is empty", || pending_returns_are(&stack, 0)).await;
    let sale = stack.publish(10, "row-lock").await;
    old_orders(&stack, sale, 5).await;
    eventually("all expire", async || {
        accounts(&stack, sale).await == (10, 0, 5)
    })
    .await;
}

async fn pending_returns_are(stack: &Stack, count: i64) -> bool {
    stack
        .database
        .number("SELECT COUNT(*) FROM tb_stock_return")
        .await
        == count
}

/// Again and again the owner pays on one node and cancels on both at the same moment: one succeeds. Whole sales whose orders
/// are paid, cancelled and expire meanwhile are rounds of [`crate::slow`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_payment_and_cancellations_at_once_one_succeeds() {
    let stack = Stack::start(2, &[]).await;
    let users = stack.users(40).await;
    let sale = stack.publish(100, "group-commit").await;
    let mut paid = 0;
    let mut cancelled = 0;
    for user in &users {
        let order = stack.buy(user, sale).await.data().as_i64().unwrap();
        let first_url = &stack.instances[0].url;
        let second_url = &stack.instances[1].url;
        let (pay, cancel, again) = tokio::join!(
            act(first_url, "pay", user, order),
            act(second_url, "cancel", user, order),
            act(first_url, "cancel", user, order)
        );
        let status = stack.look_up(user, order).await;
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
