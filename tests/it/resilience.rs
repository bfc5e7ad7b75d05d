//! Purchases while Redis or the database is away, or a COMMIT gets no reply: no answer is false, and sales sell again
//! afterwards. Whole sales through faults are rounds of chaos, in [`crate::slow`].

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use strategies::Strategy;

use crate::support::api::{get, metric, post};
use crate::support::eventually;
use crate::support::stack::Stack;
use testkit::proxy::{Mode, Proxy};

/// Strategies for production whose success means committed.
pub const COMMITTING: [Strategy; 2] = [Strategy::ReentrantLock, Strategy::GroupCommit];

/// Locks a sale's row while `work` runs, so that purchases wait before their commit.
pub async fn while_sale_is_locked<T>(stack: &Stack, sale: i64, work: impl Future<Output = T>) -> T {
    let holder = stack.lock_sale(sale).await;
    let result = work.await;
    holder.rollback().await.unwrap();
    result
}

/// Whether the instance, the database and Redis are available, as the metrics say: 1 is yes.
async fn readiness(stack: &Stack) -> [u64; 3] {
    let series = [
        "seckill_ready",
        "seckill_server_available{server=\"database\"}",
        "seckill_server_available{server=\"redis\"}",
    ];
    let mut values = [0; 3];
    for (value, series) in values.iter_mut().zip(series) {
        *value = metric(stack.url(), series).await;
    }
    values
}

#[tokio::test]
async fn without_redis_purchases_get_503_until_it_is_back() {
    let mut stack = Stack::lab(1).await;
    let sale = stack.publish(2, "reentrant-lock").await;
    let user = stack.users(1).await.remove(0);
    stack.redis.kill();
    let started = Instant::now();
    let answer = stack.buy(&user, sale).await;
    answer.refused(503, "UNAVAILABLE");
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "{:?}",
        started.elapsed()
    );
    // Public reads do not need Redis, even with a token; readiness says what is missing.
    get(stack.url(), "/shop/1")
        .token(&user.token)
        .send()
        .await
        .data();
    // A busy machine's database may not answer a probe in time.
    eventually("readiness names what is away", async || {
        let ready = get(stack.url(), "/health/ready").send().await;
        assert_eq!((ready.status, &ready.body["redis"]), (503, &json!(false)));
        ready.body["database"] == true && readiness(&stack).await == [0, 1, 0]
    })
    .await;
    get(stack.url(), "/health/live").send().await.data();
    post(stack.url(), "/user/code?phone=13800000001")
        .send()
        .await
        .refused(503, "UNAVAILABLE");

    stack.redis.restart().await;
    stack.buy_eventually(&user, sale).await;
    stack.ready().await;
}

/// The server has ended: nothing listens at its address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_says_why_the_database_is_away_and_not_once_for_each_purchase() {
    let mut stack = Stack::behind_proxies(&["--database-timeout-ms", "1000"]).await;
    let sale = stack.publish(2, "reentrant-lock").await;
    let users = stack.users(30).await;
    // The old proxy is dropped, and with it the listener that the instance connects to.
    let new_proxy = Proxy::start(stack.database.server().to_owned()).await;
    stack.proxies.database = new_proxy.expect("a proxy");
    let began = Instant::now();
    for _ in 0..2 {
        let purchases = users.iter().map(|user| stack.buy(user, sale));
        for answer in join_all(purchases).await {
            answer.refused(503, "UNAVAILABLE");
        }
    }
    let instance = &stack.instances[0];
    let warnings = || {
        let mut lines = instance.lines_with("database unavailable");
        lines.retain(|line| line.contains("WARN"));
        lines
    };
    eventually("the reason is said", async || {
        warnings().iter().any(|line| line.contains("refused"))
    })
    .await;
    instance.wait_for_line("outbox of returned stock").await;
    let seconds = began.elapsed().as_secs() as usize;
    let written = warnings();
    assert!(written.len() <= seconds + 2, "in {seconds} s: {written:#?}");
    assert_eq!(instance.lines_with("pool timed out"), [""; 0]);
    assert_eq!(instance.lines_with("ERROR"), [""; 0]);
}

/// A sale of two vouchers on each strategy whose success means committed.
pub async fn committing_sales(stack: &Stack) -> Vec<i64> {
    stack
        .publish_each(2, COMMITTING.iter().map(|strategy| strategy.name()))
        .await
}

#[tokio::test]
async fn without_the_database_purchases_get_503_until_it_is_back() {
    let stack = Stack::behind_proxies(&[]).await;
    let sales = committing_sales(&stack).await;
    let user = stack.users(1).await.remove(0);
    for mode in [Mode::Cut, Mode::Hang] {
        stack.proxies.database.set(mode);
        for sale in &sales {
            let started = Instant::now();
            stack.buy(&user, *sale).await.refused(503, "UNAVAILABLE");
            let took = started.elapsed();
            assert!(took < Duration::from_secs(20), "{mode:?}: {took:?}");
        }
        let ready = get(stack.url(), "/health/ready").send().await;
        assert_eq!(
            (ready.status, &ready.body["database"]),
            (503, &json!(false)),
            "{mode:?}"
        );
        assert_eq!(readiness(&stack).await, [0, 0, 1], "{mode:?}");
        stack.proxies.database.set(Mode::Forward);
        stack.ready().await;
        assert_eq!(readiness(&stack).await, [1, 1, 1], "{mode:?}");
    }
    for sale in sales {
        stack.buy_eventually(&user, sale).await;
        assert_eq!(stack.orders(sale).await, 1);
    }
}

