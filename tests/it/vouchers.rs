//! Publishing and listing vouchers, and what may not be published.

use serde_json::{Value, json};
use workload::ladder::Strategy;

use crate::support::api::{get, post};
use crate::support::stack::Stack;

pub fn ordinary() -> Value {
    json!({ "shopId": 1, "title": "代金券", "subTitle": "周末可用", "rules": "无",
            "payValue": 4750, "actualValue": 5000, "type": 0, "status": 1 })
}

#[tokio::test]
async fn what_may_be_published_is_and_a_shops_vouchers_are_listed_with_their_sales() {
    let mut stack = Stack::start(1, &[]).await;
    // An instance without a token refuses even an empty one, and names the variable to set.
    let mut env = stack.env();
    env.retain(|(name, _)| *name != "ADMIN_TOKEN");
    stack.add_instance_with(&[], &env).await;
    let open = &stack.instances[1].url;
    let answer = post(open, "/voucher")
        .header("x-admin-token", "")
        .json(ordinary())
        .send()
        .await;
    assert!(answer.refused(403, "FORBIDDEN").contains("ADMIN_TOKEN"));

    for (change, status, code) in [
        (json!({ "stock": -1 }), 400, "INVALID_PARAMETER"),
        (json!({ "stock": 0 }), 400, "INVALID_PARAMETER"),
        (json!({ "stock": 1.5 }), 400, "INVALID_PARAMETER"),
        (json!({ "stock": "many" }), 400, "INVALID_PARAMETER"),
        (
            json!({ "beginTime": "yesterday" }),
            400,
            "INVALID_PARAMETER",
        ),
        (json!({ "strategy": "hope" }), 400, "INVALID_PARAMETER"),
        (json!({ "stock": 10_000_001 }), 400, "INVALID_PARAMETER"),
        (
            json!({ "strategy": "unit-rows", "stock": 10_001 }),
            400,
            "INVALID_PARAMETER",
        ),
        (
            json!({ "beginTime": "1950-01-01T00:00:00" }),
            400,
            "INVALID_PARAMETER",
        ),
        (
            json!({ "endTime": "2022-01-01T00:00:00" }),
            400,
            "INVALID_PARAMETER",
        ),
        (
            json!({ "endTime": "2039-01-01T00:00:00" }),
            400,
            "INVALID_PARAMETER",
        ),
        (json!({ "title": " " }), 400, "INVALID_PARAMETER"),
        (
            json!({ "title": "长".repeat(256) }),
            400,
            "INVALID_PARAMETER",
        ),
        (json!({ "payValue": -1 }), 400, "INVALID_PARAMETER"),
        (json!({ "status": 9 }), 400, "INVALID_PARAMETER"),
        (json!({ "shopId": 999 }), 200, "SHOP_NOT_FOUND"),
    ] {
        let mut body = Stack::sale(5, "reentrant-lock");
        for (key, value) in change.as_object().unwrap() {
            body[key] = value.clone();
        }
        let answer = post(stack.url(), "/voucher/seckill")
            .admin()
            .json(body)
            .send()
            .await;
        let text = answer.refused(status, code);
        assert!(!text.is_empty(), "{change}");
    }

    // In the database and in Redis, or in neither.
    stack.redis.kill();
    let body = Stack::sale(5, "reentrant-lock");
    let answer = post(stack.url(), "/voucher/seckill")
        .admin()
        .json(body)
        .send()
        .await;
    answer.refused(503, "UNAVAILABLE");
    for table in ["tb_voucher", "tb_seckill_voucher"] {
        assert_eq!(
            stack
                .database
                .number(&format!("SELECT COUNT(*) FROM {table}"))
                .await,
            0
        );
    }
    stack.redis.restart().await;
    stack.ready().await;

    // The list may be remembered for a moment, but not beyond a write on the same instance.
    let listed = async || {
        let list = get(stack.url(), "/voucher/list/1").send().await;
        list.data().as_array().expect("a list").len()
    };
    let off = "INSERT INTO tb_voucher (shop_id, title, pay_value, actual_value, status) \
               VALUES (1, 'off the shelf', 1, 1, 2)";
    stack.database.run(off).await;
    assert_eq!(listed().await, 0);
    let plain = post(stack.url(), "/voucher")
        .admin()
        .json(ordinary())
        .send()
        .await;
    let plain = plain.data().as_i64().unwrap();
    assert_eq!(listed().await, 1);
    let flash = stack.publish(7, "reentrant-lock").await;
    assert_eq!(listed().await, 2);
    // The stock counter has the stock, by which Java nodes admit, and the audit has what was issued.
    assert_eq!(stack.counter(flash).await, Some(7));
    stack.add_stock(flash, 2).await;
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
    assert_eq!(
        get(stack.url(), "/voucher/list/999").send().await.data(),
        &json!([])
    );

    assert_eq!(stack.database.of_sale(flash, "issued").await, 9);
    // Local time in, UTC stored.
    let begin = "begin_time = '2021-12-31 16:00:00'";
    assert_eq!(stack.database.of_sale(flash, begin).await, 1);

    for strategy in Strategy::ALL
        .into_iter()
        .filter(|strategy| strategy.is_unsafe())
    {
        let body = Stack::sale(5, strategy.name());
        let answer = post(stack.url(), "/voucher/seckill")
            .admin()
            .json(body)
            .send()
            .await;
        assert!(answer.refused(403, "LAB_ONLY").contains("--lab"));
    }
    // Nor are they sold by an instance outside the lab, if another published them; nor one that this version does not know.
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
