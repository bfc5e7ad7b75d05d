//! The audit, fed with planted rows: each lie in the tables is reported as what it is, and fails the command.

use serde_json::Value;
use strategies::Strategy;

use crate::lifetime::act;
use crate::support::instance::Instance;
use crate::support::stack::Stack;

/// Runs the audit with these arguments; returns its exit code and what it says.
fn run(stack: &Stack, args: &[&str]) -> (Option<i32>, String) {
    Instance::run(&[&["audit"][..], args].concat(), &stack.env())
}

/// Runs the audit of one sale; returns its exit code, its finding, and what the table says of it.
fn audit(stack: &Stack, sale: i64) -> (Option<i32>, Value, String) {
    let id = sale.to_string();
    let (code, json) = run(stack, &["--voucher-id", &id, "--json"]);
    // The sentence about a violation follows the JSON.
    let findings = serde_json::Deserializer::from_str(&json)
        .into_iter::<Value>()
        .next();
    let findings = findings.and_then(Result::ok).unwrap_or_default();
    let (again, table) = run(stack, &["--voucher-id", &id]);
    assert_eq!(code, again, "{table}");
    (code, findings[0].clone(), table)
}

/// Inserts an order of a user, `ago` old both by its `create_time` and by the seconds in its id, whose counter part is `n`.
async fn plant(stack: &Stack, sale: i64, user: i64, n: i64, unguarded: bool, ago: &str) {
    let unguarded = i64::from(unguarded);
    let insert = format!(
        "INSERT INTO tb_voucher_order (id, user_id, voucher_id, unguarded, create_time) VALUES \
         (((UNIX_TIMESTAMP(NOW() - INTERVAL {ago}) + 8 * 3600 - 1640995200) << 32) + {n}, {user}, {sale}, \
         {unguarded}, NOW() - INTERVAL {ago})"
    );
    stack.database.run(&insert).await;
}

async fn take_stock(stack: &Stack, sale: i64, count: i64) {
    stack
        .database
        .set_sale(sale, &format!("stock = stock - {count}"))
        .await;
}

/// Asserts a violation of which the table says `says`, and that `field` alone is a number other than 0; where `field` is none of
/// these numbers, all must be 0.
fn assert_violation(found: &(Option<i32>, Value, String), field: &str, number: i64, says: &str) {
    let (code, finding, table) = found;
    assert_eq!(*code, Some(1), "{table}");
    assert!(
        table.contains("VIOLATION") && table.contains(says),
        "{says}: {table}"
    );
    for counted in [
        "oversold",
        "duplicates",
        "unaccounted",
        "unguarded",
        "outsideWindow",
    ] {
        let expected = if counted == field { number } else { 0 };
        assert_eq!(finding[counted], expected, "{counted}: {finding}");
    }
}

const INSERT_SALE: &str =
    "INSERT INTO tb_seckill_voucher (voucher_id, stock, issued, end_time) VALUES";

/// Rows that were written a moment ago are still being delivered, and no violation.
#[tokio::test]
async fn an_outbox_that_nobody_empties_is_a_violation() {
    let stack = Stack::start(0, &[]).await;
    stack
        .database
        .run(&format!("{INSERT_SALE} (4710, 5, 5, '2037-01-01')"))
        .await;
    let row = "INSERT INTO tb_stock_return (order_id, voucher_id, user_id, create_time) VALUES";
    stack
        .database
        .run(&format!("{row} (1, 4710, 1, NOW()), (2, 4710, 2, NOW())"))
        .await;
    let (code, finding, table) = audit(&stack, 4710);
    assert_eq!(
        (code, &finding["undelivered"]),
        (Some(0), &2.into()),
        "{table}"
    );
    // Refusals of the stream, as this version and earlier ones write them, are not orders without a sale.
    let refusals = "INSERT INTO tb_voucher_order (id, user_id, voucher_id, status) VALUES";
    let refusals = format!("{refusals} (8001, 1, 8001, 4), (8002, 1, 0, 4)");
    stack.database.run(&refusals).await;
    let (code, table) = run(&stack, &[]);
    assert_eq!(code, Some(0), "{table}");
    stack
        .database
        .run(&format!("{row} (3, 4710, 3, NOW() - INTERVAL 5 MINUTE)"))
        .await;
    let found = audit(&stack, 4710);
    assert_violation(&found, "none", 0, "outbox");
    assert_eq!(found.1["undelivered"], 3);
    assert!(
        found.1["undeliveredSeconds"]
            .as_i64()
            .is_some_and(|age| age >= 300),
        "{:?}",
        found.1
    );
}

/// How much a Java node put on sale is unknown: there only stock below zero shows it.
#[tokio::test]
async fn more_orders_than_were_put_on_sale_are_a_violation() {
    let stack = Stack::start(0, &[]).await;
    let sales = format!("{INSERT_SALE} (1, -1, 1, '2037-01-01'), (2, -3, NULL, '2037-01-01')");
    stack.database.run(&sales).await;
    for user in [7, 8] {
        plant(&stack, 1, user, user, false, "0 SECOND").await;
    }
    assert_violation(&audit(&stack, 1), "oversold", 1, "VIOLATION\n");
    assert_violation(&audit(&stack, 2), "oversold", 3, "VIOLATION\n");

    // Orders without a sale row.
    plant(&stack, 4711, 7, 12, false, "0 SECOND").await;
    let found = audit(&stack, 4711);
    assert_violation(&found, "none", 0, "no sale");
    let orders = (&found.1["orders"], &found.1["noSale"]);
    assert_eq!(orders, (&1.into(), &true.into()), "{:?}", found.1);
}

