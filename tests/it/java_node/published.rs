//! A sale that a Java node published is recognised, and sold in its way.

use redis::AsyncCommands;

use super::{JavaNode, Reply};
use crate::support::eventually;
use crate::support::instance::Instance;
use crate::support::stack::Stack;

/// Whether a sale is recorded with this strategy, and so much issued.
async fn is_recorded(stack: &Stack, sale: i64, strategy: &str, issued: &str) -> bool {
    let row = format!("strategy = '{strategy}' AND issued <=> {issued}");
    stack.database.of_sale(sale, &row).await == 1
}

/// One sale is under way. Another has no counter, like a sale of an earlier stage of the course: the column's default says how
/// it is sold.
#[tokio::test]
async fn sales_that_exist_before_our_first_start_are_sold_as_they_are() {
    let mut stack = Stack::start(0, &[]).await;
    let mut java = JavaNode::join(&stack).await;
    let sale = java.publish(5).await;
    let plain = java.publish(2).await;
    let users = stack.users(6).await;
    // An order was cancelled by hand.
    let cancelled = "INSERT INTO tb_voucher_order (id, user_id, voucher_id, status) VALUES";
    let cancelled = format!("{cancelled} (70, {}, {sale}, 4)", users[5].id);
    stack.database.run(&cancelled).await;
    for (user, order) in users[..2].iter().zip(71..) {
        let delivered = java.hold(user.id, sale, order, false).await;
        java.handle(&delivered).await;
    }
    assert!(matches!(
        java.buy(users[2].id, sale).await,
        Reply::Admitted(_)
    ));
    // No instance of ours has run yet: it would have recorded the sale, which had a counter.
    let _: () = java.redis.del(stack.keys.stock(plain)).await.unwrap();

    let (_, text) = Instance::run(&["doctor"], &stack.env());
    let recognised = format!("sale {sale}: a Java node published it; sold on the strategy stream");
    assert!(text.contains(&recognised), "{text}");
    let missing = format!("seckill:stock:{plain} is missing: sold by reentrant-lock");
    assert!(text.contains(&missing), "{text}");

    stack.add_instance(&[]).await;
    stack
        .buy(&users[0], sale)
        .await
        .refused(200, "ALREADY_ORDERED");
    stack
        .buy(&users[2], sale)
        .await
        .refused(200, "ALREADY_ORDERED");
    for user in [&users[3], &users[5]] {
        stack.buy(user, sale).await.bought();
    }
    assert_eq!(java.buy(users[4].id, sale).await, Reply::SoldOut);
    stack.buy(&users[4], sale).await.refused(200, "SOLD_OUT");
    // The cancelled order counts neither as its user's order nor as issued.
    assert_eq!(stack.drained(sale).await, (6, 0, Some(0)));
    assert!(is_recorded(&stack, sale, "stream", "5").await);
    assert_eq!(
        stack.buy(&users[0], plain).await.status,
        200,
        "committed, not pending"
    );
    assert_eq!(stack.counter(plain).await, None);
    // How much a Java node issued is unknown, and stays unknown when stock is added.
    stack.add_stock(plain, 3).await;
    assert!(is_recorded(&stack, plain, "reentrant-lock", "NULL").await);

    // A sale whose row is locked does not keep another closed.
    stack.instances.clear();
    let locked = java.publish(2).await;
    let unlocked = java.publish(2).await;
    let holder = stack.lock_sale(locked).await;
    stack.add_instance(&[]).await;
    stack.buy_eventually(&users[5], unlocked).await;
    holder.rollback().await.unwrap();
    eventually("it is recorded once its row is free", async || {
        is_recorded(&stack, locked, "stream", "2").await
    })
    .await;

    // A sale that a Java node publishes while we run is sold in its way at once, or as soon as a busy machine has counted it.
    let sale = java.publish(1).await;
    let mut bought = None;
    eventually("it is counted", async || {
        let answer = stack.buy(&users[0], sale).await;
        bought.insert(answer).body["code"] != "UNAVAILABLE"
    })
    .await;
    assert_eq!(bought.expect("an answer").status, 202, "pending");
    assert_eq!(java.buy(users[1].id, sale).await, Reply::SoldOut);
}
