//! Reads of signed-in users are read to their end where the client hangs up. Their limits are tested in
//! [`crate::admission`].

use std::collections::BTreeSet;

use sqlx::{Executor, MySql, pool::PoolConnection};

use crate::support::api::{get, metric};
use crate::support::eventually;
use crate::support::stack::Stack;

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
