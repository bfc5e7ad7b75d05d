//! A Redis whose clock is stepped under a running service, by libfaketime (Debian's package `faketime`, which `./dev test`
//! installs); and orders about whose age the clocks disagree. The database's clock is stepped in [`crate::slow`].

use std::path::Path;
use std::time::Duration;

use redis::AsyncCommands;

use crate::lookup::{AN_HOUR_OF_GRACE, HOUR, MINUTE, age_stream, drawn_ago};
use crate::stream_admission::unknown_order;
use crate::support::api::get;
use crate::support::eventually;
use crate::support::stack::{Stack, buy, buy_eventually};
use testkit::clock;
use testkit::proxy::Mode;
use testkit::raw::query;
use tokio::time::Instant;

/// The environment of a server whose clock follows `file`, and is the machine's plus this many seconds.
fn with_clock(file: &Path, seconds: i32) -> Vec<(&'static str, String)> {
    let advice = "libfaketime is missing: install the package faketime, as `./dev test` does";
    assert!(clock::library().is_some(), "{advice}");
    clock::step(file, seconds).unwrap();
    clock::environment(file)
}

/// By the clock of Redis, which was stepped back, a dead consumer's entries were delivered in the future: for an hour they are
/// not idle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_a_dead_consumer_are_taken_over_when_the_clock_of_redis_steps_back() {
    let mut stack = Stack::start(0, &[]).await;
    let file = stack.redis.data().join("clock");
    stack.redis.environment = with_clock(&file, 0);
    stack.redis.restart().await;
    stack.add_instance(&[]).await;
    let sale = stack.publish(5, "stream").await;
    let users = stack.users(3).await;
    let holder = stack.lock_sale(sale).await;
    let pending = stack.pending_orders(&users, sale).await.len();
    stack.delivered(pending).await;
    let mut redis = stack.redis.conn().await;
    stack.instances.pop().unwrap().kill();
    clock::step(&file, -3600).unwrap();
    eventually("the clock of Redis is stepped", async || {
        let (now, _): (i64, i64) = query(&mut redis, "TIME", &[]).await;
        (now - chrono::Utc::now().timestamp() + 3600).abs() < 60
    })
    .await;
    stack.add_instance(&[]).await;
    holder.rollback().await.unwrap();
    eventually("they are taken over", async || {
        stack.orders(sale).await == pending as i64
    })
    .await;
    stack.stream_drained().await;
}

/// An instance has an entry that it could not decide, because the database was away. By the clock of Redis, which was stepped
/// back, the entry is not idle for a minute and a half.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_decides_its_own_entries_when_the_clock_of_redis_steps_back() {
    let mut stack = Stack::start(0, &[]).await;
    let file = stack.redis.data().join("clock");
    stack.redis.environment = with_clock(&file, 0);
    stack.redis.restart().await;
    let args = [
        "--stream-min-idle-ms",
        "3000",
        "--database-timeout-ms",
        "1500",
    ];
    stack.add_proxied(&args, false).await;
    let sale = stack.publish(5, "stream").await;
    let user = stack.users(1).await.remove(0);
    let holder = stack.lock_sale(sale).await;
    stack.buy(&user, sale).await.bought();
    stack.proxies.database.set(Mode::Cut);
    let log_line = "the database does not answer; nothing is read";
    stack.instances[0].wait_for_line(log_line).await;
    let mut redis = stack.redis.conn().await;
    clock::step(&file, -90).unwrap();
    eventually("the clock of Redis is stepped", async || {
        let (now, _): (i64, i64) = query(&mut redis, "TIME", &[]).await;
        (now - chrono::Utc::now().timestamp() + 90).abs() < 30
    })
    .await;
    holder.rollback().await.unwrap();
    stack.proxies.database.set(Mode::Forward);
    eventually("the order is committed", async || {
        stack.orders(sale).await == 1
    })
    .await;
}

