//! A table of orders with keys that are not ours: most forks of hm-dianping add `UNIQUE (user_id, voucher_id)`, some have
//! foreign keys. An order that such a key refuses is not tried again with new ids.

use redis::AsyncCommands;
use strategies::Strategy;

use crate::lifetime::act;
use crate::support::database::is_oceanbase;
use crate::support::stack::{SignedIn, Stack};

/// Numbers in a block of ids. A purchase that tried again and again would use more.
const BLOCK: i64 = 20;

async fn safe_sales(stack: &Stack, stock: i64) -> Vec<(Strategy, i64)> {
    let mut sales = Vec::new();
    for strategy in Strategy::ALL {
        if !strategy.is_unsafe() {
            sales.push((strategy, stack.publish(stock, strategy.name()).await));
        }
    }
    sales
}

/// The number up to which ids are leased.
async fn leased(stack: &Stack) -> i64 {
    let mut redis = stack.redis.conn().await;
    let days: Vec<String> = redis.keys("icr:order:*").await.unwrap();
    let mut leased = 0;
    for day in days {
        leased += redis.get::<_, i64>(day).await.unwrap();
    }
    leased
}

/// The number of a sale's orders, cancelled ones included, and what is left of it: the stock plus the unit rows.
async fn orders_and_units_left(stack: &Stack, sale: i64) -> (i64, i64) {
    let units = format!("SELECT COUNT(*) FROM tb_stock_unit WHERE voucher_id = {sale}");
    let (orders, stock) = stack.tables(sale).await;
    (orders, stock + stack.database.number(&units).await)
}

#[tokio::test]
async fn a_user_whose_cancelled_order_blocks_a_new_one_is_refused_for_good_and_costs_no_ids() {
    let stack = Stack::start(1, &["--id-block", &BLOCK.to_string()]).await;
    let user = stack.users(1).await.remove(0);
    let sales = safe_sales(&stack, 5).await;
    let key = "ALTER TABLE tb_voucher_order ADD UNIQUE KEY uk_user_voucher (user_id, voucher_id)";
    stack.database.run(key).await;
    for (strategy, sale) in sales {
        let order = stack.buy_committed(&user, sale).await;
        act(stack.url(), "cancel", &user, order).await.data();
        let before = leased(&stack).await;
        for _ in 0..5 {
            let again = stack.buy(&user, sale).await;
            if again.status == 202 {
                let refused = stack.decided(&user, again.bought()).await;
                refused.refused(200, "ALREADY_ORDERED");
            } else {
                again.refused(200, "ALREADY_ORDERED");
            }
        }
        let used = leased(&stack).await - before;
        assert!(used <= BLOCK, "{strategy}: {used} ids");
        assert_eq!(
            orders_and_units_left(&stack, sale).await,
            (1, 5),
            "{strategy}"
        );
    }
}

/// One user has no row in `tb_user`. At the same time, in the same batch, other users buy.
#[tokio::test]
async fn an_order_that_a_foreign_key_refuses_is_refused_alone_and_costs_no_ids() {
    let stack = Stack::start(1, &["--id-block", &BLOCK.to_string()]).await;
    let users = stack.users(3).await;
    let sales = safe_sales(&stack, 9).await;
    for user in &users[1..] {
        let row = format!(
            "INSERT INTO tb_user (id, phone) VALUES ({}, '{}')",
            user.id, user.id
        );
        stack.database.run(&row).await;
    }
    let key = "ALTER TABLE tb_voucher_order ADD CONSTRAINT fk_user FOREIGN KEY (user_id) \
               REFERENCES tb_user (id)";
    stack.database.run(key).await;
    // The first purchase starts the counter of ids, at a random number: it must not be part of what is measured.
    stack
        .buy(&users[1], stack.publish(1, "row-lock").await)
        .await
        .bought();
    for (strategy, sale) in sales {
        let before = leased(&stack).await;
        let (refused, first, second) = tokio::join!(
            stack.buy(&users[0], sale),
            stack.buy(&users[1], sale),
            stack.buy(&users[2], sale)
        );
        first.bought();
        second.bought();
        if refused.status == 202 {
            let refused = stack.decided(&users[0], refused.bought()).await;
            refused.refused(200, "ORDER_FAILED");
        } else {
            refused.refused(500, "INTERNAL");
        }
        stack.stream_drained().await;
        let used = leased(&stack).await - before;
        assert!(used <= BLOCK, "{strategy}: {used} ids");
        assert_eq!(
            orders_and_units_left(&stack, sale).await,
            (2, 7),
            "{strategy}"
        );
    }
}

/// A pending order whose unit is gone by the time that it can be committed.
async fn pending_without_stock(stack: &Stack, user: &SignedIn, sale: i64) -> i64 {
    let mut holder = stack.lock_sale(sale).await;
    let order = stack.buy(user, sale).await.bought();
    let sell_out = format!("UPDATE tb_seckill_voucher SET stock = 0 WHERE voucher_id = {sale}");
    sqlx::Executor::execute(&mut *holder, sell_out.as_str())
        .await
        .unwrap();
    holder.commit().await.unwrap();
    order
}

/// Each refusal of a pending order inserts a row, also the second refusal of one user: no unique key rejects it.
#[tokio::test]
async fn every_refusal_of_one_user_is_a_row() {
    let stack = Stack::start(1, &[]).await;
    let key = "ALTER TABLE tb_voucher_order ADD UNIQUE KEY uk_user_voucher (user_id, voucher_id)";
    stack.database.run(key).await;
    let user = stack.users(1).await.remove(0);
    for _ in 0..2 {
        let sale = stack.publish(1, "stream").await;
        let order = pending_without_stock(&stack, &user, sale).await;
        stack.wait_for_code(&user, order, "SOLD_OUT").await;
        let rows = format!(
            "SELECT COUNT(*) FROM tb_voucher_order WHERE id = {order} AND user_id = {} \
             AND status = 4 AND buyer IS NULL",
            user.id
        );
        assert_eq!(stack.database.number(&rows).await, 1);
        assert_eq!(stack.orders(sale).await, 0);
        assert!(!stack.database.has_order(order, user.id).await);
    }
    let orders_page = crate::support::api::get(stack.url(), "/voucher-order/of/me")
        .token(&user.token)
        .send()
        .await;
    assert_eq!(orders_page.data(), &serde_json::json!([]));
}

/// A foreign key that is added while the service runs keeps refusals out of the table. Then no refusal is reported.
#[tokio::test]
async fn a_refusal_that_cannot_be_inserted_is_not_reported() {
    let stack = Stack::start(1, &[]).await;
    let key = "ALTER TABLE tb_voucher_order ADD CONSTRAINT fk_sale FOREIGN KEY (voucher_id) \
               REFERENCES tb_seckill_voucher (voucher_id)";
    stack.database.run(key).await;
    if !stack.database.keeps_refusals_out().await {
        return;
    }
    let user = stack.users(1).await.remove(0);
    let sale = stack.publish(1, "stream").await;
    let order = pending_without_stock(&stack, &user, sale).await;
    // OceanBase reports a violated foreign key in spite of IGNORE: there the insert fails, and is tried again.
    if !is_oceanbase() {
        let refused = "the refusal of an order is no row";
        stack.instances[0].wait_for_line(refused).await;
    }
    let found = stack.look_up(&user, order).await;
    assert_eq!(found.status, 202, "{found:?}");
    let drop_key = "ALTER TABLE tb_voucher_order DROP FOREIGN KEY fk_sale";
    stack.database.run(drop_key).await;
    stack.wait_for_code(&user, order, "SOLD_OUT").await;
}
