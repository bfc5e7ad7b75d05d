//! The whole service on a Redis Cluster of three masters with a replica each, while one master dies under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use seckill::connection;
use seckill::connection::redis::RoutedConnection;
use seckill::keys::{KeyStyle, Keys};
use seckill::session::SharedSessions;
use secrecy::ExposeSecret;
use testkit::redis_cluster::RedisCluster;
use testkit::wait::eventually;
use tokio::task::JoinSet;

use crate::support::api::{ADMIN_TOKEN, get, post};
use crate::support::database::TestDatabase;
use crate::support::instance::Instance;
use crate::support::stack::{self, SignedIn, Stack, buy, sign_in};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Buyers of each sale, how many are on sale, and the pause between two buyers.
const BUYERS: i64 = 45;
const STOCK: i64 = 30;
const PACE: Duration = Duration::from_millis(60);

/// How a purchase ended.
struct Bought {
    sale: i64,
    user: SignedIn,
    /// The order that was promised; `None` where the buyer was refused.
    order: Option<i64>,
    at: Instant,
}

/// Buys at every instance in turn until the answer is definite.
async fn buy_until_decided(urls: &[String], user: SignedIn, sale: i64) -> Bought {
    let started = Instant::now();
    for url in urls.iter().cycle() {
        let answer = buy(url, &user, sale).await;
        let code = answer.body["code"].as_str().unwrap_or_default();
        let order = answer.body["orderId"].as_str().and_then(|id| id.parse().ok());
        let at = Instant::now();
        match (answer.status, code) {
            (200 | 202, "" | "PENDING") => {
                return Bought { sale, user, order: Some(answer.bought()), at };
            }
            // It had been bought by a try whose reply was not definite.
            (200, "ALREADY_ORDERED") if order.is_some() => return Bought { sale, user, order, at },
            (200, "SOLD_OUT") => return Bought { sale, user, order: None, at },
            _ => assert!(started.elapsed() < TIMEOUT, "{answer:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    unreachable!("the instances are asked in turn")
}

async fn publish(url: &str, stock: i64, strategy: &str) -> i64 {
    let sale = post(url, "/voucher/seckill").admin().json(Stack::sale(stock, strategy));
    sale.send().await.data().as_i64().unwrap()
}

/// Waits until no entry is in the stream.
async fn drained(redis: &RoutedConnection) {
    let keys = Keys::new(KeyStyle::Cluster);
    eventually("no entry waits", TIMEOUT, || {
        let (mut redis, mut length) = (redis.clone(), redis::cmd("XLEN"));
        length.arg(&*keys.stream);
        async move { length.query_async::<u64>(&mut redis).await.is_ok_and(|left| left == 0) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_under_load_costs_no_order_and_makes_none_too_many() {
    let (mut cluster, database) = tokio::join!(
        RedisCluster::start_with_replicas(Duration::from_secs(1)),
        TestDatabase::migrated()
    );
    let hosts: Vec<String> = cluster.nodes.iter().map(|node| node.address()).collect();
    let redis_url = format!("redis-cluster://{}", hosts.join(","));
    let env = [
        ("DATABASE_URL", database.url().expose_secret().to_owned()),
        ("REDIS_URL", redis_url.clone()),
        ("ADMIN_TOKEN", ADMIN_TOKEN.to_owned()),
    ];
    // Without --key-style: the address says that it is a cluster.
    let instances = [Instance::start(&[], &env).await, Instance::start(&[], &env).await];
    let urls: Arc<[String]> = instances.iter().map(|instance| instance.url.clone()).collect();
    let server = connection::redis::server(&redis_url.into(), None, None).unwrap();
    let nodes = connection::redis::connect(server, Duration::from_secs(5)).await.unwrap();
    let mut redis = nodes.commands();

    let first = sign_in(&urls[0], &mut redis, "13800000001").await;
    for path in ["/shop/1", "/shop/of/type?typeId=1&x=120.1&y=30.3", "/shop-type/list"] {
        get(&urls[1], path).send().await.data();
    }
    let mut sales = Vec::new();
    for strategy in ["setnx-lock", "reentrant-lock", "group-commit", "stream", "stream"] {
        sales.push(publish(&urls[0], STOCK, strategy).await);
        buy(&urls[1], &first, sales[sales.len() - 1]).await.bought();
    }
    let sessions = SharedSessions::new(redis.clone(), KeyStyle::Cluster);
    let mut users = vec![first];
    users.extend(stack::users(sessions, BUYERS - 1).await);
    // While a slot is being moved, with some of a script's keys on either node, a purchase is done in full or not at all.
    let sale = sales[3];
    let slot = cluster.slot("{orders}").await;
    let from = cluster.owner(0, slot).await.unwrap();
    let to = (from + 1) % 3;
    cluster.begin_move(slot, from, to).await;
    let before = database.orders(sale).await;
    let during = buy(&urls[0], &users[1], sale).await;
    cluster.end_move(slot, from, to).await;
    let owners = (cluster.owner(from, slot).await, cluster.owner(to, slot).await);
    assert_eq!(owners, (Some(to), Some(to)), "the slot has moved");
    drained(&redis).await;
    let made = database.orders(sale).await - before;
    match during.status {
        202 => assert_eq!(made, 1, "{during:?}"),
        _ => {
            during.refused(503, "UNAVAILABLE");
            assert_eq!(made, 0, "answered that no order was made");
        }
    }

    // Sessions are no orders: what a replica lacks of them at a failover is lost.
    for master in &cluster.nodes[..3] {
        let mut wait = redis::cmd("WAIT");
        wait.arg(1).arg(10_000).exec_async(&mut master.conn().await).await.unwrap();
    }

    let decided = Arc::new(AtomicUsize::new(0));
    let mut buying = JoinSet::new();
    for (at, user) in (0_u32..).zip(&users) {
        for sale in &sales {
            let (urls, user, sale, decided) = (urls.clone(), user.clone(), *sale, decided.clone());
            buying.spawn(async move {
                tokio::time::sleep(PACE * at).await;
                let bought = buy_until_decided(&urls, user, sale).await;
                decided.fetch_add(1, Relaxed);
                bought
            });
        }
    }
    let third = users.len() * sales.len() / 3;
    eventually("a third is decided", TIMEOUT, || async { decided.load(Relaxed) >= third }).await;
    // The one that serves the stream.
    let dies = cluster.owner(0, cluster.slot("{orders}").await).await.unwrap();
    cluster.nodes[dies].kill();
    let died = Instant::now();
    let bought = buying.join_all().await;
    let on_stream = |sale: i64| sales[3..].contains(&sale);
    // The longest time without a new order, from the death on.
    let pause = |dead: bool| {
        let orders = bought.iter().filter(|one| one.order.is_some() && on_stream(one.sale) == dead);
        let mut times: Vec<Instant> = orders.map(|one| one.at).filter(|at| *at > died).collect();
        times.push(died);
        times.sort();
        times.windows(2).map(|pair| pair[1] - pair[0]).max()
    };
    println!(
        "after the master died, the sales on the stream had no order for {:?}, the other sales for {:?}",
        pause(true),
        pause(false)
    );

    // A buyer may have been refused because a unit was on its way back: then it is sold now.
    for sale in &sales {
        eventually("everything is sold", TIMEOUT, || async {
            drained(&redis).await;
            if database.orders(*sale).await == STOCK {
                return true;
            }
            for user in &users {
                buy_until_decided(&urls, user.clone(), *sale).await;
            }
            false
        })
        .await;
        assert_eq!(database.stock(*sale).await, 0, "sale {sale}");
    }
    let buyers = "SELECT COUNT(DISTINCT user_id, voucher_id) FROM tb_voucher_order";
    assert_eq!(database.number(buyers).await, STOCK * sales.len() as i64);
    for Bought { sale, user, order, .. } in bought {
        let Some(order) = order else { continue };
        let row = format!("id = {order} AND user_id = {} AND voucher_id = {sale}", user.id);
        let row = format!("SELECT COUNT(*) FROM tb_voucher_order WHERE {row}");
        if database.number(&row).await == 1 {
            continue;
        }
        // Only "pending" may turn into a refusal, and its buyer is told so.
        assert!(sales[3..].contains(&sale), "order {order} of sale {sale} is lost");
        let answer =
            get(&urls[0], &format!("/voucher-order/{order}")).token(&user.token).send().await;
        let code = answer.body["code"].as_str().unwrap_or_default();
        assert!(
            ["SOLD_OUT", "ALREADY_ORDERED", "ORDER_FAILED"].contains(&code),
            "sale {sale}: {answer:?}"
        );
    }
}
