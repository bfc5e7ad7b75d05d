//! A purchase has one deadline: it answers by itself before the time limit of its request, and its answer is true.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use futures_util::future::join_all;
use seckill::clock::Zone;
use seckill::error::Error;
use seckill::order::model::{Buyer, NewOrder};
use seckill::order::store::commit::COMMITS_WITHIN;
use seckill::order::store::{OrderStore, Text};
use sqlx::Executor;
use tokio::time::Instant;

use crate::decided::{Scene, place};
use crate::support::api::{get, metric, metric_is};
use crate::support::database::TestDatabase;
use crate::support::stack::Stack;
use crate::support::{PATIENCE, eventually};

/// How many milliseconds a step of the database, a command of Redis and a request may take. The limit of the request is
/// long: even on a busy machine a purchase ends by its own deadline first. Without a deadline it would run into this limit.
fn limits<'a>(database: &'a str, redis: &'a str, request: &'a str) -> [&'a str; 6] {
    [
        "--database-timeout-ms",
        database,
        "--redis-timeout-ms",
        redis,
        "--request-timeout-ms",
        request,
    ]
}

/// Redis stands still while all of them need a number for their order's id, and goes on when all are answered.
#[tokio::test]
async fn buyers_who_wait_for_an_id_are_told_the_truth() {
    let stack = Stack::start(
        1,
        &[&limits("1000", "1000", "40000")[..], &["--id-block", "1"]].concat(),
    )
    .await;
    let sale = stack.publish(100, "row-lock").await;
    let users = stack.users(80).await;
    // Their sessions are remembered, so that nothing but the id needs Redis.
    for user in &users {
        get(stack.url(), "/user/me")
            .token(&user.token)
            .send()
            .await
            .data();
    }
    stack.redis.pause();
    let answers = join_all(users.iter().map(|user| stack.buy(user, sale))).await;
    stack.redis.resume();
    metric_is(stack.url(), "seckill_purchases_in_flight", 0).await;
    for answer in &answers {
        answer.refused(503, "UNAVAILABLE");
    }
    assert_eq!(stack.all_orders().await, 0);
}

#[tokio::test]
async fn nothing_is_committed_if_the_commit_has_not_begun_at_the_deadline() {
    let database = TestDatabase::migrated().await;
    let sale = 9;
    let row = "INSERT INTO tb_seckill_voucher (voucher_id, stock, issued) VALUES (9, 5, 5)";
    database.run(row).await;
    let connected = seckill::connection::mysql::connect(&database.url(), 2, PATIENCE).await;
    let store = OrderStore::new(connected.unwrap(), Zone(chrono_tz::Asia::Shanghai));
    let order = NewOrder {
        id: store.local_seconds() << 32,
        buyer: Buyer {
            user_id: 11,
            voucher_id: sale,
        },
        unguarded: false,
    };
    let deadline = Instant::now() + Duration::from_secs(2);
    let mut transaction = store.begin_until(deadline).await.unwrap();
    assert!(transaction.insert_if_first(&order).await.unwrap());
    tokio::time::sleep_until(deadline).await;
    let outcome = transaction
        .place(&order, Text::default().take([&order]))
        .await;
    assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
    assert_eq!(
        database
            .number("SELECT COUNT(*) FROM tb_voucher_order")
            .await,
        0
    );
}

/// The purchase's INSERT waits for the table, which somebody has locked, until the deadline is over.
#[tokio::test]
async fn nothing_is_committed_if_the_insert_has_waited_past_the_deadline() {
    let scene = Scene::new().await;
    // Its id is 18 s old. Its deadline is 20 s after its id, so two seconds are left.
    let order = scene.order(1, 18);
    let mut stranger = scene.database.pool.acquire().await.expect("a connection");
    let lock = "LOCK TABLES tb_voucher_order WRITE";
    stranger.execute(lock).await.expect("the lock");
    let store = scene.direct.clone();
    let purchase = tokio::spawn(async move { place(&store, &order).await });
    let inserts = "INSERT INTO tb_voucher_order";
    scene.database.wait_for_statement(inserts).await;
    let deadline = scene.direct.drawn_at(order.id) + COMMITS_WITHIN;
    eventually("its deadline is over", async || Utc::now() > deadline).await;
    stranger.execute("UNLOCK TABLES").await.expect("unlocked");
    let outcome = purchase.await.expect("an outcome");
    assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
    assert_eq!(scene.tables().await, (0, 5));
}

/// The database's clock was stepped forward since it was last asked. One purchase is refused for it, and the clock asked again.
#[tokio::test]
async fn the_databases_clock_is_asked_again_when_a_deadline_is_over() {
    let scene = Scene::new().await;
    let connected = seckill::connection::mysql::connect(&scene.database.url(), 1, PATIENCE).await;
    let database = connected.expect("connect");
    let store = OrderStore::new(database.clone(), Zone(chrono_tz::Asia::Shanghai));
    place(&store, &scene.order(1, 0)).await.expect("bought");
    database.clock().set(Utc::now() - TimeDelta::hours(1));
    let refused = place(&store, &scene.order(2, 0)).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    place(&store, &scene.order(3, 0)).await.expect("bought");
    assert_eq!(scene.tables().await, (2, 3));
}

/// Another purchase has locked the last unit and does not end.
#[tokio::test]
async fn unit_rows_gives_up_at_the_deadline() {
    let stack = Stack::start(1, &limits("1000", "300", "40000")).await;
    let sale = stack.publish(1, "unit-rows").await;
    let user = &stack.users(1).await[0];
    let holder = stack
        .database
        .hold("SELECT id FROM tb_stock_unit FOR UPDATE")
        .await;
    let answer = stack.buy(user, sale).await;
    let in_flight = metric(stack.url(), "seckill_purchases_in_flight").await;
    assert_eq!(in_flight, 0, "it goes on after its answer: {answer:?}");
    answer.refused(503, "UNAVAILABLE");
    holder.rollback().await.unwrap();
    assert_eq!(stack.orders(sale).await, 0);
    stack.buy_eventually(user, sale).await;
    assert_eq!(stack.orders(sale).await, 1);
}
