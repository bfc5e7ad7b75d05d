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
    // The first is admitted by our node, the second by the Java node, and both are dropped. The third is admitted by our node,
    // and the Java consumer commits its order.
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
        // The buyer hears it from the refusal's row, which is written before the claim is given back.
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

    // A dropped entry of a buyer who has an order: the refusal names that order.
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
    // As if one of our consumers had written the refusal's row, but not the reason yet: the buyer still hears "pending".
    let insert_refusal = "INSERT INTO tb_voucher_order (id, user_id, voucher_id, status) VALUES";
    stack
        .database
        .run(&format!("{insert_refusal} (81, {}, 0, 4)", user.id))
        .await;
    assert_eq!(stack.look_up(user, 81).await.status, 202);
    // The Java consumer finds the buyer's order, and drops the entry.
    java.handle(&delivered).await;
    let refused = stack.decided(user, 81).await;
    refused.refused(200, "ALREADY_ORDERED");
    assert_eq!(refused.body["orderId"], first.to_string());
    assert!(
        has_claim(&stack, sale, user).await,
        "there is an order, so the claim stays"
    );
    assert_eq!(stack.drained(sale).await, (1, 4, Some(4)));

    // A dropped entry of a sale that is sold out: the refusal says so.
    let sale = stack.publish(1, "stream").await;
    stack.buy_committed(&users[0], sale).await;
    let delivered = java.hold(users[1].id, sale, 91, true).await;
    // No stock is left, so the Java consumer drops the entry.
    java.handle(&delivered).await;
    stack.wait_for_code(&users[1], 91, "SOLD_OUT").await;
    stack.counted(sale, 0).await;
    assert!(!has_claim(&stack, sale, &users[1]).await);

    // Three orders are pending for one voucher, and all three are dropped. Afterwards one is left to sell, not three.
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

    // A dropped entry is found even if its consumer has left the group. While only our consumers are in the group, they look
    // for drops less often.
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

    // Somebody deletes one of several entries. Its order does not stay pending forever.
    let deleted = java.hold(users[1].id, sale, 93, true).await;
    java.hold(users[2].id, sale, 94, true).await;
    let _: u64 = redis.xdel("stream.orders", &[deleted.entry]).await.unwrap();
    stack.wait_for_code(&users[1], 93, "ORDER_NOT_FOUND").await;
    stack.wait_for_code(&users[2], 94, "PENDING").await;
    stack.counted(sale, 4).await;
}

/// A Java consumer reads an entry again and again that it cannot commit, so that the entry never becomes idle.
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

    // The acknowledgement comes while a consumer of ours has the entry and cannot commit it yet. That refuses the order for
    // good: our consumer's later attempt to commit it has no effect.
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
        // The voucher that the refusal gives back is counted only when the sale opens again. Until then the counter is 0, so
        // that no Java node sells it.
        let counter = stack.counter(sale).await;
        assert_eq!(counter, Some(0), "of a sale that is closed");
    })
    .await;
    stack.stream_drained().await;
    stack.look_up(&user, 73).await.refused(200, "ORDER_FAILED");
    stack.counted(sale, 5).await;
    assert_eq!(stack.tables(sale).await, (0, 5));
}
