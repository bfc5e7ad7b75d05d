//! The largest sale that is supported: 3 million orders, put into the table by SQL. Takes some minutes, so it is run by
//! `./dev test large_sale -- --ignored`.

use std::time::{Duration, Instant};

use crate::support::api::post;
use crate::support::stack::{SignedIn, Stack, buy};
use testkit::wait::eventually;

const TIMEOUT: Duration = Duration::from_secs(180);
const ORDERS: i64 = 3_000_000;

/// A sold-out sale, every order two days old: of the users 2 000 000 and above.
async fn sold_out(stack: &Stack, strategy: &str) -> i64 {
    let sale = stack.publish(10, strategy).await;
    let first = 2_000_000;
    for page in 0..30 {
        let (from, to) = (page * ORDERS / 30, (page + 1) * ORDERS / 30 - 1);
        stack
            .database
            .run(&format!(
                "INSERT INTO tb_voucher_order (id, user_id, voucher_id, create_time, status) \
                 SELECT {sale} * 100000000 + seq, {first} + seq, {sale}, NOW() - INTERVAL 2 DAY, 2 \
                 FROM seq_{from}_to_{to}"
            ))
            .await;
    }
    let sold = format!(
        "UPDATE tb_seckill_voucher SET stock = 0, issued = {ORDERS} WHERE voucher_id = {sale}"
    );
    stack.database.run(&sold).await;
    sale
}

/// A late buyer is refused at once, a buyer who has an order hears of it, and a cancellation does not have millions of
/// buyers read again.
#[ignore = "takes some minutes: ./dev test large_sale -- --ignored"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_buyers_of_a_sale_of_three_million() {
    let stack = Stack::behind_proxies(&[]).await;
    let sale = sold_out(&stack, "reentrant-lock").await;
    let users = stack.users(30).await;
    eventually("the sale is known to be sold out", TIMEOUT, || async {
        buy(stack.url(), &users[0], sale).await.body["code"] == "SOLD_OUT"
    })
    .await;
    // All have been read: a refusal takes no query.
    eventually("refusals are quick", TIMEOUT, || async {
        let asked = Instant::now();
        buy(stack.url(), &users[0], sale).await.refused(200, "SOLD_OUT");
        asked.elapsed() < Duration::from_millis(100)
    })
    .await;
    let mut slowest = Duration::ZERO;
    let before = stack.proxies.database.requests();
    for (round, user) in users[1..6].iter().enumerate() {
        // A place comes back, is bought again, and the sale is sold out anew.
        add(&stack, sale).await;
        let bought: &SignedIn = &users[6 + round];
        eventually("it is bought", TIMEOUT, || async {
            buy(stack.url(), bought, sale).await.body["success"] == true
        })
        .await;
        for _ in 0..20 {
            let asked = Instant::now();
            buy(stack.url(), user, sale).await.refused(200, "SOLD_OUT");
            slowest = slowest.max(asked.elapsed());
        }
        let again = buy(stack.url(), bought, sale).await;
        again.refused(200, "ALREADY_ORDERED");
    }
    // A reading of all is 600 queries.
    let queries = stack.proxies.database.requests() - before;
    assert!(queries < 120, "{queries} queries for five places of {ORDERS}");
    println!("{queries} queries for five places; the slowest refusal took {slowest:?}");
}

async fn add(stack: &Stack, sale: i64) {
    let path = format!("/voucher/seckill/{sale}/stock");
    post(stack.url(), &path).admin().json(serde_json::json!({ "add": 1 })).send().await.data();
}
