//! Outages that concern the stream alone: one sale whose row is locked, and a `stream.orders` that is gone while the rest
//! of Redis stands. Neither may delay other sales, or leave an order pending for good.

use std::time::Duration;

use redis::AsyncCommands;

use crate::resilience::{lock_sale, while_sale_is_locked};
use crate::support::api::get;
use crate::support::stack::{SignedIn, Stack, buy};
use testkit::wait::eventually;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until the buyer is told that the order is committed.
async fn committed(stack: &Stack, user: &SignedIn, id: i64) {
    let path = format!("/voucher-order/{id}");
    eventually("the order is committed", TIMEOUT, || async {
        get(stack.url(), &path).token(&user.token).send().await.status == 200
    })
    .await;
    get(stack.url(), &path).token(&user.token).send().await.data();
}

async fn orders_of(stack: &Stack, sale: i64) -> i64 {
    let count = format!("SELECT COUNT(*) FROM tb_voucher_order WHERE voucher_id = {sale}");
    stack.database.number(&count).await
}

/// Six, which is more than are committed at once.
#[tokio::test]
async fn sales_whose_rows_are_locked_delay_no_other_sale() {
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(6).await;
    let mut locked = Vec::new();
    for _ in 0..6 {
        locked.push(stack.publish(10, "stream").await);
    }
    let free = stack.publish(10, "stream").await;
    let mut holder = stack.database.pool.begin().await.unwrap();
    for sale in &locked {
        // Each by its key: a list of ids may scan the table, and lock all of it.
        sqlx::query("SELECT stock FROM tb_seckill_voucher WHERE voucher_id = ? FOR UPDATE")
            .bind(sale)
            .execute(&mut *holder)
            .await
            .unwrap();
    }
    for sale in &locked {
        buy(stack.url(), &users[0], *sale).await.bought();
    }
    for user in &users[1..] {
        let id = buy(stack.url(), user, free).await.bought();
        committed(&stack, user, id).await;
    }
    for sale in &locked {
        assert_eq!(orders_of(&stack, *sale).await, 0, "its row is locked");
    }
    holder.rollback().await.unwrap();
    stack.stream_drained().await;
    for sale in &locked {
        assert_eq!(orders_of(&stack, *sale).await, 1);
    }
}

/// More entries than are kept in memory: the others stay pending in Redis, and are read again when the row is free.
#[tokio::test]
async fn more_entries_of_a_locked_sale_than_are_kept_in_memory_are_committed_later() {
    let stack = Stack::start(1, &["--stream-batch", "4"]).await;
    let (locked, free) = (stack.publish(60, "stream").await, stack.publish(60, "stream").await);
    let users = stack.users(60).await;
    while_sale_is_locked(&stack, locked, async {
        for user in &users {
            buy(stack.url(), user, locked).await.bought();
        }
        for user in &users[..5] {
            let id = buy(stack.url(), user, free).await.bought();
            committed(&stack, user, id).await;
        }
    })
    .await;
    stack.stream_drained().await;
    assert_eq!((orders_of(&stack, locked).await, orders_of(&stack, free).await), (60, 5));
}

#[tokio::test]
async fn an_instance_that_stops_while_a_row_is_locked_leaves_the_entries_to_another() {
    // It waits for the row a few times as long as a statement may take.
    let mut stack = Stack::start(1, &["--database-timeout-ms", "1000"]).await;
    let sale = stack.publish(5, "stream").await;
    let users = stack.users(3).await;
    let holder = lock_sale(&stack, sale).await;
    for user in &users {
        buy(stack.url(), user, sale).await.bought();
    }
    let mut leaving = stack.instances.pop().unwrap();
    leaving.signal("TERM");
    // Within the drain's deadline, or it fails.
    assert!(leaving.ended().await.success());
    stack.add_instance(&[]).await;
    holder.rollback().await.unwrap();
    stack.stream_drained().await;
    assert_eq!(orders_of(&stack, sale).await, 3);
}

