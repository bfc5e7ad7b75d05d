//! A stranger changes nothing. Each route that needs a session or the admin token is called for what belongs to another user,
//! once without a session and once with a stranger's. That nothing was changed is seen in the tables, and not only in the reply.

use hyper::Method;
use serde_json::{Value, json};
use sqlx::Row;

use crate::docs::documented;
use crate::support::api::{Answer, Call, call};
use crate::support::eventually;
use crate::support::stack::{SignedIn, Stack};

/// Routes that concern the caller alone: a sign-out, and purchases.
const OWN: [&str; 3] = [
    "/user/logout",
    "/voucher-order/seckill",
    "/voucher-order/seckill/{id}",
];

/// The tables, each with a checksum of all its rows.
async fn tables(stack: &Stack) -> Vec<(String, Option<i64>)> {
    let names = "SELECT GROUP_CONCAT(TABLE_NAME ORDER BY TABLE_NAME) FROM information_schema.TABLES \
                 WHERE TABLE_SCHEMA = DATABASE() AND TABLE_TYPE = 'BASE TABLE'";
    let pool = &stack.database.pool;
    let names: String = sqlx::query_scalar(names)
        .fetch_one(pool)
        .await
        .expect("the tables");
    assert!(
        names.contains("tb_voucher_order") && names.contains("tb_user"),
        "{names}"
    );
    let sums = format!("CHECKSUM TABLE {names}");
    let sums = sqlx::raw_sql(&sums)
        .fetch_all(pool)
        .await
        .expect("checksums");
    sums.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// The names of the tables whose rows are not what they were before.
async fn changed_tables(stack: &Stack, before: &[(String, Option<i64>)]) -> Vec<String> {
    let differ = tables(stack)
        .await
        .into_iter()
        .zip(before)
        .filter(|(now, then)| now != *then);
    differ.map(|((name, _), _)| name).collect()
}

/// A body that changes something, if its sender may.
fn body(method: &str, path: &str) -> Option<Value> {
    let voucher = json!({ "shopId": 1, "title": "代金券", "payValue": 1, "actualValue": 2 });
    let shop = json!({ "name": "店", "typeId": 1, "address": "x", "x": 120.0, "y": 30.0 });
    match (method, path) {
        ("GET", _) | (_, "/voucher-order/{orderId}/pay" | "/voucher-order/{orderId}/cancel") => {
            None
        }
        ("POST", "/voucher") => Some(voucher),
        ("POST", "/voucher/seckill") => Some(Stack::sale(5, "row-lock")),
        ("POST", "/voucher/seckill/{id}/stock") => Some(json!({ "add": 3 })),
        ("POST", "/shop") => Some(shop),
        ("PUT", "/shop") => Some(json!({ "id": 1, "name": "改名" })),
        route => panic!("a new route: what may a stranger send to {route:?}?"),
    }
}

#[tokio::test]
async fn a_stranger_changes_nothing() {
    let stack = Stack::start(1, &[]).await;
    stack.settled().await;
    let sale = stack.publish(50, "row-lock").await;
    let users = stack.users(50).await;
    let stranger = &users[0];
    let mut owners = users[1..].iter();
    let guarded = documented().into_iter().filter(|((_, path), operation)| {
        let of_a_feature = !["lab", "service"]
            .map(Some)
            .contains(&operation["tags"][0].as_str());
        of_a_feature && operation["security"].is_array() && !OWN.contains(&path.as_str())
    });
    let mut route_count = 0;
    for ((method, route), operation) in guarded {
        let owner: &SignedIn = owners.next().expect("an owner");
        let order = stack.buy(owner, sale).await.bought();
        let id = if route.starts_with("/user") {
            owner.id
        } else {
            sale
        };
        let path = route
            .replace("{orderId}", &order.to_string())
            .replace("{id}", &id.to_string());
        let request = || -> Call {
            let method: Method = method.parse().expect("a method");
            let request = call(method.clone(), stack.url(), &path);
            match body(method.as_str(), &route) {
                Some(body) => request.json(body),
                None => request,
            }
        };
        let what = format!("{method} {route}");
        let names_an_order = route.contains("{orderId}");
        let is_admins = operation["security"][0]["x-admin-token"].is_array();
        // The return of an earlier order's stock would change tables, too.
        eventually("no stock is on its way back", async || {
            stack
                .database
                .number("SELECT COUNT(*) FROM tb_stock_return")
                .await
                == 0
        })
        .await;
        let before = tables(&stack).await;
        let assert_unchanged = async |answer: &Answer| {
            let changed = changed_tables(&stack, &before).await;
            assert!(
                changed.is_empty(),
                "{what}: a stranger changed {changed:?}: {answer:?}"
            );
        };

        let anonymous_answer = request().send().await;
        assert_unchanged(&anonymous_answer).await;
        assert_eq!(
            anonymous_answer.status,
            if is_admins { 403 } else { 401 },
            "{what}: {anonymous_answer:?}"
        );
        let stranger_answer = request().token(&stranger.token).send().await;
        assert_unchanged(&stranger_answer).await;
        if is_admins {
            stranger_answer.refused(403, "FORBIDDEN");
            let guessed = request().header("x-admin-token", "another-admin-token");
            let guessed = guessed.token(&stranger.token).send().await;
            assert_unchanged(&guessed).await;
            guessed.refused(403, "FORBIDDEN");
        } else if names_an_order {
            stranger_answer.refused(200, "ORDER_NOT_FOUND");
        }

        // The same request is done for somebody who may make it.
        let rightful = if is_admins {
            request().admin()
        } else {
            request().token(&owner.token)
        };
        rightful.send().await.data();
        let was_done = !changed_tables(&stack, &before).await.is_empty();
        assert_eq!(was_done, method != "GET", "{what}");
        route_count += 1;
    }
    assert!(route_count >= 11, "{route_count} routes");
}
