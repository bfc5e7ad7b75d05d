//! Beside a final-stage Java node, which [`player`] and [`consumer`] play on the same Redis and database: claims,
//! counters, dropped entries, sales that it published, and a whole sale on a mixed pair.

mod claims;
mod consumer;
mod counters;
mod drops;
mod mixed_sale;
mod player;
mod published;

use redis::AsyncCommands;
use serde_json::json;

use crate::support::api::{Answer, get, post};
use crate::support::stack::{SignedIn, Stack};

async fn look_up(stack: &Stack, user: &SignedIn, order: i64) -> Answer {
    get(stack.url(), &format!("/voucher-order/{order}")).token(&user.token).send().await
}

async fn add_stock(stack: &Stack, sale: i64, add: i64) {
    let path = format!("/voucher/seckill/{sale}/stock");
    post(stack.url(), &path).admin().json(json!({ "add": add })).send().await.data();
}

async fn rows(stack: &Stack) -> i64 {
    stack.database.number("SELECT COUNT(*) FROM tb_voucher_order").await
}

async fn stock(stack: &Stack, sale: i64) -> i64 {
    let row = format!("SELECT stock FROM tb_seckill_voucher WHERE voucher_id = {sale}");
    stack.database.number(&row).await
}

async fn counter(stack: &Stack, sale: i64) -> Option<i64> {
    stack.redis.conn().await.get(format!("seckill:stock:{sale}")).await.unwrap()
}

async fn has_claim(stack: &Stack, sale: i64, user: &SignedIn) -> bool {
    stack.redis.conn().await.sismember(format!("seckill:order:{sale}"), user.id).await.unwrap()
}
