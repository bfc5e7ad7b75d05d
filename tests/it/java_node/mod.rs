//! Beside a final-stage Java node, which [`player`] and [`consumer`] play on the same Redis and database: claims,
//! counters, dropped entries, sales that it published, and the first start. A whole sale on a mixed pair is in [`crate::slow`].

mod claims;
pub mod consumer;
mod counters;
mod drops;
mod joining;
pub mod player;
mod published;

use std::time::Duration;

use redis::AsyncCommands;
use serde_json::json;
use testkit::wait::eventually;

use self::player::JavaNode;
use crate::support::api::{Answer, get, post};
use crate::support::stack::{SignedIn, Stack};

pub async fn look_up(stack: &Stack, user: &SignedIn, order: i64) -> Answer {
    get(stack.url(), &format!("/voucher-order/{order}")).token(&user.token).send().await
}

pub async fn add_stock(stack: &Stack, sale: i64, add: i64) {
    let path = format!("/voucher/seckill/{sale}/stock");
    post(stack.url(), &path).admin().json(json!({ "add": add })).send().await.data();
}

pub async fn rows(stack: &Stack) -> i64 {
    stack.database.number("SELECT COUNT(*) FROM tb_voucher_order WHERE voucher_id <> 0").await
}

pub async fn stock(stack: &Stack, sale: i64) -> i64 {
    let row = format!("SELECT stock FROM tb_seckill_voucher WHERE voucher_id = {sale}");
    stack.database.number(&row).await
}

pub async fn counter(stack: &Stack, sale: i64) -> Option<i64> {
    stack.redis.conn().await.get(format!("seckill:stock:{sale}")).await.unwrap()
}

/// Waits until the consumer of ours has looked for what others dropped: such an entry, of another sale, is refused.
pub async fn drops_were_looked_for(stack: &Stack, java: &JavaNode, order: i64) {
    let sale = stack.publish(5, "stream").await;
    let user = stack.users(1).await.remove(0);
    let dropped = java.hold(user.id, sale, order, false).await;
    java.acknowledge(&dropped).await;
    eventually("a drop is refused", Duration::from_secs(20), || async {
        look_up(stack, &user, order).await.body["code"] == "ORDER_FAILED"
    })
    .await;
}

pub async fn has_claim(stack: &Stack, sale: i64, user: &SignedIn) -> bool {
    stack.redis.conn().await.sismember(format!("seckill:order:{sale}"), user.id).await.unwrap()
}
