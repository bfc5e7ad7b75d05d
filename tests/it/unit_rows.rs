//! The strategy `unit-rows`: its pool and the stock add up at every moment, whoever else sells from the stock.

use std::time::Duration;

use futures_util::future::join_all;
use seckill::order::store::units::POOL;
use serde_json::json;
use testkit::wait::eventually;
use workload::burst;
use workload::checker::Verdict;

use crate::law::options;
use crate::support::api::{get, post};
use crate::support::stack::{Stack, buy};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Units in the pool of a sale, and the stock that they were taken from.
async fn pool_and_stock(stack: &Stack, sale: i64) -> (i64, i64) {
    let units = format!("SELECT COUNT(*) FROM tb_stock_unit WHERE voucher_id = {sale}");
    let stock = format!("SELECT stock FROM tb_seckill_voucher WHERE voucher_id = {sale}");
    (stack.database.number(&units).await, stack.database.number(&stock).await)
}

/// The stock in the list of the shop's vouchers, which may be remembered for a moment.
async fn listed(stack: &Stack, sale: i64, stock: i64) {
    eventually("the list shows what is left", TIMEOUT, || async {
        let list = get(stack.url(), "/voucher/list/1").send().await;
        let listed = list.data().as_array().and_then(|list| list.iter().find(|v| v["id"] == sale));
        listed.is_some_and(|voucher| voucher["stock"] == stock)
    })
    .await;
}

#[tokio::test]
async fn what_is_in_the_pool_is_left_to_sell() {
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(3).await;
    let sale = stack.publish(POOL + 10, "unit-rows").await;
    assert_eq!(pool_and_stock(&stack, sale).await, (0, POOL + 10));
    let order = buy(stack.url(), &users[0], sale).await.bought();
    assert_eq!(pool_and_stock(&stack, sale).await, (POOL - 1, 10));
    listed(&stack, sale, POOL + 9).await;
    // A second order of the buyer takes no unit.
    buy(stack.url(), &users[0], sale).await.refused(200, "ALREADY_ORDERED");
    assert_eq!(pool_and_stock(&stack, sale).await, (POOL - 1, 10));
    // Added stock and the unit of a cancelled order are in the stock, from which the next refill takes them.
    let add = post(stack.url(), &format!("/voucher/seckill/{sale}/stock")).admin();
    assert_eq!(add.json(json!({ "add": 5 })).send().await.data(), &json!(POOL + 14));
    let cancel = format!("/voucher-order/{order}/cancel");
    post(stack.url(), &cancel).token(&users[0].token).send().await.data();
    assert_eq!(pool_and_stock(&stack, sale).await, (POOL - 1, 16));
    // The stock may be used up by another node while units are in the pool: they are sold.
    let all = format!(
        "UPDATE tb_seckill_voucher SET stock = 0, issued = issued - 16 WHERE voucher_id = {sale}"
    );
    stack.database.run(&all).await;
    buy(stack.url(), &users[1], sale).await.bought();
    let last = format!("DELETE FROM tb_stock_unit WHERE voucher_id = {sale}");
    stack.database.run(&last).await;
    buy(stack.url(), &users[2], sale).await.refused(200, "SOLD_OUT");
}

/// A purchase that waits, with the last unit, for something else is not the sale's end: when it is undone, the unit is
/// sold to the one who came second.
#[tokio::test]
async fn a_unit_that_is_claimed_is_not_sold_out_yet() {
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(2).await;
    let sale = stack.publish(2, "unit-rows").await;
    buy(stack.url(), &users[0], sale).await.bought();
    let mut claimed = stack.database.pool.begin().await.unwrap();
    sqlx::query("DELETE FROM tb_stock_unit WHERE voucher_id = ?")
        .bind(sale)
        .execute(&mut *claimed)
        .await
        .unwrap();
    let waiting = async {
        let answer = buy(stack.url(), &users[1], sale).await;
        answer.bought();
    };
    let undoing = async {
        let waits = "SELECT COUNT(*) FROM information_schema.processlist \
                     WHERE DB = DATABASE() AND INFO LIKE '%tb_stock_unit%' AND ID <> CONNECTION_ID()";
        eventually("it waits for the unit", TIMEOUT, || async {
            stack.database.number(waits).await > 0
        })
        .await;
        claimed.rollback().await.unwrap();
    };
    tokio::join!(waiting, undoing);
    assert_eq!(pool_and_stock(&stack, sale).await, (0, 0));
}

