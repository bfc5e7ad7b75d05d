//! The whole service on a master that Sentinel monitors: every feature that uses Redis, before and after a failover,
//! without a restart.

use redis::AsyncCommands;
use serde_json::{Value, json};
use testkit::redis_sentinel::{MASTER, RedisSentinel, in_sync};

use crate::session_tracking::tracked;
use crate::support::api::{ADMIN_TOKEN, get, post};
use crate::support::database::TestDatabase;
use crate::support::eventually;
use crate::support::instance::Instance;
use crate::support::stack::{SignedIn, Stack, buy, buy_eventually, sign_in};
use secrecy::ExposeSecret;

/// Strategies that keep something in Redis, and some for which only the sessions are there.
const STRATEGIES: [&str; 5] = [
    "setnx-lock",
    "reentrant-lock",
    "stream",
    "group-commit",
    "row-lock",
];

/// Publishes a sale of one, and buys it, by every strategy.
pub async fn buy_by_every_strategy(base: &str, user: &SignedIn) {
    for strategy in STRATEGIES {
        let sale = post(base, "/voucher/seckill")
            .admin()
            .json(Stack::sale(1, strategy));
        let sale = sale.send().await.data().as_i64().expect("a voucher id");
        let mut bought = None;
        // A sale on the stream opens once its stock is counted.
        eventually("the sale is open", async || {
            let answer = buy(base, user, sale).await;
            bought = (answer.status != 503).then(|| answer.bought());
            bought.is_some()
        })
        .await;
        let order = bought.expect("an order");
        eventually("the order is committed", async || {
            let order = get(base, &format!("/voucher-order/{order}")).token(&user.token);
            order.send().await.body["data"]["voucherId"] == json!(sale)
        })
        .await;
        let again = buy(base, user, sale).await;
        assert_eq!(
            again.body["orderId"],
            json!(order.to_string()),
            "{strategy}: {again:?}"
        );
    }
}

pub async fn read_shops(base: &str) {
    for path in [
        "/shop/1",
        "/shop/of/type?typeId=1&x=120.15&y=30.33",
        "/shop-type/list",
    ] {
        get(base, path).send().await.data();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_works_through_sentinel_and_after_a_failover() {
    let (mut sentinel, database) = tokio::join!(RedisSentinel::start(), TestDatabase::migrated());
    let hosts: Vec<String> = sentinel
        .sentinels
        .iter()
        .map(|sentinel| sentinel.address())
        .collect();
    let env = [
        ("DATABASE_URL", database.url().expose_secret().to_owned()),
        (
            "REDIS_URL",
            format!("redis-sentinel://{}/{MASTER}", hosts.join(",")),
        ),
        ("ADMIN_TOKEN", ADMIN_TOKEN.to_owned()),
    ];
    let instance = Instance::start(&["--lab".to_owned()], &env).await;
    let base = instance.url.as_str();

    let mut master = sentinel.servers[0].conn().await;
    let user = sign_in(base, &mut master, "13800000001").await;
    read_shops(base).await;
    buy_by_every_strategy(base, &user).await;

    in_sync(&sentinel.servers[0], &sentinel.servers[1]).await;
    sentinel.servers[0].kill();
    for strategy in ["reentrant-lock", "stream"] {
        let mut sale = Value::Null;
        eventually("a sale is published", async || {
            let publish = post(base, "/voucher/seckill")
                .admin()
                .json(Stack::sale(5, strategy));
            sale = publish.send().await.body["data"].clone();
            sale.is_i64()
        })
        .await;
        buy_eventually(base, &user, sale.as_i64().unwrap()).await;
    }

    let mut master = sentinel.servers[1].conn().await;
    let other_user = sign_in(base, &mut master, "13800000002").await;
    read_shops(base).await;
    buy_by_every_strategy(base, &other_user).await;
    let me = get(base, "/user/me").token(&user.token).send().await;
    assert_eq!(
        me.data()["id"],
        json!(user.id),
        "the session of before the failover"
    );

    tracked(base).await;
    let deleted: u64 = master
        .del(format!("login:token:{}", user.token))
        .await
        .expect("a DEL");
    assert_eq!(deleted, 1);
    // Otherwise the instance would use the session for minutes.
    eventually("the new master reports ended sessions", async || {
        get(base, "/user/me").token(&user.token).send().await.status == 401
    })
    .await;
}
