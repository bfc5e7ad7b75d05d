//! The whole service on a master that Sentinel monitors: every feature that uses Redis, before and after a failover,
//! without a restart.

use std::time::{Duration, Instant};

use redis::AsyncCommands;
use serde_json::json;
use testkit::redis_sentinel::{MASTER, RedisSentinel, in_sync};
use testkit::wait::eventually;

use crate::session_tracking::tracked;
use crate::support::api::{self, ADMIN_TOKEN, get, post};
use crate::support::database::TestDatabase;
use crate::support::instance::Instance;
use crate::support::stack::{SignedIn, Stack, buy, sign_in};
use secrecy::ExposeSecret;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Every strategy that keeps something in Redis, and those that only remember sessions there.
const STRATEGIES: [&str; 5] =
    ["setnx-lock", "reentrant-lock", "stream", "group-commit", "row-lock"];

/// Publishes a sale of one, and buys it, by every strategy.
pub async fn buy_by_every_strategy(base: &str, user: &SignedIn) {
    for strategy in STRATEGIES {
        let sale = post(base, "/voucher/seckill").admin().json(Stack::sale(1, strategy));
        let sale = sale.send().await.data().as_i64().expect("a voucher id");
        let order = buy(base, user, sale).await.bought();
        eventually("the order is committed", TIMEOUT, async || {
            let order = get(base, &format!("/voucher-order/{order}")).token(&user.token);
            order.send().await.body["data"]["voucherId"] == json!(sale)
        })
        .await;
        let again = buy(base, user, sale).await;
        assert_eq!(again.body["orderId"], json!(order.to_string()), "{strategy}: {again:?}");
    }
}

pub async fn read_shops(base: &str) {
    for path in ["/shop/1", "/shop/of/type?typeId=1&x=120.15&y=30.33", "/shop-type/list"] {
        let answer: api::Answer = get(base, path).send().await;
        assert_eq!((answer.status, &answer.body["success"]), (200, &json!(true)), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_feature_works_through_sentinel_and_after_a_failover() {
    let (sentinel, database) = tokio::join!(RedisSentinel::start(), TestDatabase::migrated());
    let hosts: Vec<String> = sentinel.sentinels.iter().map(|sentinel| sentinel.address()).collect();
    let env = [
        ("DATABASE_URL", database.url().expose_secret().to_owned()),
        ("REDIS_URL", format!("redis-sentinel://{}/{MASTER}", hosts.join(","))),
        ("ADMIN_TOKEN", ADMIN_TOKEN.to_owned()),
    ];
    let instance = Instance::start(&["--lab".to_owned()], &env).await;
    let base = instance.url.as_str();

    let mut master = sentinel.servers[0].conn().await;
    let user = sign_in(base, &mut master, "13800000001").await;
    read_shops(base).await;
    buy_by_every_strategy(base, &user).await;

    in_sync(&sentinel.servers[0], &sentinel.servers[1]).await;
    let mut command = redis::cmd("SENTINEL");
    let mut asked = sentinel.sentinels[0].conn().await;
    command.arg("FAILOVER").arg(MASTER).exec_async(&mut asked).await.expect("a failover begins");
    let began = Instant::now();
    // What is written to the old master until then is lost. The sentinels tell it after 10 s.
    let port = sentinel.servers[1].port();
    eventually("the replica is the master", TIMEOUT, || {
        let mut asked = asked.clone();
        async move {
            let mut command = redis::cmd("SENTINEL");
            command.arg("GET-MASTER-ADDR-BY-NAME").arg(MASTER);
            let address: Vec<String> = command.query_async(&mut asked).await.expect("a master");
            address.get(1) == Some(&port.to_string())
        }
    })
    .await;
    let mut demote = redis::cmd("REPLICAOF");
    demote.arg("127.0.0.1").arg(port).exec_async(&mut master).await.expect("a replica");
    eventually("the old master is a replica", TIMEOUT, async || {
        let role = async {
            let client = sentinel.servers[0].client();
            let mut old = client.get_multiplexed_async_connection().await?;
            redis::cmd("ROLE").query_async::<Vec<redis::Value>>(&mut old).await
        };
        let replica = redis::Value::BulkString(b"slave".to_vec());
        role.await.is_ok_and(|role| role.first() == Some(&replica))
    })
    .await;
    let demoted = Instant::now();
    let sale = loop {
        let sale = post(base, "/voucher/seckill").admin().json(Stack::sale(5, "stream"));
        let sale = sale.send().await;
        if let Some(id) = sale.body["data"].as_i64() {
            break id;
        }
        assert!(demoted.elapsed() < TIMEOUT, "{sale:?}");
    };
    let order = loop {
        let bought = buy(base, &user, sale).await;
        if let Some(id) = bought.body["data"].as_i64() {
            break id;
        }
        assert!(demoted.elapsed() < TIMEOUT, "{bought:?}");
    };
    eventually("the order is committed", TIMEOUT, async || {
        let order = get(base, &format!("/voucher-order/{order}")).token(&user.token);
        order.send().await.body["data"]["voucherId"] == json!(sale)
    })
    .await;
    let (of_failover, of_demotion) = (began.elapsed(), demoted.elapsed());
    println!(
        "sold {of_failover:?} after the failover began, {of_demotion:?} after the old master became a replica"
    );

    let mut master = sentinel.servers[1].conn().await;
    let other = sign_in(base, &mut master, "13800000002").await;
    read_shops(base).await;
    buy_by_every_strategy(base, &other).await;
    let me = get(base, "/user/me").token(&user.token).send().await;
    assert_eq!(me.data()["id"], json!(user.id), "the session of before the failover");

    tracked(base).await;
    let deleted: u64 = master.del(format!("login:token:{}", user.token)).await.expect("a DEL");
    assert_eq!(deleted, 1);
    // It would be used for minutes otherwise.
    eventually("the new master reports ended sessions", TIMEOUT, async || {
        get(base, "/user/me").token(&user.token).send().await.status == 401
    })
    .await;
}
