//! Sold-out sales: a refusal costs no round trip and is true, and added stock is sold soon.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use seckill::voucher::sales::FRESH_FOR;
use serde_json::json;
use strategies::Strategy;

use crate::lifetime::act;
use crate::support::api::{get, post};
use crate::support::eventually;
use crate::support::stack::{Proxies, Stack, buy, buy_eventually};
use testkit::raw::calls_of;

/// The strategies that cache that a sale is sold out.
fn safe() -> impl Iterator<Item = Strategy> {
    Strategy::ALL
        .into_iter()
        .filter(|strategy| !strategy.is_unsafe())
}

#[tokio::test]
async fn a_sold_out_reply_costs_no_round_trip() {
    let stack = Stack::patient_behind_proxies(&[]).await;
    let Proxies { database, redis } = &stack.proxies;
    let users = stack.users(2).await;
    for strategy in safe() {
        let sale = stack.publish(1, strategy.name()).await;
        stack.buy_committed(&users[0], sale).await;
        let before = (database.requests(), redis.requests());
        let began = Instant::now();
        for _ in 0..200 {
            stack.buy(&users[1], sale).await.refused(200, "SOLD_OUT");
        }
        let requests = (database.requests() - before.0, redis.requests() - before.1);
        // Some are sent every second whatever happens: the sale is read, the session renewed, the stream looked at.
        let background_requests = 60 + 30 * began.elapsed().as_secs();
        assert!(
            requests.0 < background_requests && requests.1 < background_requests,
            "{strategy}: {requests:?} for 200 replies"
        );
    }
}

