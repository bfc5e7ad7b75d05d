//! The counter that the Java script needs is never absent while the sale is open.

use redis::AsyncCommands;
use testkit::raw::command;

use super::{JavaNode, Reply};
use crate::support::stack::Stack;

/// Watches the counter while `work` runs: every command that removes it is seen, however short the gap.
async fn while_watched(stack: &Stack, sale: i64, work: impl Future<Output = ()>) {
    let mut redis = stack.redis.conn().await;
    let events = command("CONFIG", &["SET", "notify-keyspace-events", "Kgx"]);
    events.exec_async(&mut redis).await.unwrap();
    let mut subscription = redis::Client::open(stack.redis.url())
        .unwrap()
        .get_async_pubsub()
        .await
        .unwrap();
    let channel = format!("__keyspace@0__:seckill:stock:{sale}");
    subscription.subscribe(&channel).await.unwrap();
    let mut messages = subscription.into_on_message();
    let watch = tokio::spawn(async move {
        loop {
            let message = futures_util::StreamExt::next(&mut messages).await.unwrap();
            match message.get_payload::<String>().unwrap().as_str() {
                "over" => return,
                event => assert!(
                    !matches!(event, "del" | "expired" | "rename_from"),
                    "{event}"
                ),
            }
        }
    });
    work.await;
    // Arrives after all earlier events.
    let _: () = redis.publish(channel, "over").await.unwrap();
    watch.await.expect("the counter was not removed");
}

#[tokio::test]
async fn the_counter_stays_in_place_while_stock_is_added_and_while_it_is_put_right() {
    let stack = Stack::start(2, &[]).await;
    let sale = stack.publish(2, "stream").await;
    let users = stack.users(6).await;
    let mut java = JavaNode::join(&stack).await;
    while_watched(&stack, sale, async {
        for user in &users[..2] {
            stack.buy(user, sale).await.bought();
        }
        assert_eq!(java.buy(users[2].id, sale).await, Reply::SoldOut);
        stack.add_stock(sale, 3).await;
        // Without any purchase at our nodes.
        stack.counted(sale, 3).await;
        assert!(matches!(
            java.buy(users[2].id, sale).await,
            Reply::Admitted(_)
        ));
        for user in &users[3..5] {
            stack.buy(user, sale).await.bought();
        }
        stack.buy(&users[5], sale).await.refused(200, "SOLD_OUT");
        assert_eq!(stack.drained(sale).await, (5, 0, Some(0)));
    })
    .await;

    // The counter admitted too many, the database refuses, and the counter is put right in its place.
    let sale = stack.publish(2, "stream").await;
    while_watched(&stack, sale, async {
        let _: () = java
            .redis
            .set(format!("seckill:stock:{sale}"), 4)
            .await
            .unwrap();
        for user in &users[..4] {
            stack.buy(user, sale).await;
        }
        stack.stream_drained().await;
        stack.counted(sale, 0).await;
        // Stranded stock: the counter is too low.
        stack.add_stock(sale, 1).await;
        stack.counted(sale, 1).await;
        let _: () = java
            .redis
            .set(format!("seckill:stock:{sale}"), 0)
            .await
            .unwrap();
        stack.buy_eventually(&users[4], sale).await;
        stack.stream_drained().await;
    })
    .await;
    assert_eq!(stack.tables(sale).await, (3, 0));
}

#[tokio::test]
async fn a_counter_that_is_lost_is_there_again_without_a_purchase() {
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(2).await;
    let java = JavaNode::join(&stack).await;
    // The clock of Redis stepped back after the mark had begun: its age is negative.
    let sale = stack.publish(3, "stream").await;
    let mut redis = stack.redis.conn().await;
    let mark: String = redis.hget("stream.orders.pending", "mark").await.unwrap();
    let [server, since, join] = mark.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{mark}")
    };
    let hour = since.parse::<u64>().unwrap() + 3_600_000_000;
    let later = format!("{server} {hour} {join}");
    let _: () = redis
        .hset("stream.orders.pending", "mark", &later)
        .await
        .unwrap();
    let _: () = redis.del(format!("seckill:stock:{sale}")).await.unwrap();
    stack.counted(sale, 3).await;
    let mark: String = redis.hget("stream.orders.pending", "mark").await.unwrap();
    assert_ne!(mark, later, "nothing would be denied for an hour");
    stack.buy_eventually(&users[0], sale).await;

    // Redis lost everything: the counters are there again before anybody buys at our nodes.
    let sale = stack.publish(3, "stream").await;
    let locked = stack.publish(2, "reentrant-lock").await;
    stack.buy_committed(&users[0], sale).await;
    let _: () = redis::cmd("FLUSHALL")
        .query_async(&mut redis)
        .await
        .unwrap();
    for sale in [sale, locked] {
        stack.counted(sale, 2).await;
    }
    assert_eq!(java.buy(users[0].id, sale).await, Reply::AlreadyOrdered);
    assert!(matches!(
        java.buy(users[1].id, sale).await,
        Reply::Admitted(_)
    ));
    assert_eq!(stack.drained(sale).await, (2, 1, Some(1)));
}
