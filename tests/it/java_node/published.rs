//! A sale that a Java node published is recognised, and sold in its way.

use std::time::Duration;

use redis::AsyncCommands;
use testkit::wait::eventually;

use super::player::{JavaNode, Reply};
use super::{counter, rows, stock};
use crate::resilience::lock_sale;
use crate::support::instance::Instance;
use crate::support::stack::{Stack, buy};

const TIMEOUT: Duration = Duration::from_secs(20);

async fn strategy_and_issued(stack: &Stack, sale: i64) -> (String, Option<i64>) {
    sqlx::query_as(
        "SELECT strategy, CAST(issued AS SIGNED) FROM tb_seckill_voucher WHERE voucher_id = ?",
    )
    .bind(sale)
    .fetch_one(&stack.database.pool)
    .await
    .unwrap()
}

/// Half of the buyers at either kind of node: together they are told yes as often as there are vouchers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_a_java_node_published_is_sold_by_its_counter() {
    let stack = Stack::start(2, &[]).await;
    let mut java = JavaNode::join(&stack).await;
    let sale = java.publish(20).await;
    let users = stack.users(60).await;
    let mut yes = 0;
    for (at, user) in users.iter().enumerate() {
        if at % 2 == 0 {
            yes += i32::from(matches!(java.buy(user.id, sale).await, Reply::Admitted(_)));
        } else {
            let base = &stack.instances[at / 2 % 2].url;
            let answer = buy(base, user, sale).await;
            match answer.status {
                202 => yes += 1,
                _ => {
                    answer.refused(200, "SOLD_OUT");
                }
            }
        }
    }
    stack.stream_drained().await;
    assert_eq!(yes, 20, "buyers who were told yes");
    assert_eq!((rows(&stack).await, stock(&stack, sale).await), (20, 0));
    eventually("it is recorded as what it is", TIMEOUT, || async {
        strategy_and_issued(&stack, sale).await == ("stream".to_owned(), Some(20))
    })
    .await;
}

/// The Java node has sold some before one of ours is started.
#[tokio::test]
async fn a_sale_that_is_under_way_is_taken_as_it_is() {
    let mut stack = Stack::start(0, &[]).await;
    let mut java = JavaNode::join(&stack).await;
    let sale = java.publish(4).await;
    let users = stack.users(6).await;
    for (user, order) in users[..2].iter().zip(71..) {
        let delivered = java.hold(user.id, sale, order, false).await;
        assert!(java.handle(&delivered, super::consumer::Deed::Commit).await);
    }
    assert!(matches!(java.buy(users[2].id, sale).await, Reply::Admitted(_)));
    stack.add_instance(&[]).await;
    buy(stack.url(), &users[0], sale).await.refused(200, "ALREADY_ORDERED");
    buy(stack.url(), &users[2], sale).await.refused(200, "ALREADY_ORDERED");
    buy(stack.url(), &users[3], sale).await.bought();
    assert_eq!(java.buy(users[4].id, sale).await, Reply::SoldOut);
    buy(stack.url(), &users[4], sale).await.refused(200, "SOLD_OUT");
    stack.stream_drained().await;
    assert_eq!((rows(&stack).await, counter(&stack, sale).await), (4, Some(0)));
    assert_eq!(strategy_and_issued(&stack, sale).await, ("stream".to_owned(), Some(4)));
}

#[tokio::test]
async fn a_published_sale_whose_row_is_locked_keeps_no_other_closed() {
    let mut stack = Stack::start(0, &[]).await;
    let mut java = JavaNode::join(&stack).await;
    let (locked, other) = (java.publish(2).await, java.publish(2).await);
    let user = stack.users(1).await.remove(0);
    let holder = lock_sale(&stack, locked).await;
    stack.add_instance(&[]).await;
    eventually("the other one is sold", TIMEOUT, || async {
        buy(stack.url(), &user, other).await.status == 202
    })
    .await;
    holder.rollback().await.unwrap();
    eventually("it is recorded once its row is free", TIMEOUT, || async {
        strategy_and_issued(&stack, locked).await == ("stream".to_owned(), Some(2))
    })
    .await;
}

/// Rows without a counter are a sale of an earlier stage of the course: the column's default says how it sells.
#[tokio::test]
async fn a_sale_without_a_counter_is_sold_by_the_columns_default() {
    let mut stack = Stack::start(0, &[]).await;
    let mut java = JavaNode::join(&stack).await;
    let sale = java.publish(2).await;
    let _: () = java.redis.del(format!("seckill:stock:{sale}")).await.unwrap();
    // Only now: it would have recorded a sale with a counter.
    stack.add_instance(&[]).await;
    let user = stack.users(1).await.remove(0);
    assert_eq!(buy(stack.url(), &user, sale).await.status, 200, "committed, not pending");
    assert_eq!(counter(&stack, sale).await, None);
    assert_eq!(strategy_and_issued(&stack, sale).await, ("reentrant-lock".to_owned(), None));
}

#[tokio::test]
async fn doctor_says_how_such_a_sale_is_recognised() {
    let stack = Stack::start(0, &[]).await;
    let mut java = JavaNode::join(&stack).await;
    let (sale, plain) = (java.publish(2).await, java.publish(2).await);
    let _: () = java.redis.del(format!("seckill:stock:{plain}")).await.unwrap();
    let mut doctor = Instance::command(&["doctor"]);
    doctor.envs(stack.env());
    let text = String::from_utf8(doctor.output().unwrap().stdout).unwrap();
    let recognised = format!("sale {sale}: a Java node published it; sold on the strategy stream");
    assert!(text.contains(&recognised), "{text}");
    let missing = format!("seckill:stock:{plain} is missing: sold by reentrant-lock");
    assert!(text.contains(&missing), "{text}");
}
