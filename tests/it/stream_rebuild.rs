//! Rebuilding the stock counter and the claims of a sale with very many orders. `BIG_SALE_ORDERS` says how many (100,000
//! by default; 3,000,000 is the largest sale that is supported).

use std::time::{Duration, Instant};

use redis::AsyncCommands;

use testkit::wait::until;

use crate::support::stack::{Stack, buy};

const LEFT: i64 = 10;

/// Inserts `count` orders of as many users by doubling what is there.
async fn insert_orders(stack: &Stack, sale: i64, count: i64) {
    let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id)";
    stack.database.run(&format!("{insert} VALUES (1, 10000001, {sale})")).await;
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
    let started = Instant::now();
    insert_orders(&stack, big, orders).await;
    let issued = format!("UPDATE tb_seckill_voucher SET issued = stock + {orders}");
    stack.database.run(&format!("{issued} WHERE voucher_id = {big}")).await;
    println!("{orders} orders were inserted in {:.1?}", started.elapsed());
    let mut redis = stack.redis.conn().await;
    let _: () = redis::cmd("FLUSHALL").query_async(&mut redis).await.unwrap();
    let users = stack.users(4).await;
    let lost = Instant::now();
    stack.buy_eventually(&users[0], small).await;
    println!("the small sale sells after {:.1?}", lost.elapsed());
    // The rest of the time is in proportion to the orders.
    let limit = Duration::from_secs(20) + Duration::from_micros(orders.cast_unsigned() * 20);
    let (mut slowest, mut refused) = (Duration::ZERO, 0);
    let sold = until(limit, async || {
        let asked = Instant::now();
        let answer = buy(&stack.instances[1].url, &users[1], big).await;
        slowest = slowest.max(asked.elapsed());
        if answer.status != 202 {
            answer.refused(503, "UNAVAILABLE");
            refused += 1;
        }
        answer.status == 202
    });
    assert!(sold.await, "the big sale is not sold within {limit:?}");
    println!(
        "the big sale sells after {:.1?}; {refused} purchases were answered 503, the slowest after {slowest:.1?}",
        lost.elapsed()
    );
    stack.stream_drained().await;
    let claims: i64 = redis.scard(format!("seckill:order:{big}")).await.unwrap();
    assert_eq!(claims, orders + 1 + 1, "every buyer has a claim, and there is the mark");
    // What follows reads what is in flight, and not the buyers.
    let added = Instant::now();
    stack.add_stock(big, 5).await;
    let sold = async || stack.buy(&users[2], big).await.body["success"] == true;
    assert!(until(Duration::from_secs(3), sold).await, "as long as before");
    println!("and 5 more are sold after {:.1?}", added.elapsed());
    stack.stream_drained().await;
    stack.counted(big, LEFT + 5 - 2).await;
}
