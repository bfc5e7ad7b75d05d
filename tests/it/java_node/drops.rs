//! Entries that the Java consumer holds, acknowledges and drops, keeps for good, or acknowledges late.

use redis::AsyncCommands;

use super::{JavaNode, drops_were_looked_for, has_claim};
use crate::resilience::while_sale_is_locked;
use crate::support::eventually;
use crate::support::stack::{Stack, buy};

#[tokio::test]
async fn a_dropped_entry_is_refused_for_good_with_its_reason_and_gives_its_place_and_stock_back() {
    let stack = Stack::start(2, &["--stream-min-idle-ms", "60000"]).await;
    let sale = stack.publish(5, "stream").await;
    let users = stack.users(3).await;
    let java = JavaNode::join(&stack).await;
    // Admitted by ours, by the Java node, and one whose order the Java consumer commits.
    let mut held = Vec::new();
    for (order, user, ours) in [
        (71, &users[0], true),
        (72, &users[1], false),
        (73, &users[2], true),
    ] {
        held.push(java.hold(user.id, sale, order, ours).await);
        stack.wait_for_code(user, order, "PENDING").await;
    }
    // Nobody gets a second yes while the Java consumer holds the entry, however often the sale is counted.
    for (base, order) in stack.urls().iter().zip(74..) {
        buy(base, &users[1], sale)
            .await
            .refused(200, "ALREADY_ORDERED");
        drops_were_looked_for(&stack, &java, order).await;
    }
    assert!(
        has_claim(&stack, sale, &users[1]).await,
        "the claim was erased"
    );
    stack.look_up(&users[0], 72).await.shows_no_order();
    assert_eq!(
        (stack.orders(sale).await, stack.counter(sale).await),
        (0, Some(2))
    );

    java.commit(&held[2]).await;
    for (delivered, user) in held.iter().zip(&users) {
        java.acknowledge(delivered).await;
        if delivered.order == 73 {
            continue;
        }
        stack
            .wait_for_code(user, delivered.order, "ORDER_FAILED")
            .await;
        // Told by its row, which is there before the claim is given back.
        eventually("the claim is given back", || async {
            !has_claim(&stack, sale, user).await
        })
        .await;
    }
    assert_eq!(
        stack.drained(sale).await,
        (1, 4, Some(4)),
        "each place came back once"
    );
    stack.look_up(&users[2], 73).await.data();
    assert!(has_claim(&stack, sale, &users[2]).await);
    // And the buyers may try again, at either kind of node.
    stack.buy(&users[0], sale).await.bought();
    java.buy(users[1].id, sale).await;
    assert_eq!(stack.drained(sale).await, (3, 2, Some(2)));

    // One of a buyer who has an order names it.
    let sale = stack.publish(5, "stream").await;
    let user = &users[0];
    let first = stack.buy_committed(user, sale).await;
    // The claim was lost, so that the buyer is admitted a second time.
    let _: () = java
        .redis
        .clone()
        .srem(stack.keys.claims(sale), user.id)
        .await
        .unwrap();
    let delivered = java.hold(user.id, sale, 81, true).await;
    // One of our consumers has written its refusal, and not why yet.
    let refusal = "INSERT INTO tb_voucher_order (id, user_id, voucher_id, status) VALUES";
    stack
        .database
        .run(&format!("{refusal} (81, {}, 0, 4)", user.id))
        .await;
    assert_eq!(stack.look_up(user, 81).await.status, 202);
    // It finds the row, and drops.
    java.handle(&delivered).await;
    let refused = stack.decided(user, 81).await;
    refused.refused(200, "ALREADY_ORDERED");
    assert_eq!(refused.body["orderId"], first.to_string());
    assert!(
        has_claim(&stack, sale, user).await,
        "there is an order, so the claim stays"
    );
    assert_eq!(stack.drained(sale).await, (1, 4, Some(4)));

    // One of a sale that is sold out says so.
    let sale = stack.publish(1, "stream").await;
    stack.buy_committed(&users[0], sale).await;
    let delivered = java.hold(users[1].id, sale, 91, true).await;
    // No stock is left, so it drops.
    java.handle(&delivered).await;
    stack.wait_for_code(&users[1], 91, "SOLD_OUT").await;
    stack.counted(sale, 0).await;
    assert!(!has_claim(&stack, sale, &users[1]).await);

    // More are pending than are left, and all are dropped: of what they give back only what is left is sold.
    let sale = stack.publish(1, "stream").await;
    let mut held = Vec::new();
    for (user, order) in users.iter().zip(101..) {
        held.push(java.hold(user.id, sale, order, true).await);
    }
    let mut redis = stack.redis.conn().await;
    let _: () = redis.del(stack.keys.stock(sale)).await.unwrap();
    stack.counted(sale, 1 - 3).await;
    for delivered in &held {
        java.acknowledge(delivered).await;
    }
    assert_eq!(stack.drained(sale).await, (0, 1, Some(1)));

    // A drop is found though its consumer has left the group: while only ours are in it, less often.
    let sale = stack.publish(5, "stream").await;
    let held = java.hold(users[0].id, sale, 92, false).await;
    let _: () = redis::pipe()
        .atomic()
        .cmd("XACK")
        .arg(&["stream.orders", "g1", &held.entry])
        .cmd("XGROUP")
        .arg(&["DELCONSUMER", "stream.orders", "g1", "c1"])
        .query_async(&mut stack.redis.conn().await)
        .await
        .unwrap();
    stack
        .wait_for_code(&users[0], held.order, "ORDER_FAILED")
        .await;

    // Somebody deletes one entry of several: its order is not pending for good.
    let deleted = java.hold(users[1].id, sale, 93, true).await;
    java.hold(users[2].id, sale, 94, true).await;
    let _: u64 = redis.xdel("stream.orders", &[deleted.entry]).await.unwrap();
    stack.wait_for_code(&users[1], 93, "ORDER_NOT_FOUND").await;
    stack.wait_for_code(&users[2], 94, "PENDING").await;
    stack.counted(sale, 4).await;
}