/// Part of the text that commits a purchase, and of no text that decides the outcome of one.
pub const TAKES_STOCK: &str = "UPDATE tb_seckill_voucher";

/// If the order was made, or if this is not known, the answer has its id, so that the buyer can look it up.
#[tokio::test]
async fn a_commit_without_a_reply_is_resolved_before_the_answer_or_told_as_unknown() {
    let stack = Stack::patient_behind_proxies(&[]).await;
    let users = stack.users(2).await;
    let lost_replies = || {
        stack.instances[0]
            .lines_with("the commit's reply was lost")
            .len()
    };
    let buy_with = async |mode, user, sale| {
        let before = lost_replies();
        stack.proxies.database.set(mode);
        let answer = stack.buy(user, sale).await;
        stack.proxies.database.set(Mode::Forward);
        eventually("it is logged", async || lost_replies() > before).await;
        answer
    };
    for sale in committing_sales(&stack).await {
        buy_with(Mode::LoseRequest(TAKES_STOCK), &users[0], sale)
            .await
            .refused(503, "UNAVAILABLE");
        assert_eq!(stack.tables(sale).await, (0, 2), "a definite no");
        let id = buy_with(Mode::LoseReplyTo(TAKES_STOCK), &users[1], sale)
            .await
            .bought();
        assert!(stack.database.has_order(id, users[1].id).await);
    }
    for sale in committing_sales(&stack).await {
        stack.ready().await;
        let answer = buy_with(Mode::LoseCommitReplyThenCut, &users[0], sale).await;
        answer.refused(503, "OUTCOME_UNKNOWN");
        let id: i64 = answer.body["orderId"]
            .as_str()
            .expect("an id")
            .parse()
            .unwrap();
        eventually("the order is found", async || {
            stack.look_up(&users[0], id).await.body["data"]["id"] == id
        })
        .await;
        let again = stack.buy(&users[0], sale).await;
        assert_eq!(again.body["orderId"], id.to_string(), "{again:?}");
    }
}

/// For a while neither the text that commits nor the text that decides its outcome reaches the database. The instance goes on
/// trying, so the buyer need not wait for half a minute, until a look-up is certain by the age of the id.
#[tokio::test]
async fn an_unknown_outcome_is_decided_as_soon_as_the_database_answers() {
    let stack = Stack::behind_proxies(&["--database-timeout-ms", "1000"]).await;
    let user = stack.users(1).await.remove(0);
    let mut undecided_orders = Vec::new();
    for sale in committing_sales(&stack).await {
        stack.ready().await;
        stack.proxies.database.set(Mode::LoseCommit);
        let answer = stack.buy(&user, sale).await;
        answer.refused(503, "OUTCOME_UNKNOWN");
        stack.proxies.database.set(Mode::Forward);
        let id: i64 = answer.body["orderId"]
            .as_str()
            .expect("an id")
            .parse()
            .unwrap();
        undecided_orders.push(id);
    }
    for id in undecided_orders {
        let mut last = None;
        eventually("the order is refused", async || {
            let looked_up = stack.look_up(&user, id).await;
            let is_refused = looked_up.body["code"] == "ORDER_FAILED";
            last = Some(looked_up);
            is_refused
        })
        .await;
        last.expect("an answer").refused(200, "ORDER_FAILED");
    }
}

/// An instance goes on deciding for a minute. A drain may be shorter, and does not wait for that.
#[tokio::test]
async fn an_instance_ends_although_it_has_an_outcome_to_decide() {
    let mut stack = Stack::behind_proxies(&["--database-timeout-ms", "1000"]).await;
    let user = stack.users(1).await.remove(0);
    let sale = stack.publish(1, "row-lock").await;
    stack.ready().await;
    stack.proxies.database.set(Mode::LoseCommit);
    let answer = stack.buy(&user, sale).await;
    answer.refused(503, "OUTCOME_UNKNOWN");
    let instance = &mut stack.instances[0];
    instance.terminate();
    instance.ended().await;
}

/// The database is silent for as long as this takes. Two probes, one after the other, are answered before the purchase is given
/// up.
#[tokio::test]
async fn readiness_gives_up_on_a_silent_server_sooner_than_a_purchase() {
    let stack = Stack::patient_behind_proxies(&[]).await;
    let sale = stack.publish(1, "reentrant-lock").await;
    let user = stack.users(1).await.remove(0);
    stack.proxies.database.set(Mode::Hang);
    let purchase = stack.start_buying(&user, sale);
    for _ in 0..2 {
        let ready = get(stack.url(), "/health/ready").send().await;
        let servers = [&ready.body["database"], &ready.body["redis"]];
        assert_eq!(
            (ready.status, servers),
            (503, [&json!(false), &json!(true)])
        );
    }
    assert!(!purchase.is_finished(), "{:?}", purchase.await);
    stack.proxies.database.set(Mode::Forward);
    purchase.await.expect("an answer").bought();
}
