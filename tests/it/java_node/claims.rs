//! A claim that the Java script made is respected while its entry is in the stream.

use super::player::{JavaNode, Reply};
use super::{drops_were_looked_for, has_claim};
use crate::resilience::while_sale_is_locked;
use crate::support::stack::{Stack, buy};

#[tokio::test]
async fn a_buyer_whom_the_java_script_admitted_gets_no_second_yes_and_can_look_the_order_up() {
    let stack = Stack::start(2, &[]).await;
    let sale = stack.publish(5, "stream").await;
    let users = stack.users(2).await;
    let java = JavaNode::join(&stack).await;
    let order = while_sale_is_locked(&stack, sale, async {
        let Reply::Admitted(order) = java.buy(users[0].id, sale).await else { panic!("admitted") };
        for base in stack.urls() {
            buy(&base, &users[0], sale).await.refused(200, "ALREADY_ORDERED");
        }
        assert!(has_claim(&stack, sale, &users[0]).await, "the claim was erased");
        stack.told(&users[0], order, "PENDING").await;
        stack.look_up(&users[1], order).await.shows_no_order();
        assert_eq!(stack.counter(sale).await, Some(4));
        order
    })
    .await;
    stack.stream_drained().await;
    assert_eq!(stack.look_up(&users[0], order).await.data()["id"], order);
    assert_eq!(stack.orders(sale).await, 1);
    assert_eq!(stack.counter(sale).await, Some(4));
}

/// The same while the entry is in the hands of the Java consumer.
#[tokio::test]
async fn the_claim_of_an_entry_that_a_java_consumer_holds_is_respected() {
    let stack = Stack::start(1, &["--stream-min-idle-ms", "60000"]).await;
    let sale = stack.publish(5, "stream").await;
    let user = stack.users(1).await.remove(0);
    let java = JavaNode::join(&stack).await;
    java.hold(user.id, sale, 77, false).await;
    for order in 78..80 {
        stack.buy(&user, sale).await.refused(200, "ALREADY_ORDERED");
        drops_were_looked_for(&stack, &java, order).await;
    }
    assert_eq!(stack.look_up(&user, 77).await.status, 202);
    assert_eq!(stack.orders(sale).await, 0);
    assert_eq!(stack.counter(sale).await, Some(4));
}