/// A consumer that goes round and round with an entry that it cannot commit, which keeps the entry young.
#[tokio::test]
async fn an_entry_that_a_java_consumer_keeps_is_taken_over_and_may_be_acknowledged_late() {
    let stack = Stack::start(1, &["--stream-min-idle-ms", "1500"]).await;
    let sale = stack.publish(5, "stream").await;
    let user = stack.users(1).await.remove(0);
    let java = JavaNode::join(&stack).await;
    let delivered = java.hold(user.id, sale, 71, true).await;
    eventually("the entry is taken over", async || {
        java.read(false).await;
        stack.orders(sale).await == 1
    })
    .await;
    stack.look_up(&user, 71).await.data();
    stack.stream_drained().await;
    // It acknowledges late: nothing is undone by that.
    java.acknowledge(&delivered).await;
    drops_were_looked_for(&stack, &java, 72).await;
    stack.look_up(&user, 71).await.data();
    assert_eq!(stack.drained(sale).await, (1, 4, Some(4)));

    // The acknowledgement comes while the entry is with a consumer of ours, which cannot commit yet: that ends it for
    // good, and what ours tries later comes to nothing.
    let sale = stack.publish(5, "stream").await;
    let delivered = java.hold(user.id, sale, 73, true).await;
    let mut redis = stack.redis.conn().await;
    while_sale_is_locked(&stack, sale, async {
        eventually("taken over", || async { java.pending().await == 0 }).await;
        let _: () = redis.del(stack.keys.open(sale)).await.unwrap();
        stack.counted(sale, 0).await;
        java.acknowledge(&delivered).await;
        stack.wait_for_code(&user, 73, "ORDER_FAILED").await;
        stack.stream_drained().await;
        // What it gave back is counted once the sale opens, and is not sold by a Java node before.
        let counter = stack.counter(sale).await;
        assert_eq!(counter, Some(0), "of a sale that is closed");
    })
    .await;
    stack.stream_drained().await;
    stack.look_up(&user, 73).await.refused(200, "ORDER_FAILED");
    stack.counted(sale, 5).await;
    assert_eq!(stack.tables(sale).await, (0, 5));
}
