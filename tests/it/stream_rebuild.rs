//! Rebuilding the stock counter and the claims of a sale with very many orders.

use redis::AsyncCommands;

use crate::support::eventually;
use crate::support::stack::{Stack, buy};

const ORDERS: i64 = 100_000;
const LEFT: i64 = 10;

/// The first buyer.
const FIRST: i64 = 10_000_001;

/// Inserts [`ORDERS`] orders, each of another user, by doubling the rows that are there.
async fn insert_orders(stack: &Stack, sale: i64) {
    let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id)";
    stack
        .database
        .run(&format!("{insert} VALUES (1, {FIRST}, {sale})"))
        .await;
    let mut inserted = 1;
    while inserted < ORDERS {
        let batch = inserted.min(ORDERS - inserted);
        let rows = format!("SELECT id + {inserted}, user_id + {inserted}, voucher_id");
        let from = format!("FROM tb_voucher_order WHERE id <= {batch}");
        stack.database.run(&format!("{insert} {rows} {from}")).await;
        inserted += batch;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_of_very_many_orders_is_rebuilt_and_delays_no_other() {
    let stack = Stack::start(2, &[]).await;
    let big = stack.publish(LEFT, "stream").await;
    let small = stack.publish(5, "stream").await;
    insert_orders(&stack, big).await;
    stack
        .database
        .set_sale(big, &format!("issued = stock + {ORDERS}"))
        .await;
    let mut redis = stack.redis.conn().await;
    let _: () = redis::cmd("FLUSHALL")
        .query_async(&mut redis)
        .await
        .unwrap();
    let users = stack.users(4).await;
    stack.buy_eventually(&users[0], small).await;
    eventually("the big sale is sold", async || {
        let answer = buy(&stack.instances[1].url, &users[1], big).await;
        if answer.status != 202 {
            answer.refused(503, "UNAVAILABLE");
        }
        answer.status == 202
    })
    .await;
    stack.stream_drained().await;
    let claims = stack.keys.claims(big);
    let claimed: i64 = redis.scard(&claims).await.unwrap();
    assert_eq!(
        claimed,
        ORDERS + 1 + 1,
        "every buyer has a claim, and there is the mark"
    );
    // Later counts read only the entries in flight, and not all buyers: a claim that is lost does not come back by them.
    let _: () = redis.srem(&claims, FIRST).await.unwrap();
    stack.add_stock(big, 5).await;
    stack.counted(big, LEFT + 5 - 1).await;
    stack.buy(&users[2], big).await.bought();
    stack.stream_drained().await;
    stack.counted(big, LEFT + 5 - 2).await;
    let claimed: bool = redis.sismember(&claims, FIRST).await.unwrap();
    assert!(!claimed, "all buyers were read again");
}
