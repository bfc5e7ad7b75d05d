//! The first start beside a Java node that has sold for long, and the way back to Java alone.

use redis::AsyncCommands;

use super::{JavaNode, Reply, drops_were_looked_for, has_claim};
use crate::support::eventually;
use crate::support::hold::Hold;
use crate::support::stack::Stack;

/// How many entries the Java node has acknowledged whose orders have no row.
const PAST: usize = 50;

#[tokio::test]
async fn joining_claims_what_is_pending_and_leaves_a_long_past_as_it_is() {
    let mut stack = Stack::start(0, &[]).await;
    let mut java = JavaNode::join(&stack).await;
    let sale = java.publish(30).await;
    let users = stack.users(4).await;
    let mut past = redis::pipe();
    for number in 0..PAST {
        let fields = [
            ("userId", 1000 + number),
            ("voucherId", sale as usize),
            ("id", 10_000 + number),
        ];
        past.xadd("stream.orders", "*", &fields).ignore();
    }
    past.cmd("XREADGROUP")
        .arg(&["GROUP", "g1", "c1", "STREAMS", "stream.orders", ">"])
        .ignore();
    let () = past.query_async(&mut java.redis).await.unwrap();
    let all: redis::streams::StreamRangeReply =
        java.redis.xrange_all("stream.orders").await.unwrap();
    let ids: Vec<&str> = all.ids.iter().map(|entry| entry.id.as_str()).collect();
    let _: i64 = java.redis.xack("stream.orders", "g1", &ids).await.unwrap();
    // An order whose row is deleted by hand.
    let deleted = java.hold(users[0].id, sale, 71, false).await;
    java.handle(&deleted).await;
    sqlx::query("DELETE FROM tb_voucher_order WHERE id = 71")
        .execute(&java.pool)
        .await
        .unwrap();
    // Entries that count: one with a row and one without, which `c1` holds, and one that nobody has read.
    let committed = java.hold(users[1].id, sale, 72, false).await;
    java.commit(&committed).await;
    java.hold(users[2].id, sale, 73, false).await;
    let Reply::Admitted(unread) = java.buy(users[3].id, sale).await else {
        panic!("not admitted")
    };

    let stock_before = stack.stock(sale).await;
    let is_unread = format!("NEW.user_id = {}", users[3].id);
    let insert = "AFTER INSERT ON tb_voucher_order";
    let hold = Hold::first(&stack.database, insert, &is_unread).await;
    stack.add_instance(&["--stream-min-idle-ms", "1500"]).await;
    let pending = stack.look_up(&users[3], unread).await;
    assert_eq!(pending.status, 202, "{pending:?}");
    stack.opened(sale).await;
    let counter = stack.counter(sale).await;
    assert_eq!(
        counter,
        Some(stock_before - 2),
        "both that count are in flight"
    );
    hold.release().await;
    eventually("what counts is committed", || async {
        stack.orders(sale).await == 3
    })
    .await;
    drops_were_looked_for(&stack, &java, 74).await;
    stack.stream_drained().await;
    let entries: usize = java.redis.xlen("stream.orders").await.unwrap();
    assert_eq!((stack.orders(sale).await, entries), (3, PAST + 1));
    assert_eq!(
        stack.stock(sale).await,
        stock_before - 2,
        "nothing of the past was sold"
    );
    let refused = "SELECT COUNT(*) FROM tb_voucher_order WHERE voucher_id IN (0, id)";
    assert_eq!(
        stack.database.number(refused).await,
        1,
        "but for the drop that was looked for"
    );
    stack.counted(sale, stock_before - 2).await;
    assert!(
        !has_claim(&stack, sale, &users[0]).await,
        "a claim without an order"
    );
}

#[tokio::test]
async fn a_java_node_goes_on_alone_after_us() {
    let mut stack = Stack::start(1, &[]).await;
    let sale = stack.publish(5, "stream").await;
    let users = stack.users(2).await;
    let java = JavaNode::join(&stack).await;
    let our_order = stack.buy(&users[0], sale).await.bought();
    let dropped = java.hold(users[1].id, sale, 71, true).await;
    java.acknowledge(&dropped).await;
    stack.wait_for_code(&users[1], 71, "ORDER_FAILED").await;
    stack.stream_drained().await;
    stack.instances[0].stop().await;

    assert_eq!(java.buy(users[0].id, sale).await, Reply::AlreadyOrdered);
    let Reply::Admitted(order) = java.buy(users[1].id, sale).await else {
        panic!("not admitted")
    };
    let delivered = java
        .read(true)
        .await
        .expect("the new entry, and nothing of ours");
    assert_eq!(delivered.order, order);
    java.handle(&delivered).await;
    assert_eq!(stack.tables(sale).await, (2, 3));
    assert_eq!(stack.counter(sale).await, Some(3));
    let buyer = format!("SELECT COUNT(*) FROM tb_voucher_order WHERE id IN ({our_order}, {order})");
    assert_eq!(stack.database.number(&buyer).await, 2);
}
