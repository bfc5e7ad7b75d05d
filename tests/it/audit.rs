//! The audit, fed with planted rows: each lie in the tables is reported as what it is, and fails the command.

use std::process::Output;

use serde_json::Value;

use crate::support::instance::Instance;
use crate::support::stack::{Stack, buy};

/// Runs the audit of one sale; returns its exit code, its finding, and what the table says of it.
fn audit(stack: &Stack, sale: i64) -> (Option<i32>, Value, String) {
    let run = |more: &[&str]| {
        let mut command = Instance::command(&["audit", "--voucher-id", &sale.to_string()]);
        command.args(more).envs(stack.env());
        let Output { status, stdout, .. } = command.output().expect("run the audit");
        (status.code(), String::from_utf8(stdout).expect("text"))
    };
    let (code, json) = run(&["--json"]);
    let findings: Value = serde_json::from_str(&json).unwrap_or_default();
    let (again, table) = run(&[]);
    assert_eq!(code, again, "{table}");
    (code, findings[0].clone(), table)
}

/// Inserts an order of a user, as made a while ago by both clocks; its id ends in `n`.
async fn plant(stack: &Stack, sale: i64, user: i64, n: i64, unguarded: bool, ago: &str) {
    let unguarded = i64::from(unguarded);
    let insert = format!(
        "INSERT INTO tb_voucher_order (id, user_id, voucher_id, unguarded, create_time) VALUES \
         (((UNIX_TIMESTAMP(NOW() - INTERVAL {ago}) + 8 * 3600 - 1640995200) << 32) + {n}, {user}, {sale}, \
         {unguarded}, NOW() - INTERVAL {ago})"
    );
    stack.database.run(&insert).await;
}

async fn take(stack: &Stack, sale: i64, count: i64) {
    let update =
        format!("UPDATE tb_seckill_voucher SET stock = stock - {count} WHERE voucher_id = {sale}");
    stack.database.run(&update).await;
}

/// Asserts a violation that is reported as this, and only this, broken number.
fn violation(found: &(Option<i32>, Value, String), field: &str, number: i64, says: &str) {
    let (code, finding, table) = found;
    assert_eq!(*code, Some(1), "{table}");
    assert!(table.contains("VIOLATION") && table.contains(says), "{says}: {table}");
    for counted in ["oversold", "duplicates", "unaccounted", "unguarded", "outsideWindow"] {
        let expected = if counted == field { number } else { 0 };
        assert_eq!(finding[counted], expected, "{counted}: {finding}");
    }
}

#[tokio::test]
async fn a_users_second_order_is_reported_as_a_duplicate() {
    let stack = Stack::lab(1).await;
    let sale = stack.publish(10, "conditional").await;
    // As an unsafe strategy writes them: the unique index skips them.
    for (n, user) in [(1, 7), (2, 7), (3, 7), (4, 8)] {
        plant(&stack, sale, user, n, true, "0 SECOND").await;
    }
    take(&stack, sale, 4).await;
    let (code, finding, table) = audit(&stack, sale);
    assert_eq!(code, Some(0), "{table}");
    assert_eq!(finding["duplicates"], 2, "{finding}");
    assert!(table.contains("as its strategy is meant to be"), "{table}");
    // Cancelled ones are no duplicates, and their users no buyers.
    stack.database.run("UPDATE tb_voucher_order SET status = 4 WHERE user_id = 7").await;
    take(&stack, sale, -3).await;
    let (_, finding, table) = audit(&stack, sale);
    assert_eq!((&finding["duplicates"], &finding["orders"]), (&0.into(), &1.into()), "{finding}");
    assert!(table.contains("holds"), "{table}");
}

#[tokio::test]
async fn more_orders_than_were_put_on_sale_are_reported_as_oversold() {
    let stack = Stack::start(0, &[]).await;
    // Of a sale that a Java node published, only the stock tells.
    stack
        .database
        .run(
            "INSERT INTO tb_seckill_voucher (voucher_id, stock, issued, end_time) \
             VALUES (1, -1, 1, '2037-01-01'), (2, -3, NULL, '2037-01-01')",
        )
        .await;
    for user in [7, 8] {
        plant(&stack, 1, user, user, false, "0 SECOND").await;
    }
    violation(&audit(&stack, 1), "oversold", 1, "VIOLATION");
    violation(&audit(&stack, 2), "oversold", 3, "VIOLATION");
}