/// The clock of the instance that draws the id is two minutes behind, that of another instance two minutes ahead. Both look the
/// order up while the call that admits it is still on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_look_up_denies_an_order_that_is_still_to_come_whatever_the_instances_clocks_say() {
    let mut stack = Stack::start(0, &[]).await;
    let folder = stack.redis.data().to_owned();
    let mut env = stack.env();
    env[1].1 = format!("redis://{}/", stack.proxies.redis.address);
    for (name, seconds) in [("behind", -120), ("ahead", 120)] {
        let file = folder.join(name);
        let mut env = env.clone();
        env.extend(with_clock(&file, seconds));
        stack.add_instance_with(&[], &env).await;
    }
    let sale = stack.publish(5, "stream").await;
    let users = stack.users(3).await;
    let counter = stack.keys.stock(sale);
    let mut redis = stack.redis.conn().await;
    // Waits until the stream's data are old enough for a "no such order".
    stack.settled().await;
    // So that the sale is not counted again meanwhile.
    let holder = stack.lock_sale(sale).await;
    let _: () = redis.set(&counter, 0).await.unwrap();
    let held = Mode::HoldRequestWith(users[0].id.to_string().leak());
    stack.proxies.redis.set(held);
    let answer = stack.buy(&users[0], sale).await;
    let id = unknown_order(&answer);
    let mut look_ups = Vec::new();
    for instance in &stack.instances {
        let path = format!("/voucher-order/{id}");
        let look_up = get(&instance.url, &path)
            .token(&users[0].token)
            .send()
            .await;
        look_up.shows_no_order();
        look_ups.push(look_up.status == 200);
    }
    let _: () = redis.set(&counter, 5).await.unwrap();
    stack.proxies.redis.pass_held().await;
    holder.rollback().await.unwrap();
    stack.stream_drained().await;
    let comes = stack.database.has_order(id, users[0].id).await;
    println!("no such order: {look_ups:?}; it comes: {comes}");
    if comes {
        assert_eq!(look_ups, [false, false], "a no, and then the order");
    }
    // Both sell all the same.
    for (user, url) in users[1..].iter().zip(stack.urls()) {
        buy_eventually(&url, user, sale).await;
    }
    stack.stream_drained().await;
    assert!(stack.orders(sale).await >= 2);
}

/// Inserts an order that is `age` seconds old by the database's clock and `id_age` by the seconds in its id; returns the id.
async fn insert_order(stack: &Stack, sale: i64, user: i64, age: i64, id_age: i64) -> i64 {
    // The zone in which ids are made.
    let now = chrono::Utc::now()
        .with_timezone(&chrono_tz::Asia::Shanghai)
        .naive_local();
    let seconds = now.and_utc().timestamp() - 1_640_995_200 - id_age;
    let id = (seconds << 32) + user;
    let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id, create_time) VALUES";
    let row = format!("({id}, {user}, {sale}, NOW() - INTERVAL {age} SECOND)");
    stack.database.run(&format!("{insert} {row}")).await;
    id
}

async fn status(stack: &Stack, order: i64) -> i64 {
    stack
        .database
        .number(&format!(
            "SELECT status FROM tb_voucher_order WHERE id = {order}"
        ))
        .await
}

/// Orders expire after ten minutes, if both clocks say so. If the database's clock was stepped back, so that an order seems to
/// be from the future, its id decides. If the id is from the future, because a clock that was ahead dated it, the order waits
/// until that time has come.
#[tokio::test]
async fn no_step_of_one_clock_expires_an_order_early() {
    let stack = Stack::start(1, &["--unpaid-seconds", "600"]).await;
    let sale = stack.publish(100, "reentrant-lock").await;
    let hour = 3600;
    let young = [
        (60, 60),
        // The database's clock was stepped forward, or was behind when the order was made.
        (60 + hour, 60),
        // This node's clock was stepped forward, or that of the node that made the id was behind.
        (60, 60 + hour),
        // The database's clock was stepped back, or was ahead when the order was made.
        (60 - hour, 60),
        (60, 60 - hour),
        (700, 700 - hour),
        // The database's clock dated the id while it was ahead, and was stepped forward again.
        (60 + hour, 60 - hour),
        // Both at once: nothing can be said, so nothing is done.
        (60 - hour, 60 - hour),
    ];
    let old = [
        (700, 700),
        (700 + hour, 700),
        (700, 700 + hour),
        (700 - hour, 700),
    ];
    let mut young_ids = Vec::new();
    for (user, (age, id_age)) in (1..).zip(young) {
        young_ids.push(insert_order(&stack, sale, user, age, id_age).await);
    }
    let mut old_ids = Vec::new();
    for (user, (age, id_age)) in (101..).zip(old) {
        old_ids.push(insert_order(&stack, sale, user, age, id_age).await);
    }
    stack.database.set_sale(sale, "stock = stock - 12").await;
    for (id, ages) in old_ids.iter().zip(old) {
        eventually(&format!("{ages:?} is cancelled"), async || {
            status(&stack, *id).await == 4
        })
        .await;
    }
    for (id, ages) in young_ids.iter().zip(young) {
        assert_eq!(status(&stack, *id).await, 1, "{ages:?}");
    }
}

