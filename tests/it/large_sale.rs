//! The largest sale that is supported: 3 million orders, put into the table by SQL. Takes some minutes, so it is run by
//! `./dev test large_sale -- --ignored`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{Executor, MySqlPool};

use crate::support::api::post;
use crate::support::instance::Instance;
use crate::support::stack::{SignedIn, Stack, buy};
use testkit::database_server::{DatabaseServer, Settings};
use testkit::process::TemporaryFolder;
use testkit::proxy::Proxy;
use testkit::wait::eventually;

/// A debug build takes minutes to read three million rows, a release build seconds.
const TIMEOUT: Duration = Duration::from_secs(400);
const ORDERS: i64 = 3_000_000;

/// A server of the test's own that has room for the table, and need not survive anything.
async fn large_server() -> DatabaseServer {
    let arguments = [
        "--innodb-buffer-pool-size=640M",
        "--innodb-log-file-size=512M",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-doublewrite=0",
    ];
    let arguments = arguments.map(str::to_owned).to_vec();
    let folder = Arc::new(TemporaryFolder::new().unwrap());
    DatabaseServer::start_with(folder, Settings { arguments, ..Settings::default() }).await.unwrap()
}

/// Makes a sale sold out: every order two days old, of the users 2 000 000 and above.
async fn sell_out(database: &MySqlPool, sale: i64) {
    for page in 0..30 {
        let (from, to) = (page * ORDERS / 30, (page + 1) * ORDERS / 30 - 1);
        let insert = format!(
            "INSERT INTO tb_voucher_order (id, user_id, voucher_id, create_time, status) \
             SELECT {sale} * 100000000 + seq, 2000000 + seq, {sale}, NOW() - INTERVAL 2 DAY, 2 \
             FROM seq_{from}_to_{to}"
        );
        database.execute(insert.as_str()).await.unwrap();
    }
    let sold = format!(
        "UPDATE tb_seckill_voucher SET stock = 0, issued = {ORDERS} WHERE voucher_id = {sale}"
    );
    database.execute(sold.as_str()).await.unwrap();
}

/// A late buyer is refused at once, a buyer who has an order hears of it, and a cancellation does not have millions of
/// buyers read again.
#[ignore = "takes some minutes: ./dev test large_sale -- --ignored"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_buyers_of_a_sale_of_three_million() {
    let server = large_server().await;
    seckill::connection::migrate::run(&server.url().into()).await.unwrap();
    let database = MySqlPool::connect(&server.url()).await.unwrap();
    let shop = "INSERT INTO tb_shop (id, name, type_id, images, address, x, y) \
                VALUES (1, '测试小店', 1, '', '', 120.1, 30.3)";
    database.execute(shop).await.unwrap();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let mut stack = Stack::start(0, &[]).await;
    let mut env = stack.env();
    env[0].1 = server.url_at(proxy.address.port());
    stack.instances.push(Instance::start(&[], &env).await);
    let sale = stack.publish(10, "reentrant-lock").await;
    let began = Instant::now();
    sell_out(&database, sale).await;
    println!("{ORDERS} orders were inserted in {:?}", began.elapsed());
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
    let before = proxy.requests();
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
    let queries = proxy.requests() - before;
    assert!(queries < 500, "{queries} queries for five places of {ORDERS}");
    println!("{queries} queries for five places; the slowest refusal took {slowest:?}");
    // Before the servers that they use.
    stack.instances.clear();
}

async fn add(stack: &Stack, sale: i64) {
    let path = format!("/voucher/seckill/{sale}/stock");
    post(stack.url(), &path).admin().json(serde_json::json!({ "add": 1 })).send().await.data();
}
