//! The strategy `unit-rows`: rows and stock add up at every moment, whoever else sells from the stock.

use workload::burst;
use workload::checker::Verdict;

use crate::java_node::JavaNode;
use crate::law::options;
use crate::lifetime::act;
use crate::support::api::get;
use crate::support::eventually;
use crate::support::stack::Stack;

/// The number of a sale's units that are rows, and its stock beside them.
async fn rows_and_stock(stack: &Stack, sale: i64) -> (i64, i64) {
    let units = format!("SELECT COUNT(*) FROM tb_stock_unit WHERE voucher_id = {sale}");
    (stack.database.number(&units).await, stack.stock(sale).await)
}

#[tokio::test]
async fn unit_rows_are_sold_before_added_and_returned_stock() {
    let stack = Stack::start(1, &[]).await;
    let users = stack.users(5).await;
    let sale = stack.publish(2, "unit-rows").await;
    assert_eq!(rows_and_stock(&stack, sale).await, (2, 0));
    assert_eq!(
        stack.counter(sale).await,
        Some(0),
        "of a Java node's script"
    );
    let order = stack.buy(&users[0], sale).await.bought();
    assert_eq!(rows_and_stock(&stack, sale).await, (1, 0));
    // The list may be remembered for a moment.
    eventually(
        "the list of the shop's vouchers shows what is left",
        async || {
            let list = get(stack.url(), "/voucher/list/1").send().await;
            list.data()[0]["stock"] == 1
        },
    )
    .await;
    // A second order of the buyer takes no unit.
    stack
        .buy(&users[0], sale)
        .await
        .refused(200, "ALREADY_ORDERED");
    assert_eq!(rows_and_stock(&stack, sale).await, (1, 0));
    // Added units and the unit of a cancelled order go to the stock, which is sold when no row is left.
    assert_eq!(stack.add_stock(sale, 1).await, 2);
    act(stack.url(), "cancel", &users[0], order).await.data();
    assert_eq!(rows_and_stock(&stack, sale).await, (1, 2));
    // No lock of another sale is waited for.
    let locked_sale = stack.publish(1, "unit-rows").await;
    let mut locked = stack.database.pool.begin().await.unwrap();
    for table in ["tb_seckill_voucher", "tb_stock_unit"] {
        let lock = format!("SELECT * FROM {table} WHERE voucher_id = {locked_sale} FOR UPDATE");
        sqlx::query(&lock).execute(&mut *locked).await.unwrap();
    }
    for (user, expected) in users[1..4].iter().zip([(0, 2), (0, 1), (0, 0)]) {
        stack.buy(user, sale).await.bought();
        assert_eq!(rows_and_stock(&stack, sale).await, expected);
    }
    for user in [&users[4], &users[0]] {
        stack.buy(user, sale).await.refused(200, "SOLD_OUT");
    }
    locked.rollback().await.unwrap();

    // The most rows that a sale may have.
    let sale = stack.publish(10_000, "unit-rows").await;
    assert_eq!(rows_and_stock(&stack, sale).await, (10_000, 0));

    // A purchase that has claimed the last unit and is not committed does not end the sale: if it is undone, the second buyer
    // gets the unit.
    let sale = stack.publish(2, "unit-rows").await;
    stack.buy(&users[0], sale).await.bought();
    let claim = format!("DELETE FROM tb_stock_unit WHERE voucher_id = {sale}");
    let claimed = stack.database.hold(&claim).await;
    tokio::join!(async { stack.buy(&users[1], sale).await.bought() }, async {
        stack.database.wait_for_statement("tb_stock_unit").await;
        claimed.rollback().await.unwrap();
    });
    assert_eq!(rows_and_stock(&stack, sale).await, (0, 0));
}

fn is_deadlock(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.as_deref() == Some("40001")
}

/// Two instances sell the rows and then the added stock. A node that knows only the stock sells from it, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_knows_only_the_stock_sells_beside_it() {
    const ROWS: i64 = 100;
    const ADDED: i64 = 60;
    const JAVA: i64 = 40;
    let stack = Stack::lab(2).await;
    let buyers = (ROWS + ADDED) as u32;
    let options = options(&stack, strategies::Strategy::UnitRows, buyers, ROWS as u32);
    let sale = burst::publish(&options).await.expect("a sale");
    stack.add_stock(sale.cast_signed(), ADDED).await;
    let node = JavaNode::join(&stack).await;
    let java = async {
        let mut sold = 0;
        for user in 1..=JAVA {
            let inserted = node.insert(user, sale.cast_signed(), user).await;
            // The Java node changes the stock first, we insert the order first. If both sell to one buyer, they may
            // deadlock, and the database may roll back the Java node's transaction.
            let has_lost = inserted.as_ref().is_err_and(is_deadlock);
            sold += i64::from(!has_lost && inserted.unwrap());
        }
        sold
    };
    let rows = workload::order_rows::OrderRows::open(&stack.access().database_url)
        .await
        .unwrap();
    let buyers = burst::prepare(&options).await.expect("buyers");
    let (report, java) = tokio::join!(burst::run_on_sale(sale, &options, &rows, buyers), java);
    let report = report.expect("the burst runs");
    // The Java node told nobody of its orders: to the checker they are orders without a reply.
    let Verdict {
        oversold,
        duplicates,
        lost,
        drift,
        phantom,
        ..
    } = report.verdict;
    let findings = (oversold, duplicates, lost, drift, phantom);
    assert_eq!(
        findings,
        (0, 0, 0, 0, java),
        "{:?} {:?}",
        report.verdict,
        report.replies
    );
    assert!(
        java > 0 && report.verdict.orders > java,
        "{java}: {:?}",
        report.replies
    );
}
