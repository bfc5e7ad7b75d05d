//! The key style `cluster`, on a redis-server that refuses whatever touches two slots: every feature that uses Redis works,
//! all sales on the stream are in one slot, and nodes of another style are kept out.

use redis::AsyncCommands;
use strategies::Strategy;

use crate::law;
use crate::lifetime::act;
use crate::resilience::while_sale_is_locked;
use crate::slow::redis_sentinel::read_shops;
use crate::support::api::{get, post};
use crate::support::eventually;
use crate::support::instance::Instance;
use crate::support::stack::{Stack, buy, buy_eventually, sign_in};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_are_sold_and_nothing_touches_two_slots() {
    let args = [
        "--lab",
        "--code-sends-per-address",
        "2",
        "--code-guesses-per-address",
        "3",
    ];
    let stack = Stack::in_cluster_style(2, &args).await;
    let [first_url, second_url] = [
        stack.instances[0].url.as_str(),
        stack.instances[1].url.as_str(),
    ];

    // Sessions, each in a slot of its own, and codes together with the counters of an address.
    let signed_in = sign_in(first_url, &mut stack.redis.conn().await, "13800000001").await;
    let me = get(second_url, "/user/me")
        .token(&signed_in.token)
        .send()
        .await;
    assert_eq!(me.data()["id"], signed_in.id);
    read_shops(second_url).await;
    for (attempt, refused) in [(1, false), (2, false), (3, true)] {
        let path = format!("/user/code?phone=1390000000{attempt}");
        let answer = post(first_url, &path)
            .header("x-forwarded-for", "203.0.113.7")
            .send()
            .await;
        assert_eq!(answer.status == 429, refused, "{answer:?}");
    }
    let users = stack.users(3).await;

    for _ in 0..2 {
        let sale = stack.publish(1, "stream").await;
        let order = while_sale_is_locked(&stack, sale, async {
            let order = buy(second_url, &users[0], sale).await.bought();
            assert_eq!(stack.look_up(&users[0], order).await.status, 202);
            order
        })
        .await;
        stack.stream_drained().await;
        stack.settled().await;
        assert_eq!(
            stack.look_up(&users[0], order).await.data()["voucherId"],
            sale
        );
        stack
            .look_up(&users[1], order)
            .await
            .refused(200, "ORDER_NOT_FOUND");
        let again = buy(second_url, &users[0], sale).await;
        again.refused(200, "ALREADY_ORDERED");
        assert_eq!(again.body["orderId"], order.to_string());
        buy(first_url, &users[1], sale)
            .await
            .refused(200, "SOLD_OUT");
    }

    // Stock that is added, and stock that comes back.
    let sale = stack.publish(1, "stream").await;
    let first = buy(first_url, &users[0], sale).await.bought();
    stack.stream_drained().await;
    act(first_url, "cancel", &users[0], first).await.data();
    stack.add_stock(sale, 2).await;
    for user in &users {
        buy_eventually(first_url, user, sale).await;
    }
    stack.stream_drained().await;
    eventually("nothing is left", async || {
        stack.counter(sale).await == Some(0)
    })
    .await;

    // The keys that the stream's scripts use have the tag in their names.
    let mut redis = stack.redis.conn().await;
    let keys: Vec<String> = redis.keys("*").await.unwrap();
    let tagged_prefixes = [
        "seckill:stock:",
        "seckill:order:",
        "seckill:open",
        "seckill:refused",
        "stream.orders",
        "icr:order",
    ];
    for key in &keys {
        let tagged = tagged_prefixes.iter().any(|prefix| key.starts_with(prefix));
        assert_eq!(key.contains(":{orders}"), tagged, "{key}");
    }

    // When Redis loses everything, the style is recorded again.
    let _: () = redis::cmd("FLUSHALL")
        .query_async(&mut redis)
        .await
        .unwrap();
    eventually("the style is on record again", async || {
        let style: Option<String> = redis.get("seckill:key-style").await.unwrap();
        style.as_deref() == Some("cluster")
    })
    .await;

    // The safe strategies hold on two instances.
    let safe = [
        Strategy::SetnxLock,
        Strategy::ReentrantLock,
        Strategy::Stream,
        Strategy::GroupCommit,
    ];
    let sales = safe.map(async |strategy| law::assert_holds(&law::sale(&stack, strategy).await));
    law::at_once(sales).await;
    for instance in &stack.instances {
        let slots = instance.lines_with("CROSSSLOT");
        assert!(slots.is_empty(), "{slots:?}");
    }

    // `doctor` names the style. A node of another style does not start, and says why.
    let (_, text) = Instance::run(&["doctor"], &stack.env());
    assert!(text.contains("key style cluster, as recorded"), "{text}");
    let other_style = ["serve", "--bind", "127.0.0.1:0", "--key-style", "default"];
    let says = "several slots, which a Redis Cluster refuses";
    Instance::says(1, &other_style, &stack.env(), says);
}