/// Evicted, or deleted by hand, with orders in it; everything else in Redis stands.
#[tokio::test]
async fn a_lost_stream_is_noticed_and_its_orders_are_added_again() {
    for by_hand in [false, true] {
        let stack = Stack::start(2, &[]).await;
        let sale = stack.publish(20, "stream").await;
        let users = stack.users(20).await;
        let mut redis = stack.redis.conn().await;
        let ids = while_sale_is_locked(&stack, sale, async {
            let mut ids = Vec::new();
            for (user, url) in users[..6].iter().zip(stack.urls().iter().cycle()) {
                ids.push(buy(url, user, sale).await.bought());
            }
            let mut lose = redis::pipe();
            lose.atomic().del("stream.orders");
            if by_hand {
                // Somebody mends it at once, and so hides that there was no group.
                let create = ["CREATE", "stream.orders", "g1", "$", "MKSTREAM"];
                lose.cmd("XGROUP").arg(&create);
            }
            let _: () = lose.query_async(&mut redis).await.unwrap();
            ids
        })
        .await;
        for (user, id) in users.iter().zip(ids) {
            committed(&stack, user, id).await;
        }
        for user in &users[6..] {
            eventually("the sale goes on", TIMEOUT, || async {
                let answer = buy(stack.url(), user, sale).await;
                // Asked again after a purchase whose reply said that it is pending.
                answer.status == 202 || answer.body["code"] == "ALREADY_ORDERED"
            })
            .await;
        }
        stack.stream_drained().await;
        assert_eq!(orders_of(&stack, sale).await, 20);
        let stock = format!("SELECT stock FROM tb_seckill_voucher WHERE voucher_id = {sale}");
        assert_eq!(stack.database.number(&stock).await, 0);
        for url in stack.urls() {
            eventually("no copy is left", TIMEOUT, || async {
                get(&url, "/metrics").text().await.contains("seckill_stream_unconfirmed_orders 0\n")
            })
            .await;
        }
    }
}

/// The records of what instances hold are lost, and so is an instance: nobody knows whose its entries are.
#[tokio::test]
async fn entries_of_which_nobody_knows_who_holds_them_are_delivered_anew() {
    let mut stack = Stack::start(2, &[]).await;
    let sale = stack.publish(6, "stream").await;
    let users = stack.users(6).await;
    let mut redis = stack.redis.conn().await;
    let urls = stack.urls();
    let mut dead = stack.instances.pop().expect("a second instance");
    let ids = while_sale_is_locked(&stack, sale, async {
        let mut ids = Vec::new();
        for (user, url) in users.iter().zip(urls.iter().cycle()) {
            ids.push(buy(url, user, sale).await.bought());
        }
        let _: () = redis.del("stream.orders.held").await.unwrap();
        dead.kill();
        ids
    })
    .await;
    for (user, id) in users.iter().zip(ids) {
        committed(&stack, user, id).await;
    }
    stack.stream_drained().await;
}

/// The stream of all sales is never empty here: another sale's row is locked.
#[tokio::test]
async fn stranded_stock_is_found_while_entries_of_other_sales_wait() {
    let stack = Stack::start(1, &[]).await;
    let (locked, stranded) = (stack.publish(5, "stream").await, stack.publish(2, "stream").await);
    let users = stack.users(2).await;
    let mut redis = stack.redis.conn().await;
    while_sale_is_locked(&stack, locked, async {
        buy(stack.url(), &users[0], locked).await.bought();
        // As if an order had been cancelled and Redis had never got its stock back.
        let _: () = redis.set(format!("seckill:stock:{stranded}"), 0).await.unwrap();
        for user in &users {
            eventually("it sells again", TIMEOUT, || async {
                buy(stack.url(), user, stranded).await.status == 202
            })
            .await;
        }
        assert_eq!(orders_of(&stack, locked).await, 0, "its row is locked");
    })
    .await;
    stack.stream_drained().await;
    assert_eq!((orders_of(&stack, locked).await, orders_of(&stack, stranded).await), (1, 2));
}

#[tokio::test]
async fn the_keys_of_an_ended_sale_expire_and_those_of_a_reopened_one_do_not() {
    let stack = Stack::start(1, &[]).await;
    let user = stack.users(1).await.remove(0);
    for strategy in ["stream", "reentrant-lock"] {
        let sale = stack.publish(5, strategy).await;
        let keys = [format!("seckill:stock:{sale}"), format!("seckill:order:{sale}")];
        let redis = stack.redis.conn().await;
        buy(stack.url(), &user, sale).await.bought();
        stack.stream_drained().await;
        // A Java node's script may have claimed on any sale.
        let _: () = redis.clone().sadd(&keys[1], user.id).await.unwrap();
        let expires = |whether: bool| {
            let (mut redis, keys) = (redis.clone(), keys.clone());
            async move {
                let mut ttls = Vec::new();
                for key in &keys {
                    let ttl: i64 = redis.ttl(key).await.unwrap();
                    assert_ne!(ttl, -2, "{key} is there");
                    ttls.push(ttl > 0);
                }
                ttls == [whether, whether]
            }
        };
        assert!(expires(false).await);
        let end = |to: &str| {
            format!("UPDATE tb_seckill_voucher SET end_time = NOW() {to} WHERE voucher_id = {sale}")
        };
        stack.database.run(&end("- INTERVAL 2 HOUR")).await;
        eventually("they expire", TIMEOUT, || expires(true)).await;
        stack.database.run(&end("+ INTERVAL 2 HOUR")).await;
        eventually("they are kept", TIMEOUT, || expires(false)).await;
    }
}
