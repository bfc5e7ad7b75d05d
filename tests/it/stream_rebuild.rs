//! Rebuilding the stock counter and the claims of a sale with very many orders. `BIG_SALE_ORDERS` says how many (100,000
//! by default; 3,000,000 is the largest sale that is supported).

use std::time::{Duration, Instant};

use redis::AsyncCommands;

use crate::support::PATIENCE;
use crate::support::stack::{Stack, buy};

const LEFT: i64 = 10;

/// The first buyer.
const FIRST: i64 = 10_000_001;

/// Inserts `count` orders of as many users by doubling what is there.
async fn insert_orders(stack: &Stack, sale: i64, count: i64) {
    let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id)";
    stack.database.run(&format!("{insert} VALUES (1, {FIRST}, {sale})")).await;
    let mut there = 1;
    while there < count {
        let more = there.min(count - there).min(250_000);
        let rows = format!("SELECT id + {there}, user_id + {there}, voucher_id");
        let from = format!("FROM tb_voucher_order WHERE id <= {more}");
        stack.database.run(&format!("{insert} {rows} {from}")).await;
        there += more;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_of_very_many_orders_is_rebuilt_and_delays_no_other() {
    let orders: i64 = std::env::var("BIG_SALE_ORDERS")
        .map_or(100_000, |text| text.parse().expect("a number of orders"));
    let stack = Stack::start(2, &[]).await;
    let (big, small) = (stack.publish(LEFT, "stream").await, stack.publish(5, "stream").await);
    insert_orders(&stack, big, orders).await;
    let issued = format!("UPDATE tb_seckill_voucher SET issued = stock + {orders}");
    stack.database.run(&format!("{issued} WHERE voucher_id = {big}")).await;
    let mut redis = stack.redis.conn().await;
    let _: () = redis::cmd("FLUSHALL").query_async(&mut redis).await.unwrap();
    let users = stack.users(4).await;
    let lost = Instant::now();
    stack.buy_eventually(&users[0], small).await;
    println!("the small sale sells after {:.1?}", lost.elapsed());
    // In proportion to the orders.
    let limit = PATIENCE + Duration::from_micros(orders.cast_unsigned() * 20);
    testkit::wait::eventually("the big sale is sold", limit, async || {
        let answer = buy(&stack.instances[1].url, &users[1], big).await;
        if answer.status != 202 {
            answer.refused(503, "UNAVAILABLE");
        }
        answer.status == 202
    })
    .await;
    println!("the big sale sells after {:.1?}", lost.elapsed());
    stack.stream_drained().await;
    let claims = stack.keys.claims(big);
    let claimed: i64 = redis.scard(&claims).await.unwrap();
    assert_eq!(claimed, orders + 1 + 1, "every buyer has a claim, and there is the mark");
    // What follows reads what is in flight, and not the buyers: a claim that is lost does not come back by it.
    let _: () = redis.srem(&claims, FIRST).await.unwrap();
    stack.add_stock(big, 5).await;
    stack.counted(big, LEFT + 5 - 1).await;
    stack.buy(&users[2], big).await.bought();
    stack.stream_drained().await;
    stack.counted(big, LEFT + 5 - 2).await;
    let claimed: bool = redis.sismember(&claims, FIRST).await.unwrap();
    assert!(!claimed, "all buyers were read again");
}