/// The clock of Redis is behind the database's, and then ahead of it. By either clock, a call that makes the order may still be
/// in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_missing_once_it_is_old_by_the_clock_of_redis_and_by_the_databases() {
    let mut stack = Stack::start(0, &[]).await;
    let file = stack.redis.data().join("clock");
    stack.redis.environment = with_clock(&file, 0);
    stack.redis.restart().await;
    stack.add_instance(&AN_HOUR_OF_GRACE).await;
    let user = stack.users(1).await.remove(0);
    let mut redis = stack.redis.conn().await;
    for (offset, id_age, status) in [
        (-HOUR, 90 * MINUTE, 503),
        (-HOUR, 150 * MINUTE, 200),
        // By the database's clock, half a minute is enough.
        (HOUR, 0, 503),
        (HOUR, 90 * MINUTE, 200),
    ] {
        let step = i32::try_from(offset).expect("some hours");
        clock::step(&file, step).unwrap();
        eventually("the clock of Redis is stepped", async || {
            let (now, _): (i64, i64) = query(&mut redis, "TIME", &[]).await;
            (now - chrono::Utc::now().timestamp() - offset).abs() < MINUTE
        })
        .await;
        age_stream(&stack, 2 * HOUR).await;
        let answer = stack.look_up(&user, drawn_ago(id_age)).await;
        let code = if status == 503 {
            "UNAVAILABLE"
        } else {
            "ORDER_NOT_FOUND"
        };
        println!("the clock of Redis is {offset} s ahead, an id of {id_age} s");
        answer.refused(status, code);
    }
}

/// The clock of one of three instances is two minutes behind, that of another two minutes ahead. Which of them made an id, and
/// which is asked, makes no difference: the database's clock says whether an order under that id may still be on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_missing_by_the_databases_clock_whichever_instance_is_asked() {
    let mut stack = Stack::start(1, &[]).await;
    for seconds in [-120, 120] {
        let file = stack.redis.data().join(format!("clock{seconds}"));
        let mut env = stack.env();
        env.extend(with_clock(&file, seconds));
        stack.add_instance_with(&[], &env).await;
    }
    let sale = stack.publish(500, "reentrant-lock").await;
    let users = stack.users(30).await;
    stack.settled().await;
    let mut buyers = users.iter();
    let urls = stack.urls();
    // The clock of instance 0 is right, that of 1 is behind, and that of 2 is ahead.
    for (maker, responder) in [(0, 2), (1, 0), (1, 1), (1, 2)] {
        let answer = loop {
            let user = buyers.next().expect("no machine is as slow as that");
            let began = Instant::now();
            let order = buy(&urls[maker], user, sale).await.bought();
            let path = format!("/voucher-order/{}", order + 1_000_000);
            let answer = get(&urls[responder], &path).token(&user.token).send().await;
            // The grace is 3 s here, and an id has whole seconds only.
            if began.elapsed() < Duration::from_millis(1500) {
                break answer;
            }
        };
        assert_eq!(answer.status, 503, "{maker} {responder} {answer:?}");
        answer.refused(503, "UNAVAILABLE");
    }
    let old = (150_000_000_i64 << 32) + 1;
    for url in &urls {
        let answer = get(url, &format!("/voucher-order/{old}"))
            .token(&users[0].token)
            .send()
            .await;
        answer.refused(200, "ORDER_NOT_FOUND");
    }
}