/// The other node has just read all the sales, and nobody tells it of the changes. It shows them to whoever asks a second later,
/// even on a busy machine.
#[tokio::test]
async fn within_a_second_every_node_sells_what_was_added_or_returned_and_nothing_off_the_shelf() {
    let stack = Stack::start(2, &[]).await;
    let users = stack.users(3).await;
    let other_url = &stack.instances[1].url;
    let added = stack.publish(1, "reentrant-lock").await;
    let returned = stack.publish(1, "reentrant-lock").await;
    let shelf = stack.publish(9, "reentrant-lock").await;
    let expired = stack.publish(9, "reentrant-lock").await;
    stack.buy(&users[0], added).await.bought();
    let order = stack.buy(&users[0], returned).await.bought();
    let listed = async || {
        let list = get(other_url, "/voucher/list/1").send().await;
        let vouchers = list.data().as_array().expect("a list");
        vouchers
            .iter()
            .map(|voucher| (voucher["id"].as_i64(), voucher["stock"].as_i64()))
            .collect::<Vec<_>>()
    };
    for sale in [added, returned] {
        buy(other_url, &users[1], sale)
            .await
            .refused(200, "SOLD_OUT");
    }
    buy(other_url, &users[1], shelf).await.bought();
    buy(other_url, &users[1], expired).await.bought();
    let before = [(added, 0), (returned, 0), (shelf, 8), (expired, 8)];
    assert_eq!(
        listed().await,
        before.map(|(sale, stock)| (Some(sale), Some(stock)))
    );

    stack.add_stock(added, 2).await;
    act(stack.url(), "cancel", &users[0], order).await.data();
    for (sale, status) in [(shelf, 2), (expired, 3)] {
        let take_off = format!("UPDATE tb_voucher SET status = {status} WHERE id = {sale}");
        stack.database.run(&take_off).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = [(added, 2), (returned, 1)];
    assert_eq!(
        listed().await,
        after.map(|(sale, stock)| (Some(sale), Some(stock)))
    );
    buy(other_url, &users[1], added).await.bought();
    buy(other_url, &users[1], returned).await.bought();
    for sale in [shelf, expired] {
        let refused = buy(other_url, &users[2], sale).await;
        refused.refused(200, "VOUCHER_NOT_FOUND");
    }
}

/// Without a request for a count, an instance finds a change only in a round through all sales. A round sends one SISMEMBER for
/// the claims of each sale.
#[tokio::test]
async fn added_and_returned_stock_is_counted_before_the_next_round_through_all_sales() {
    const OTHERS: i64 = 12;
    let stack = Stack::start(1, &[]).await;
    let user = stack.users(1).await.remove(0);
    let mut redis = stack.redis.conn().await;
    stack.publish_each(1, (0..OTHERS).map(|_| "stream")).await;
    let sale = stack.publish(2, "stream").await;
    for change in ["added", "returned"] {
        eventually(
            &format!("it is {change}, and counted at once"),
            async || {
                let order = stack.buy_committed(&user, sale).await;
                let expected = stack.stock(sale).await + 1;
                let before = calls_of(&mut redis, "sismember").await;
                if change == "added" {
                    stack.add_stock(sale, 1).await;
                } else {
                    act(stack.url(), "cancel", &user, order).await.data();
                }
                stack.counted(sale, expected).await;
                let looks = calls_of(&mut redis, "sismember").await - before;
                if change == "added" {
                    act(stack.url(), "cancel", &user, order).await.data();
                    stack.counted(sale, expected + 1).await;
                }
                looks < OTHERS
            },
        )
        .await;
    }
}

/// The strategy answers with the order, and once an instance remembers it, the instance does. An instance that never answered
/// with the order may say "sold out": the repeated request made no order.
#[tokio::test]
async fn a_repeated_purchase_after_the_sale_gets_its_order_and_added_stock_is_sold_on_every_node() {
    // Nobody tells the other node of added stock: it reads the sale again.
    assert!(
        FRESH_FOR < Duration::from_secs(1),
        "within a second, as docs/OPERATIONS.md says"
    );
    let stack = Stack::start(2, &[]).await;
    let users = stack.users(5).await;
    let mut redis = stack.redis.conn().await;
    for strategy in safe() {
        let sale = stack.publish(2, strategy.name()).await;
        let urls = stack.urls();
        let first = buy(&urls[0], &users[0], sale).await;
        // The other node learns of this order while there is stock.
        let other_answer = buy(&urls[1], &users[0], sale).await;
        other_answer.refused(200, "ALREADY_ORDERED");
        let ids = [first, buy(&urls[1], &users[1], sale).await];
        for _ in 0..3 {
            for ((url, user), first) in urls.iter().zip(&users).zip(&ids) {
                buy(url, &users[2], sale).await.refused(200, "SOLD_OUT");
                let again = buy(url, user, sale).await;
                again.refused(200, "ALREADY_ORDERED");
                assert_eq!(again.body["orderId"], first.body["orderId"], "{strategy}");
            }
        }
        let other_answer = buy(&urls[1], &users[0], sale).await;
        other_answer.refused(200, "ALREADY_ORDERED");
        assert_eq!(
            other_answer.body["orderId"], ids[0].body["orderId"],
            "{strategy}"
        );
        let other_answer = buy(&urls[0], &users[1], sale).await;
        if other_answer.body["code"] != "SOLD_OUT" {
            assert_eq!(
                other_answer.body["orderId"], ids[1].body["orderId"],
                "{strategy}"
            );
        }

        stack.stream_drained().await;
        assert_eq!(stack.add_stock(sale, 2).await, 2, "{strategy}");
        // The node that added it sells at once, or on the stream as soon as it has counted. The other node sells soon.
        if strategy.is_deferred() {
            stack.buy_eventually(&users[2], sale).await;
        } else {
            stack.buy(&users[2], sale).await.bought();
        }
        buy_eventually(&urls[1], &users[3], sale).await;
        stack.buy(&users[4], sale).await.refused(200, "SOLD_OUT");
        stack.stream_drained().await;
        let row = stack.database.of_sale(sale, "stock * 100 + issued").await;
        assert_eq!(row, 4, "{strategy}");
        // On a strategy that does not admit by the counter, the counter has what was left when stock was added.
        let expected = if strategy.is_deferred() { 0 } else { 2 };
        eventually("the counter is set", async || {
            stack.counter(sale).await.expect("a counter") <= expected
        })
        .await;
    }
    // If the counter is missing, adding stock does not create it with what was added. It is soon set from the database.
    let sale = stack.publish(1, "group-commit").await;
    let _: () = redis.del(stack.keys.stock(sale)).await.unwrap();
    stack.add_stock(sale, 1).await;
    eventually("the counter has all that is left", async || {
        stack
            .counter(sale)
            .await
            .is_some_and(|counter| counter <= 2)
    })
    .await;

    // Only amounts in range are added.
    let sale = stack.publish(5, "group-commit").await;
    let path = format!("/voucher/seckill/{sale}/stock");
    let body = json!({ "add": 1 });
    for bad in [
        json!(0),
        json!(-1),
        json!(10_000_001),
        json!(9_999_999),
        json!("x"),
        json!(null),
    ] {
        let answer = post(stack.url(), &path)
            .admin()
            .json(json!({ "add": bad }))
            .send()
            .await;
        answer.refused(400, "INVALID_PARAMETER");
    }
    // The limit is on the sum, with what is sold already.
    stack.database.set_sale(sale, "stock = 0").await;
    let addition = post(stack.url(), &path).admin();
    let answer = addition.json(json!({ "add": 9_999_996 })).send().await;
    answer.refused(400, "INVALID_PARAMETER");
    stack.database.set_sale(sale, "stock = 5").await;
    let nowhere = post(stack.url(), "/voucher/seckill/999/stock")
        .admin()
        .json(body)
        .send()
        .await;
    nowhere.refused(200, "VOUCHER_NOT_FOUND");
    assert_eq!(
        stack.database.of_sale(sale, "stock * 100 + issued").await,
        505
    );
    // A sale that a Java node published has only its stock; what was issued is recorded later.
    stack.database.set_sale(sale, "issued = NULL").await;
    assert_eq!(stack.add_stock(sale, 5).await, 10);
    eventually("what was issued is recorded", async || {
        stack.database.of_sale(sale, "issued <=> 10").await == 1
    })
    .await;
}
