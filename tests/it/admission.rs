//! Load shedding and rate limits, of purchases and of signed-in users' other requests: the limit in flight, the limits per user
//! and per address, and what a refusal costs and replies.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hyper::Method;
use tokio::task::JoinSet;

use crate::reads::{PATHS, lock, unlock};
use crate::resilience::while_sale_is_locked;
use crate::session_tracking::lookups;
use crate::support::api::{Answer, call, get, metric, metric_is};
use crate::support::eventually;
use crate::support::stack::{Proxies, Stack, buy};
use testkit::proxy::Mode;
use testkit::raw::calls_of;

/// A command that the script for sessions calls once for each session, and that nothing else calls here: the sale is on a
/// strategy without locks in Redis.
const SESSION_LOOK_UP: &str = "hmget";

#[tokio::test]
async fn a_shed_request_costs_neither_server_and_a_client_that_hangs_up_releases_no_permit() {
    let stack = Stack::patient_behind_proxies(&["--max-purchases", "2"]).await;
    let Proxies { database, redis } = &stack.proxies;
    let url = stack.url().to_owned();
    let sale = stack.publish(200, "row-lock").await;
    let users = stack.users(100).await;

    // Two purchases hang in the database.
    database.set(Mode::Hang);
    let stuck: Vec<_> = users[..2]
        .iter()
        .map(|user| stack.start_buying(user, sale))
        .collect();
    metric_is(&url, "seckill_purchases_in_flight", 2).await;
    let mut raw = stack.redis.conn().await;
    let looked_up_before = calls_of(&mut raw, SESSION_LOOK_UP).await;
    let redis_before = redis.requests();
    let database_before = database.requests();
    // The sessions of these users are not cached. All purchases are sent at once, because a refusal is delayed.
    let began = Instant::now();
    let further_purchases = users[2..].iter().map(|user| buy(&url, user, sale));
    for answer in join_all(further_purchases).await {
        answer.refused(503, "OVERLOADED");
    }
    assert!(
        began.elapsed() >= Duration::from_millis(150),
        "{:?}",
        began.elapsed()
    );
    let to_redis = redis.requests() - redis_before;
    let to_database = database.requests() - database_before;
    let requests = (to_redis, to_database);
    // The instance sends some requests every second by itself.
    let background_requests = 20 + 30 * began.elapsed().as_secs();
    assert!(
        to_redis < background_requests && to_database < background_requests,
        "{requests:?} for 98 refusals"
    );
    // One request may look up many sessions, so these are counted by themselves.
    let looked_up = calls_of(&mut raw, SESSION_LOOK_UP).await - looked_up_before;
    assert_eq!(looked_up, 0, "sessions for 98 refusals");
    assert_eq!(
        metric(
            &url,
            "seckill_purchases_refused_total{reason=\"overloaded\"}"
        )
        .await,
        98
    );
    // Other routes need no permit.
    get(&url, "/health/live").send().await.data();

    database.set(Mode::Forward);
    for purchase in stuck {
        purchase.await.expect("an answer");
    }
    metric_is(&url, "seckill_purchases_in_flight", 0).await;
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
        let began = Instant::now();
        for _ in 0..8 {
            buy(&url, &users[2], sale).await.refused(503, "OVERLOADED");
        }
        let took = began.elapsed();
        assert!(took >= 8 * Duration::from_millis(150), "{took:?}");
    })
    .await;
    metric_is(&url, "seckill_purchases_in_flight", 0).await;
    for user in &users[..2] {
        buy(&url, user, sale).await.refused(200, "ALREADY_ORDERED");
    }
    buy(&url, &users[2], sale).await.data();
}

/// Reads have a limit of their own, beside that of purchases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_of_a_signed_in_user_holds_a_permit_until_it_is_answered() {
    let stack = Stack::start(1, &["--max-purchases", "2"]).await;
    let users = stack.users(3).await;
    let stranger = lock(&stack, "tb_voucher_order WRITE").await;
    let mut reads = JoinSet::new();
    for user in &users[..2] {
        let read = get(stack.url(), "/voucher-order/of/me").token(&user.token);
        reads.spawn(read.send());
    }
    eventually("both wait for the table", async || {
        stack.database.waiting().await == 2
    })
    .await;
    for path in PATHS {
        let read = get(stack.url(), path).token(&users[2].token);
        read.send().await.refused(503, "OVERLOADED");
    }
    unlock(stranger).await;
    for answer in reads.join_all().await {
        answer.data();
    }
    let refused = "seckill_signed_in_refused_total{reason=\"overloaded\"}";
    assert_eq!(metric(stack.url(), refused).await, PATHS.len() as u64);
    let read = get(stack.url(), "/voucher-order/of/me").token(&users[2].token);
    read.send().await.data();
}