#[tokio::test]
async fn rows_that_no_purchase_of_the_sale_writes_are_violations() {
    let stack = Stack::lab(1).await;
    // Unguarded rows on a safe sale: the unique index does not see them.
    let sale = stack.publish(10, "row-lock").await;
    plant(&stack, sale, 7, 1, true, "0 SECOND").await;
    take(&stack, sale, 1).await;
    violation(&audit(&stack, sale), "unguarded", 1, "unguarded");

    // Orders without a sale row.
    let voucher = 4711;
    plant(&stack, voucher, 7, 2, false, "0 SECOND").await;
    let found = audit(&stack, voucher);
    violation(&found, "none", 0, "no sale");
    assert_eq!(
        (&found.1["orders"], &found.1["noSale"]),
        (&1.into(), &true.into()),
        "{:?}",
        found.1
    );

    // Orders before the window and after it. What both clocks say counts, so one that was admitted in time and
    // written late, as by `stream` after an outage, is none. No strategy may do that, not even one that is meant to fail.
    let window = async |begin: &str, end: &str| {
        let sale = stack.publish(10, "naive").await;
        let update = format!(
            "UPDATE tb_seckill_voucher SET begin_time = NOW() {begin}, end_time = NOW() {end} \
             WHERE voucher_id = {sale}"
        );
        stack.database.run(&update).await;
        sale
    };
    let sale = window("- INTERVAL 1 HOUR", "+ INTERVAL 1 HOUR").await;
    plant(&stack, sale, 1, 3, false, "2 HOUR").await;
    plant(&stack, sale, 2, 4, false, "30 MINUTE").await;
    take(&stack, sale, 2).await;
    violation(&audit(&stack, sale), "outsideWindow", 1, "outside");
    let sale = window("- INTERVAL 3 HOUR", "- INTERVAL 1 HOUR").await;
    plant(&stack, sale, 1, 5, false, "10 MINUTE").await;
    plant(&stack, sale, 2, 6, false, "2 HOUR").await;
    plant(&stack, sale, 3, 7, false, "61 MINUTE").await;
    stack.database.run("UPDATE tb_voucher_order SET create_time = NOW() WHERE user_id = 3").await;
    take(&stack, sale, 3).await;
    violation(&audit(&stack, sale), "outsideWindow", 1, "outside");
}

#[tokio::test]
async fn an_outbox_that_nobody_empties_is_a_violation() {
    let stack = Stack::start(0, &[]).await;
    stack
        .database
        .run(
            "INSERT INTO tb_seckill_voucher (voucher_id, stock, issued, end_time) \
             VALUES (1, 5, 5, '2037-01-01')",
        )
        .await;
    let row = "INSERT INTO tb_stock_return (order_id, voucher_id, user_id, create_time) VALUES";
    stack.database.run(&format!("{row} (1, 1, 1, NOW()), (2, 1, 2, NOW())")).await;
    let (code, finding, table) = audit(&stack, 1);
    // Rows of the last moment are on their way.
    assert_eq!((code, &finding["undelivered"]), (Some(0), &2.into()), "{table}");
    stack.database.run(&format!("{row} (3, 1, 3, NOW() - INTERVAL 5 MINUTE)")).await;
    let found = audit(&stack, 1);
    violation(&found, "none", 0, "outbox");
    assert_eq!(found.1["undelivered"], 3);
    assert!(found.1["undeliveredSeconds"].as_i64().is_some_and(|age| age >= 300), "{:?}", found.1);
}

#[tokio::test]
async fn real_orders_are_no_violations() {
    let stack = Stack::lab(1).await;
    for strategy in workload::ladder::Strategy::ALL {
        let sale = stack.publish(3, strategy.name()).await;
        for user in stack.users(2).await {
            buy(stack.url(), &user, sale).await.bought();
        }
        stack.stream_drained().await;
        let (code, finding, table) = audit(&stack, sale);
        assert_eq!(code, Some(0), "{finding} {table}");
        assert!(table.contains("holds"), "{table}");
    }
}
