//! Reads, of anybody and of signed-in users, in any number: they hold no connection that a purchase or a probe needs, what
//! many ask for at once is read once, and a read goes on to its end when its client hangs up. Rate limits are in
//! [`crate::admission`].

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use seckill::connection::mysql::{Database, connect};
use sqlx::{Executor, MySql, pool::PoolConnection};
use testkit::proxy::{Mode, Proxy};
use tokio::task::JoinSet;

use crate::resilience::while_sale_is_locked;
use crate::support::api::{get, metric, metric_is};
use crate::support::database::TestDatabase;
use crate::support::eventually;
use crate::support::stack::{Stack, buy};

/// Reads of signed-in users that ask the database.
pub const PATHS: [&str; 3] = ["/user/1", "/voucher-order/of/me", "/voucher-order/1"];

/// The metric of the connections for reads that are in use; no purchase uses these.
const BUSY: &str = "seckill_database_read_connections{state=\"in_use\"}";

/// Locks these tables on a connection of the test, until [`unlock`].
pub async fn lock(stack: &Stack, tables: &str) -> PoolConnection<MySql> {
    let mut stranger = stack.database.pool.acquire().await.expect("a connection");
    stranger
        .execute(format!("LOCK TABLES {tables}").as_str())
        .await
        .expect("the locks");
    stranger
}

pub async fn unlock(mut stranger: PoolConnection<MySql>) {
    stranger.execute("UNLOCK TABLES").await.expect("unlocked");
}

