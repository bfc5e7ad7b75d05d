//! Publishing and listing vouchers, and what may not be published.

use serde_json::{Value, json};
use strategies::Strategy;

use crate::support::api::{ADMIN_TOKEN, Answer, get, post};
use crate::support::stack::Stack;

pub fn ordinary() -> Value {
    json!({ "shopId": 1, "title": "代金券", "subTitle": "周末可用", "rules": "无",
            "payValue": 4750, "actualValue": 5000, "type": 0, "status": 1 })
}

/// Publishes a sale at the first instance.
async fn publish(stack: &Stack, body: Value) -> Answer {
    let publish = post(stack.url(), "/voucher/seckill").admin();
    publish.json(body).send().await
}

#[tokio::test]
async fn what_cannot_be_sold_is_not_published() {
    let stack = Stack::start(1, &[]).await;
    let changes = [
        json!({ "stock": -1 }),
        json!({ "stock": 0 }),
        json!({ "stock": 1.5 }),
        json!({ "stock": "many" }),
        json!({ "stock": 10_000_001 }),
        json!({ "strategy": "unit-rows", "stock": 10_001 }),
        json!({ "strategy": "hope" }),
        json!({ "beginTime": "yesterday" }),
        json!({ "beginTime": "1950-01-01T00:00:00" }),
        json!({ "endTime": "2022-01-01T00:00:00" }),
        json!({ "endTime": "2039-01-01T00:00:00" }),
        json!({ "title": " " }),
        json!({ "title": "长".repeat(256) }),
        json!({ "payValue": -1 }),
        json!({ "status": 9 }),
    ];
    let changed = |change: &Value| {
        let mut body = Stack::sale(5, "reentrant-lock");
        for (key, value) in change.as_object().expect("an object") {
            body[key] = value.clone();
        }
        body
    };
    for change in changes {
        let answer = publish(&stack, changed(&change)).await;
        let text = answer.refused(400, "INVALID_PARAMETER");
        assert!(!text.is_empty(), "{change}: {answer:?}");
    }
    let nowhere = publish(&stack, changed(&json!({ "shopId": 999 }))).await;
    nowhere.refused(200, "SHOP_NOT_FOUND");
    assert_eq!(vouchers(&stack).await, [0, 0]);
}

/// How many vouchers there are, and how many sales.
async fn vouchers(stack: &Stack) -> [i64; 2] {
    let mut counts = [0; 2];
    for (count, table) in counts.iter_mut().zip(["tb_voucher", "tb_seckill_voucher"]) {
        let rows = format!("SELECT COUNT(*) FROM {table}");
        *count = stack.database.number(&rows).await;
    }
    counts
}

#[tokio::test]
async fn a_sale_is_published_in_the_database_and_in_redis_or_in_neither() {
    let mut stack = Stack::start(1, &[]).await;
    stack.redis.kill();
    let answer = publish(&stack, Stack::sale(5, "reentrant-lock")).await;
    answer.refused(503, "UNAVAILABLE");
    assert_eq!(vouchers(&stack).await, [0, 0]);
    stack.redis.restart().await;
    stack.ready().await;

    let sale = stack.publish(7, "reentrant-lock").await;
    // Java nodes admit by the stock counter, and the audit needs what was issued.
    assert_eq!(stack.counter(sale).await, Some(7));
    assert_eq!(stack.database.of_sale(sale, "issued").await, 7);
    // Local time in, UTC stored.
    let begin = "begin_time = '2021-12-31 16:00:00'";
    assert_eq!(stack.database.of_sale(sale, begin).await, 1);
}

/// The list may be remembered for a moment, but not beyond a write on the same instance.
#[tokio::test]
async fn a_shops_vouchers_are_listed_with_their_sales_and_with_each_write_at_once() {
    let stack = Stack::start(1, &[]).await;
    let listed = async || {
        let list = get(stack.url(), "/voucher/list/1").send().await;
        list.data().as_array().expect("a list").len()
    };
    let off = "INSERT INTO tb_voucher (shop_id, title, pay_value, actual_value, status) \
               VALUES (1, 'off the shelf', 1, 1, 2)";
    stack.database.run(off).await;
    assert_eq!(listed().await, 0);
    let plain = post(stack.url(), "/voucher").admin().json(ordinary());
    let plain = plain.send().await.data().clone();
    assert_eq!(listed().await, 1);
    let flash = stack.publish(7, "reentrant-lock").await;
    assert_eq!(listed().await, 2);
    stack.add_stock(flash, 2).await;
    assert_eq!(stack.database.of_sale(flash, "issued").await, 9);
    let list = get(stack.url(), "/voucher/list/1").send().await;
    assert_eq!(
        list.data(),
        &json!([
            { "id": plain, "shopId": 1, "title": "代金券", "subTitle": "周末可用", "rules": "无",
              "payValue": 4750, "actualValue": 5000, "type": 0 },
            { "id": flash, "shopId": 1, "title": "秒杀", "payValue": 100, "actualValue": 1000,
              "type": 1, "stock": 9, "beginTime": "2022-01-01T00:00:00",
              "endTime": "2037-01-01T00:00:00" },
        ])
    );
    let elsewhere = get(stack.url(), "/voucher/list/999").send().await;
    assert_eq!(elsewhere.data(), &json!([]));
}

#[tokio::test]
async fn outside_the_lab_no_unsafe_strategy_is_published_or_sold() {
    let mut stack = Stack::start(1, &[]).await;
    // An instance without a token refuses even an empty one, and names the variable to set.
    let mut env = stack.env();
    env.retain(|(name, _)| *name != "ADMIN_TOKEN");
    stack.add_instance_with(&[], &env).await;
    let open = &stack.instances[1].url;
    let empty = post(open, "/voucher").header("x-admin-token", "");
    let answer = empty.json(ordinary()).send().await;
    assert!(answer.refused(403, "FORBIDDEN").contains("ADMIN_TOKEN"));
    // An instance with a token takes nothing that is nearly its token.
    let longer = format!("{ADMIN_TOKEN}x");
    for token in ["", &ADMIN_TOKEN[..10], &longer, &ADMIN_TOKEN.to_uppercase()] {
        let call = post(stack.url(), "/voucher").header("x-admin-token", token);
        call.json(ordinary()).send().await.refused(403, "FORBIDDEN");
    }

    let all = Strategy::ALL.into_iter();
    for strategy in all.filter(|strategy| strategy.is_unsafe()) {
        let answer = publish(&stack, Stack::sale(5, strategy.name())).await;
        assert!(answer.refused(403, "LAB_ONLY").contains("--lab"));
    }
    // Nor is a sale sold that has an unsafe strategy, as an instance of the lab may publish it, or one that this version does
    // not know.
    let user = &stack.users(1).await[0];
    for (strategy, status, code) in [("naive", 403, "LAB_ONLY"), ("later", 503, "UNAVAILABLE")] {
        let sale = stack.publish(5, "reentrant-lock").await;
        stack
            .database
            .set_sale(sale, &format!("strategy = '{strategy}'"))
            .await;
        stack.buy(user, sale).await.refused(status, code);
    }
    assert_eq!(stack.all_orders().await, 0);
}
