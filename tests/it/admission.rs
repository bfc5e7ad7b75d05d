//! Load shedding and rate limits of purchases: the limit in flight, limits per user and per address, and what a refusal
//! costs and replies.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use workload::burst;

use crate::law;
use crate::resilience::while_sale_is_locked;
use crate::signed_in_reads::assert_limited;
use crate::support::api::{Answer, get, metric, post};
use crate::support::eventually;
use crate::support::stack::{Proxies, SignedIn, Stack, buy};
use testkit::proxy::Mode;

/// Buys as a client at `address` behind a trusted proxy.
async fn buy_from(address: &str, base: &str, user: &SignedIn, sale: i64) -> Answer {
    let call = post(base, &format!("/voucher-order/seckill/{sale}")).token(&user.token);
    call.header("x-forwarded-for", address).send().await
}

#[tokio::test]
async fn a_shed_request_costs_neither_server_and_a_client_that_hangs_up_releases_no_permit() {
    let stack = Stack::behind_proxies(&["--max-purchases", "2"]).await;
    let Proxies { database, redis } = &stack.proxies;
    let url = stack.url().to_owned();
    let sale = stack.publish(200, "row-lock").await;
    let users = stack.users(100).await;

    // Two purchases hang in the database.
    database.set(Mode::Hang);
    let stuck: Vec<_> = users[..2].iter().map(|user| stack.start_buying(user, sale)).collect();
    eventually("both are in flight", || async {
        metric(&url, "seckill_purchases_in_flight").await == 2
    })
    .await;
    let before = (redis.requests(), database.requests());
    // Each has a session that is not cached. All at once, because a refusal is delayed.
    let began = Instant::now();
    let late = users[2..].iter().map(|user| buy(&url, user, sale));
    for answer in join_all(late).await {
        answer.refused(503, "OVERLOADED");
    }
    assert!(began.elapsed() >= Duration::from_millis(150), "{:?}", began.elapsed());
    let asked = (redis.requests() - before.0, database.requests() - before.1);
    // Some are sent every second all the same.
    let others = 20 + 30 * began.elapsed().as_secs();
    assert!(asked.0 < others && asked.1 < others, "{asked:?} for 98 refusals");
    assert_eq!(metric(&url, "seckill_purchases_refused_total{reason=\"overloaded\"}").await, 98);
    // Other routes need no permit.
    get(&url, "/health/live").send().await.data();

    database.set(Mode::Forward);
    for purchase in stuck {
        purchase.await.expect("an answer");
    }
    stack.idle().await;
    buy(&url, &users[5], sale).await.data();

    // A client that hangs up releases no permit: its purchase continues and keeps it.
    let sale = stack.publish(5, "reentrant-lock").await;
    while_sale_is_locked(&stack, sale, async {
        for user in &users[..2] {
            let hanging = stack.start_buying(user, sale);
            stack.wait_for_purchase_lock(user).await;
            hanging.abort();
            hanging.await.expect_err("it was aborted");
        }
        // Long enough for the server to have noticed: each refusal takes 150 ms at least.
        for _ in 0..8 {
            buy(&url, &users[2], sale).await.refused(503, "OVERLOADED");
        }
    })
    .await;
    stack.idle().await;
    for user in &users[..2] {
        buy(&url, user, sale).await.refused(200, "ALREADY_ORDERED");
    }
    buy(&url, &users[2], sale).await.data();
}

#[tokio::test]
async fn a_flood_of_a_user_or_an_address_is_refused_and_others_are_served() {
    let limits = ["--per-address-per-second", "2", "--per-user-per-second", "2"];
    let stack = Stack::start(1, &limits).await;
    let url = stack.url();
    let users = stack.users(82).await;
    let sale = stack.publish(1000, "reentrant-lock").await;
    // All are counted, and of a second's worth none is refused.
    let assert_refused = async |reason: &str, answers: &[Answer]| {
        let limited = answers.iter().filter(|answer| answer.status == 429).count();
        assert!(answers.len() - limited >= 2, "{limited} were refused");
        let name = format!("seckill_purchases_refused_total{{reason=\"{reason}\"}}");
        assert_eq!(metric(url, &name).await, limited as u64, "{reason}");
    };
    let (storm, others) = users.split_first().unwrap();
    // From many addresses, so that the limit per address does not count.
    let addresses: Vec<_> = (0..200).map(|n| format!("198.51.100.{n}")).collect();
    let began = Instant::now();
    let flood = addresses.iter().map(|address| buy_from(address, url, storm, sale));
    let meanwhile = addresses.iter().zip(&others[..40]);
    let meanwhile = meanwhile.map(|(address, other)| buy_from(address, url, other, sale));
    let (answers, served) = tokio::join!(join_all(flood), join_all(meanwhile));
    assert_limited(&answers, began, 2);
    assert_refused("user", &answers).await;
    for answer in served {
        answer.data();
    }

    // Of users who have not asked yet.
    let began = Instant::now();
    let flood = others[40..80].iter().map(|user| buy_from("203.0.113.7", url, user, sale));
    let answers = join_all(flood).await;
    assert_limited(&answers, began, 2);
    assert_refused("address", &answers).await;
    // An unknown session from there is refused, too.
    for _ in 0..30 {
        let call = post(url, &format!("/voucher-order/seckill/{sale}")).token(&"a".repeat(32));
        let answer = call.header("x-forwarded-for", "203.0.113.7").send().await;
        assert!(answer.status == 429 || answer.status == 401, "{answer:?}");
    }
    // Another address is served, and this machine is not limited.
    buy_from("203.0.113.8", url, &users[81], sale).await.data();
    for _ in 0..60 {
        buy(url, storm, sale).await.refused(200, "ALREADY_ORDERED");
    }
}

/// Far more requests at once than permits: every reply is true, and everything is sold in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overloaded_sale_violates_no_invariant() {
    let stack = Stack::start(2, &["--max-purchases", "8"]).await;
    for strategy in
        [workload::ladder::Strategy::ReentrantLock, workload::ladder::Strategy::GroupCommit]
    {
        let mut options = law::options(&stack, strategy, 150, 1000);
        options.tries = 3;
        let report = burst::run(&options).await.expect("the burst runs");
        assert!(report.verdict.is_clean(), "{strategy}: {:?}", report.verdict);
        assert!(report.replies.contains_key("OVERLOADED"), "{strategy}: {:?}", report.replies);
        assert!(report.verdict.orders > 0, "{strategy}: {:?}", report.replies);
    }
}