/// Not even where a sale of the lab is oversold, as its strategy allows.
#[tokio::test]
async fn real_orders_are_no_violation_whatever_the_strategy() {
    let stack = Stack::lab(1).await;
    for strategy in Strategy::ALL {
        let sale = stack.publish(3, strategy.name()).await;
        for user in stack.users(2).await {
            stack.buy(&user, sale).await.bought();
        }
        stack.stream_drained().await;
        let (code, finding, table) = audit(&stack, sale);
        assert_eq!(code, Some(0), "{finding} {table}");
        assert!(table.contains("holds"), "{table}");
        if strategy == Strategy::Naive {
            take_stock(&stack, sale, 3).await;
        }
    }
    let (code, text) = run(&stack, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("holds") && text.contains("as its strategy is meant to be"),
        "{text}"
    );
    let (code, text) = run(&stack, &["--voucher-id", "999"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("no flash sale"), "{text}");
}

#[tokio::test]
async fn stock_that_is_lost_or_returned_twice_or_never_is_a_violation() {
    let stack = Stack::start(1, &[]).await;
    let sale = stack.publish(3, "reentrant-lock").await;
    let user = stack.users(1).await.remove(0);
    let order = stack.buy(&user, sale).await.bought();
    act(stack.url(), "cancel", &user, order).await.data();
    let (code, finding, table) = audit(&stack, sale);
    assert_eq!(
        (code, &finding["cancelled"]),
        (Some(0), &1.into()),
        "{table}"
    );
    for (taken, unaccounted) in [(-1, -1), (2, 1)] {
        take_stock(&stack, sale, taken).await;
        let found = audit(&stack, sale);
        assert_violation(&found, "unaccounted", unaccounted, "VIOLATION\n");
        assert_eq!(found.1["cancelled"], 1);
    }
}

#[tokio::test]
async fn second_orders_and_unguarded_rows_are_judged_by_the_strategy_of_their_sale() {
    let stack = Stack::lab(1).await;
    // A user's second order, as an unsafe strategy writes them: the unique index skips them.
    let sale = stack.publish(10, "conditional").await;
    for (n, user) in [(1, 7), (2, 7), (3, 7), (4, 8)] {
        plant(&stack, sale, user, n, true, "0 SECOND").await;
    }
    take_stock(&stack, sale, 4).await;
    let (code, finding, table) = audit(&stack, sale);
    assert_eq!(code, Some(0), "{table}");
    assert_eq!(finding["duplicates"], 2, "{finding}");
    assert!(table.contains("as its strategy is meant to be"), "{table}");
    // Cancelled orders are no duplicates, and their users no buyers.
    stack
        .database
        .run("UPDATE tb_voucher_order SET status = 4 WHERE user_id = 7")
        .await;
    take_stock(&stack, sale, -3).await;
    let (_, finding, table) = audit(&stack, sale);
    assert_eq!(
        (&finding["duplicates"], &finding["orders"]),
        (&0.into(), &1.into()),
        "{finding}"
    );
    assert!(table.contains("holds"), "{table}");

    // Unguarded rows on a safe sale: the unique index does not see them.
    let sale = stack.publish(10, "row-lock").await;
    plant(&stack, sale, 7, 11, true, "0 SECOND").await;
    take_stock(&stack, sale, 1).await;
    assert_violation(&audit(&stack, sale), "unguarded", 1, "unguarded");
}

/// An order is outside the window only if both its `create_time` and the seconds in its id are. So an order that was admitted in
/// time and written late, as by `stream` after an outage, is no violation. No strategy may sell outside the window, not even one
/// that is meant to fail.
#[tokio::test]
async fn orders_before_the_window_and_after_it_are_a_violation() {
    let stack = Stack::lab(1).await;
    let window = async |begin: &str, end: &str| {
        let sale = stack.publish(10, "naive").await;
        let window = format!("begin_time = NOW() {begin}, end_time = NOW() {end}");
        stack.database.set_sale(sale, &window).await;
        sale
    };
    let sale = window("- INTERVAL 1 HOUR", "+ INTERVAL 1 HOUR").await;
    plant(&stack, sale, 1, 13, false, "2 HOUR").await;
    plant(&stack, sale, 2, 14, false, "30 MINUTE").await;
    take_stock(&stack, sale, 2).await;
    assert_violation(&audit(&stack, sale), "outsideWindow", 1, "outside");
    let sale = window("- INTERVAL 3 HOUR", "- INTERVAL 1 HOUR").await;
    plant(&stack, sale, 1, 15, false, "10 MINUTE").await;
    plant(&stack, sale, 2, 16, false, "2 HOUR").await;
    plant(&stack, sale, 3, 17, false, "61 MINUTE").await;
    stack
        .database
        .run("UPDATE tb_voucher_order SET create_time = NOW() WHERE user_id = 3")
        .await;
    take_stock(&stack, sale, 3).await;
    assert_violation(&audit(&stack, sale), "outsideWindow", 1, "outside");
}