/// Waits until a read of this path waits for a locked table; returns the id of its connection.
async fn waiting_connection(stack: &Stack, path: &str) -> i64 {
    let columns = if path.starts_with("/user") {
        "nick_name"
    } else {
        "CAST(id AS CHAR)"
    };
    let waiting = format!(
        "SELECT COALESCE(MAX(ID), 0) FROM information_schema.PROCESSLIST \
         WHERE DB = DATABASE() AND STATE LIKE '%metadata lock%' AND INFO LIKE '%{columns}%'"
    );
    eventually("the read hangs", async || {
        stack.database.number(&waiting).await > 0
    })
    .await;
    stack.database.number(&waiting).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_hang_up_in_the_middle_of_a_read_cost_no_connection() {
    let stack = Stack::start(1, &["--read-connections", "1"]).await;
    let user = stack.users(1).await.remove(0);
    let mut connections = BTreeSet::new();
    for path in PATHS {
        let stranger = lock(&stack, "tb_user WRITE, tb_voucher_order WRITE").await;
        let call = get(stack.url(), path).token(&user.token);
        let read = tokio::spawn(async move { call.send().await });
        connections.insert(waiting_connection(&stack, path).await);
        metric_is(stack.url(), BUSY, 1).await;
        read.abort();
        // Time for the instance to notice it, if it looked.
        tokio::time::sleep(Duration::from_millis(50)).await;
        unlock(stranger).await;
        metric_is(stack.url(), BUSY, 0).await;
    }
    assert_eq!(connections.len(), 1, "{connections:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_geo_index_is_built_once_and_reads_that_hang_hold_no_connection_of_a_purchase() {
    let args = [
        "--database-connections",
        "16",
        "--log",
        "info,seckill::shop::geo=debug",
    ];
    let stack = Stack::start(1, &args).await;
    for n in 0..50 {
        let row = "INSERT INTO tb_shop (name, type_id, images, address, x, y) VALUES";
        stack
            .database
            .run(&format!("{row} ('{n}', 8, '', '', 120.0, 30.0{n:02})"))
            .await;
    }
    // From different points, so that no answer is shared.
    let reads = (0..60).map(|n| {
        let path = format!("/shop/of/type?typeId=8&x=120.000{n:02}&y=30.02");
        get(stack.url(), &path).send()
    });
    let answers = join_all(reads).await;
    for answer in &answers {
        assert_eq!(
            answer.data().as_array().map(Vec::len),
            Some(5),
            "{answer:?}"
        );
    }
    assert_eq!(stack.instances[0].lines_with("index built").len(), 1);

    let sale = stack.publish(5, "reentrant-lock").await;
    let user = stack.users(1).await.remove(0);
    // Every read of the shops hangs up to its time limit.
    let stranger = lock(&stack, "tb_shop WRITE").await;
    let url = stack.url().to_owned();
    let mut reads = JoinSet::new();
    for n in 0..60 {
        let url = url.clone();
        reads.spawn(async move {
            let path = match n % 3 {
                0 => format!("/shop/of/name?name={n}"),
                1 => format!("/shop/of/type?typeId={n}"),
                _ => format!("/shop/of/type?typeId={n}&x=120&y=30"),
            };
            get(&url, &path).send().await.status
        });
    }
    eventually("the reads hang", async || {
        stack.database.waiting().await >= 4
    })
    .await;
    let bought = buy(&url, &user, sale).await;
    assert!(
        stack.database.waiting().await > 0,
        "the purchase waited for the reads to end"
    );
    bought.data();
    // Nor do an admin write and a probe wait for them.
    stack.add_stock(sale, 3).await;
    assert_eq!(get(&url, "/health/ready").send().await.status, 200);
    assert!(
        stack.database.waiting().await > 0,
        "adding stock waited for the reads to end"
    );
    unlock(stranger).await;
    for status in reads.join_all().await {
        assert!(status == 200 || status == 503, "{status}");
    }
    // Afterwards reads are served again.
    get(&url, "/shop/of/name").send().await.data();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_many_ask_for_at_once_is_read_once() {
    let stack = Stack::patient_behind_proxies(&[]).await;
    let sale = stack.publish(5, "reentrant-lock").await;
    let database = &stack.proxies.database;
    for path in [
        "/health/ready",
        "/voucher/list/1",
        "/shop/of/name?name=x",
        "/shop/of/type?typeId=1",
        "/shop/of/type?typeId=1&x=120.1&y=30.3",
    ] {
        let before = database.requests();
        let answers = join_all((0..200).map(|_| get(stack.url(), path).send())).await;
        assert!(answers.iter().all(|answer| answer.status == 200), "{path}");
        let requests = database.requests() - before;
        assert!(
            requests < 40,
            "{requests} requests to the database for 200 of {path}"
        );
    }
    // What this instance writes is seen by the next read, and what another one writes a moment later.
    stack.add_stock(sale, 3).await;
    let stock =
        async || get(stack.url(), "/voucher/list/1").send().await.data()[0]["stock"].clone();
    assert_eq!(stock().await, 8);
    stack
        .database
        .run("UPDATE tb_seckill_voucher SET stock = 6")
        .await;
    eventually("the list is read again", || async { stock().await == 6 }).await;
}

/// Readiness has a connection of its own: otherwise all overloaded instances would turn unready together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_whose_connections_all_wait_for_a_row_is_ready() {
    let stack = Stack::start(1, &["--database-connections", "2"]).await;
    let sale = stack.publish(50, "row-lock").await;
    let users = stack.users(40).await;
    let in_use = async || {
        metric(
            stack.url(),
            "seckill_database_connections{state=\"in_use\"}",
        )
        .await
    };
    let mut purchases = JoinSet::new();
    while_sale_is_locked(&stack, sale, async {
        // Each is refused after a while, and tried again, so that there are always some that wait.
        for user in users {
            let url = stack.url().to_owned();
            purchases.spawn(async move { while buy(&url, &user, sale).await.status != 200 {} });
        }
        eventually("all connections wait", async || in_use().await == 2).await;
        let ready = get(stack.url(), "/health/ready").send().await;
        assert_eq!(ready.status, 200, "{ready:?}");
        assert_eq!(in_use().await, 2);
    })
    .await;
    purchases.join_all().await;
}

/// A client that asks and goes away, again and again, has no more statements at work than there are connections.
#[tokio::test]
async fn a_statement_whose_caller_has_gone_keeps_its_connections_place_until_it_is_answered() {
    let database = TestDatabase::migrated().await;
    let limit = Duration::from_secs(20);
    let reads = connect(&database.url(), 1, limit).await.unwrap();
    let mut stranger = database.pool.acquire().await.expect("a connection");
    stranger
        .execute("LOCK TABLES tb_shop WRITE")
        .await
        .expect("the lock");
    let ask = async || {
        let count = sqlx::query_scalar::<_, i64>("SELECT COUNT(*) FROM tb_shop");
        reads.read(async |c| count.fetch_one(c).await).await
    };
    for _ in 0..3 {
        tokio::select! {
            answer = ask() => panic!("{answer:?} of a locked table"),
            () = eventually("it waits", async || database.waiting().await > 0) => {}
        }
        assert_eq!(database.waiting().await, 1, "statements at work");
        assert_eq!(reads.pool.usage()[1], 1, "its place is free");
    }
    unlock(stranger).await;
    assert!(ask().await.is_ok());
}

/// That no connection is free says nothing of the server; that a statement is not answered does.
#[tokio::test]
async fn a_wait_for_a_free_connection_closes_no_idle_one() {
    let database = TestDatabase::migrated().await;
    let proxy = Proxy::start(database.server().to_owned()).await.unwrap();
    let url = database.url_through(proxy.address).into();
    let limit = Duration::from_millis(700);
    let purchases = connect(&url, 2, limit).await.unwrap();
    let reads = purchases.for_reads(1);
    let ask = async |database: &Database| {
        let query = sqlx::query_scalar::<_, i64>("SELECT 1");
        database.read(async |c| query.fetch_one(c).await).await
    };
    // On a busy machine it takes several tries to open them.
    eventually("an idle connection", async || ask(&purchases).await.is_ok()).await;
    eventually("another", async || ask(&reads).await.is_ok()).await;
    let only_connection = reads
        .pool
        .acquire(reads.pool.deadline())
        .await
        .expect("the only one");
    for _ in 0..2 {
        let busy = ask(&reads).await;
        assert!(matches!(busy, Err(sqlx::Error::PoolTimedOut)), "{busy:?}");
        assert_eq!(purchases.pool.usage()[0], 1, "it is closed");
    }
    drop(only_connection);
    eventually("another", async || ask(&reads).await.is_ok()).await;
    proxy.set(Mode::Hang);
    let unanswered = ask(&reads).await;
    assert!(
        matches!(unanswered, Err(sqlx::Error::Io(_))),
        "{unanswered:?}"
    );
    assert_eq!(purchases.pool.usage()[0], 0, "it is idle still");
}