/// While the first refill waits for the sale's row, which another node has locked, all purchases of the node wait for that
/// refill, and only the refill has a connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_waits_for_a_refill_whoever_wants_it() {
    const BUYERS: i64 = 40;
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(BUYERS).await;
    let sale = stack.publish(BUYERS, "unit-rows").await;
    let mut locked = stack.database.pool.begin().await.unwrap();
    sqlx::query("SELECT stock FROM tb_seckill_voucher WHERE voucher_id = ? FOR UPDATE")
        .bind(sale)
        .execute(&mut *locked)
        .await
        .unwrap();
    let buying = join_all(users.iter().map(|user| buy(stack.url(), user, sale)));
    let watching = async {
        eventually("all have come", TIMEOUT, || async {
            let metrics = get(stack.url(), "/metrics").text().await;
            metrics.contains(&format!("seckill_purchases_in_flight {BUYERS}\n"))
        })
        .await;
        // The last look may still be listed, under another connection.
        let waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE DB = DATABASE() \
                     AND INFO LIKE '%tb_seckill_voucher%FOR UPDATE%' AND INFO NOT LIKE '%processlist%'";
        let mut waiting = 0;
        for _ in 0..20 {
            waiting = stack.database.number(waits).await.max(waiting);
        }
        locked.rollback().await.unwrap();
        waiting
    };
    let (answers, waiting) = tokio::join!(buying, watching);
    assert!(waiting <= 1, "{waiting} connections wait for a refill");
    let sold = answers.iter().filter(|answer| answer.body["success"] == true).count() as i64;
    let orders = format!("SELECT COUNT(*) FROM tb_voucher_order WHERE voucher_id = {sale}");
    assert_eq!(stack.database.number(&orders).await, sold);
    assert_eq!(pool_and_stock(&stack, sale).await, (BUYERS - sold, 0));
}

/// Two instances drain more than one pool, while a Java node, which knows only the stock, sells from the same sale.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_knows_only_the_stock_sells_beside_it() {
    const JAVA: i64 = 40;
    let stock = POOL + 60;
    let stack = Stack::lab(2).await;
    let mut options = options(&stack, ladder::Strategy::UnitRows, stock + 20, stock as u32).await;
    options.tries = 1;
    let sale = burst::publish(&options).await.expect("a sale");
    let java = async {
        let mut sold = 0;
        for user in 1..=JAVA {
            let mut transaction = stack.database.pool.begin().await.unwrap();
            let lower = "UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id = ? AND stock > 0";
            let lowered = sqlx::query(lower).bind(sale).execute(&mut *transaction).await.unwrap();
            if lowered.rows_affected() == 0 {
                break;
            }
            let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES (?, ?, ?)";
            let insert = sqlx::query(insert).bind(user).bind(user).bind(sale);
            insert.execute(&mut *transaction).await.unwrap();
            transaction.commit().await.unwrap();
            sold += 1;
        }
        sold
    };
    let rows = workload::order_rows::OrderRows::open(&stack.access().database_url).await.unwrap();
    let buyers = burst::prepare(&options).await.expect("buyers");
    let (report, java) = tokio::join!(burst::on(sale, &options, &rows, buyers), java);
    let report = report.expect("the burst runs");
    // The Java node told nobody of its orders: to the checker they are orders without a reply.
    let Verdict { oversold, duplicates, lost, drift, phantom, .. } = report.verdict;
    let seen = (oversold, duplicates, lost, drift, phantom);
    assert_eq!(seen, (0, 0, 0, 0, java), "{:?} {:?}", report.verdict, report.replies);
    // Two pools were filled, if the machine was not too busy to answer in time.
    let sold = report.verdict.orders;
    assert!(java > 0 && sold > java, "{java} of {sold}: {:?}", report.replies);
}