/// Asserts that of one client's requests, which got these answers, about two a second were served and the others refused;
/// returns how many were refused.
fn assert_limited(answers: &[Answer], since: Instant) -> u64 {
    let (limited, served): (Vec<_>, Vec<_>) =
        answers.iter().partition(|answer| answer.status == 429);
    for answer in &limited {
        answer.refused(429, "TOO_MANY_REQUESTS");
    }
    assert!(
        served.iter().all(|answer| answer.status == 200),
        "{served:?}"
    );
    let allowed = 2 * (2 + since.elapsed().as_secs() as usize);
    assert!(!limited.is_empty(), "none in {:?}", since.elapsed());
    assert!(
        (2..=allowed).contains(&served.len()),
        "{} were served",
        served.len()
    );
    limited.len() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_a_user_or_an_address_is_refused_and_others_are_served() {
    let limits = [
        "--per-address-per-second",
        "2",
        "--per-user-per-second",
        "2",
    ];
    let stack = Stack::start(1, &limits).await;
    stack.settled().await;
    let users = stack.users(60).await;
    let sale = stack.publish(1000, "reentrant-lock").await;
    let purchase = format!("/voucher-order/seckill/{sale}");
    let mut refused = Vec::new();
    for (step, path) in [&*purchase].into_iter().chain(PATHS).enumerate() {
        let method = if path == purchase {
            Method::POST
        } else {
            Method::GET
        };
        let ask = |token: &str| call(method.clone(), stack.url(), path).token(token);
        // As a client behind a trusted proxy.
        let ask_from =
            |address: &str, token: &str| ask(token).header("x-forwarded-for", address).send();
        // From many addresses, so that the limit per address does not count.
        let flooding_token = &users[step].token;
        let began = Instant::now();
        let addresses: Vec<_> = (1..60).map(|n| format!("198.51.{step}.{n}")).collect();
        let flood = addresses
            .iter()
            .map(|address| ask_from(address, flooding_token));
        refused.push(assert_limited(&join_all(flood).await, began));
        // Other users are served, and a user who reads too much can still buy.
        let answer = ask_from(&format!("203.0.113.{step}"), &users[10 + step].token).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        if path != purchase {
            let address = format!("203.0.114.{step}");
            let purchase = stack
                .purchase(&users[step], sale)
                .header("x-forwarded-for", &address);
            purchase.send().await.data();
        }

        let address = format!("192.0.2.{step}");
        let began = Instant::now();
        // Not the users above: a request that the address's limit lets through counts for its user's rate, too.
        let flood = users[20..]
            .iter()
            .map(|user| ask_from(&address, &user.token));
        refused.push(assert_limited(&join_all(flood).await, began));
        // Unknown sessions from that address are limited, too, and these refusals are delayed.
        let looked_up = lookups(stack.url()).await;
        let nobody = "a".repeat(32);
        let unknown = (0..30).map(async |_| {
            let sent_at = Instant::now();
            let answer = ask_from(&address, &nobody).await;
            (answer.status, sent_at.elapsed())
        });
        let (limited, not_limited): (Vec<_>, Vec<_>) = join_all(unknown)
            .await
            .into_iter()
            .partition(|(status, _)| *status == 429);
        let are_unauthorized = not_limited.iter().all(|(status, _)| *status == 401);
        assert!(are_unauthorized, "{path}: {not_limited:?}");
        let fastest = limited.iter().map(|(_, time)| *time).min();
        let delay = Duration::from_millis(150);
        assert!(
            fastest.is_some_and(|time| time >= delay),
            "{path}: {limited:?}"
        );
        // The sessions of requests that were limited were not looked up.
        let looked_up = lookups(stack.url()).await - looked_up;
        assert_eq!(
            looked_up,
            not_limited.len() as u64,
            "{path}: sessions looked up"
        );
        // A client on this machine is not limited.
        let direct = join_all((0..30).map(|_| ask(flooding_token).send())).await;
        assert!(
            direct.iter().all(|answer| answer.status == 200),
            "{path}: {direct:?}"
        );
    }
    let count = async |what: &str, reason: &str| {
        let name = format!("seckill_{what}_refused_total{{reason=\"{reason}\"}}");
        metric(stack.url(), &name).await
    };
    assert_eq!(count("purchases", "user").await, refused[0]);
    assert!(count("purchases", "address").await >= refused[1]);
    assert_eq!(
        count("signed_in", "user").await,
        refused[2] + refused[4] + refused[6]
    );
    assert!(count("signed_in", "address").await >= refused[3] + refused[5] + refused[7]);
}
