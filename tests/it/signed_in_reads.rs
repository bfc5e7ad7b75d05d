//! Reads of signed-in users: they have limits as purchases have, and are read to their end where the client hangs up.

use std::collections::BTreeSet;
use std::time::Instant;

use futures_util::future::join_all;
use sqlx::{Executor, MySql, pool::PoolConnection};

use crate::support::api::{Answer, get, metric, post};
use crate::support::eventually;
use crate::support::stack::{SignedIn, Stack};

/// All of them that ask the database.
pub const PATHS: [&str; 3] = ["/user/1", "/voucher-order/of/me", "/voucher-order/1"];

/// Locks what they read until [`unlock`].
pub async fn lock_tables(stack: &Stack) -> PoolConnection<MySql> {
    let mut stranger = stack.database.pool.acquire().await.expect("a connection");
    let lock = "LOCK TABLES tb_user WRITE, tb_voucher_order WRITE";
    stranger.execute(lock).await.expect("the locks");
    stranger
}

pub async fn unlock(mut stranger: PoolConnection<MySql>) {
    stranger.execute("UNLOCK TABLES").await.expect("unlocked");
}

/// Reads as a client at `address` behind a trusted proxy.
async fn read_from(stack: &Stack, address: &str, user: &SignedIn, path: &str) -> Answer {
    let call = get(stack.url(), path).token(&user.token);
    call.header("x-forwarded-for", address).send().await
}

/// Asserts that of these answers to one client about as many are no refusals as its rate of a second allows.
pub fn assert_limited(answers: &[Answer], since: Instant, rate: usize) {
    let (limited, served): (Vec<_>, Vec<_>) = answers.iter().partition(|it| it.status == 429);
    for answer in &limited {
        answer.refused(429, "TOO_MANY_REQUESTS");
    }
    assert!(served.iter().all(|answer| answer.status == 200), "{served:?}");
    let allowed = rate * (2 + since.elapsed().as_secs() as usize);
    assert!(!limited.is_empty(), "none in {:?}", since.elapsed());
    assert!(served.len() <= allowed, "{} of {} were served", served.len(), answers.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_a_user_or_an_address_over_its_rate_are_refused() {
    let limits = ["--per-user-per-second", "1", "--per-address-per-second", "1"];
    let stack = Stack::start(1, &limits).await;
    stack.settled().await;
    let sale = stack.publish(5, "reentrant-lock").await;
    let users = stack.users(60).await;
    for (at, path) in PATHS.into_iter().enumerate() {
        let (storm, began) = (&users[at], Instant::now());
        let addresses: Vec<_> = (1..60).map(|n| format!("198.51.{at}.{n}")).collect();
        let reads = addresses.iter().map(|address| read_from(&stack, address, storm, path));
        assert_limited(&join_all(reads).await, began, 1);
        // Others are served, and so are the storm's purchases.
        let other = read_from(&stack, &format!("203.0.113.{at}"), &users[10 + at], path).await;
        assert_eq!(other.status, 200, "{path}: {other:?}");
        let purchase = post(stack.url(), &format!("/voucher-order/seckill/{sale}"))
            .token(&storm.token)
            .header("x-forwarded-for", &format!("203.0.114.{at}"));
        purchase.send().await.data();

        let (address, began) = (format!("192.0.2.{at}"), Instant::now());
        // Users of no other step: the first of them count for their own rate, too.
        let reads = users[20..].iter().map(|user| read_from(&stack, &address, user, path));
        assert_limited(&join_all(reads).await, began, 1);
        // A client on this machine is not limited.
        let direct = (0..30).map(|_| get(stack.url(), path).token(&storm.token).send());
        assert!(join_all(direct).await.iter().all(|answer| answer.status == 200), "{path}");
    }
    for reason in ["user", "address"] {
        let of = |what| format!("seckill_{what}_refused_total{{reason=\"{reason}\"}}");
        assert!(metric(stack.url(), &of("reads")).await > 0);
        assert_eq!(metric(stack.url(), &of("purchases")).await, 0);
    }
}

/// The connection on which a read of this kind waits.
async fn waiting_connection(stack: &Stack, path: &str) -> i64 {
    let columns = if path.starts_with("/user") { "nick_name" } else { "CAST(id AS CHAR)" };
    let waiting = format!(
        "SELECT COALESCE(MAX(ID), 0) FROM information_schema.PROCESSLIST \
         WHERE DB = DATABASE() AND STATE LIKE '%metadata lock%' AND INFO LIKE '%{columns}%'"
    );
    eventually("the read hangs", async || stack.database.number(&waiting).await > 0).await;
    stack.database.number(&waiting).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_hang_up_in_the_middle_of_a_read_cost_no_connection() {
    let args = ["--read-connections", "1"];
    let stack = Stack::start(1, &args).await;
    let user = stack.users(1).await.remove(0);
    let mut connections = BTreeSet::new();
    for path in PATHS {
        let stranger = lock_tables(&stack).await;
        let call = get(stack.url(), path).token(&user.token);
        let read = tokio::spawn(async move { call.send().await });
        connections.insert(waiting_connection(&stack, path).await);
        read.abort();
        // But for the one that asks for the metrics.
        eventually("the service notices", async || {
            metric(stack.url(), "seckill_http_connections_open").await == 1
        })
        .await;
        unlock(stranger).await;
        eventually("the read ends", async || {
            let busy = "seckill_database_read_connections{state=\"in_use\"}";
            metric(stack.url(), busy).await == 0
        })
        .await;
    }
    assert_eq!(connections.len(), 1, "{connections:?}");
}
