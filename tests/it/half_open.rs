//! Half-open connections: a middlebox forgot them, so that nothing passes any more and nothing is reset. The server itself
//! is well, and new connections work.

use std::time::Duration;

use seckill::clock::Zone;
use seckill::connection::{mysql, redis as redis_connection};
use seckill::order::model::{Buyer, NewOrder};
use seckill::order::store::{Ended, Kind, Obstacle, OrderStore, Text};
use testkit::proxy::{Mode, Proxy};
use testkit::raw::command;
use testkit::redis_server::RedisServer;
use testkit::wait::until;

use crate::database_failover::is_mariadb;
use crate::resilience::while_sale_is_locked;
use crate::support::database::TestDatabase;
use crate::support::eventually;
use crate::support::stack::{SignedIn, Stack};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_on_a_half_open_connection_is_answered_truly_and_blocks_no_sale() {
    let stack = Stack::behind_proxies(&[]).await;
    let user = stack.users(1).await.remove(0);
    let fault = async || {
        stack.database.wait_for_statement("UPDATE").await;
        stack.proxies.database.set(Mode::HalfOpen);
    };
    for strategy in ["reentrant-lock", "group-commit", "row-lock"] {
        let sale = stack.publish(5, strategy).await;
        while_sale_is_locked(&stack, sale, async {
            let buying = stack.buy(&user, sale);
            // On a busy machine the purchase may end before: then nothing was done either.
            let mut buying = std::pin::pin!(buying);
            let answer = tokio::select! {
                answer = &mut buying => answer,
                () = fault() => buying.await,
            };
            if strategy != "row-lock" && answer.body["code"] == "OUTCOME_UNKNOWN" {
                // The request that commits waits for the row: its outcome is looked up until the time limit.
                assert_eq!(answer.status, 503);
            } else {
                answer.refused(503, "UNAVAILABLE");
            }
        })
        .await;
        stack.ready().await;
    }
    let orders = "SELECT COUNT(*) FROM tb_voucher_order WHERE status <> 4";
    assert_eq!(stack.database.number(orders).await, 0);

    // An instance is cut off in mid-transaction: its connection is not closed, so the server would keep the transaction, which
    // holds the sale's row, for hours.
    let users = stack.users(2).await;
    // The strategy whose transactions hold the row while they wait for a request.
    let sale = stack.publish(5, "row-lock").await;
    // MariaDB ends such a transaction after 5 s; MySQL, which has no such limit, closes the connection after 30 s. The following
    // transaction may be idle for twice as long, so it must still be there when the row is free.
    let limit = if is_mariadb() {
        "idle_transaction_timeout = 10"
    } else {
        "wait_timeout = 60"
    };
    let mut idle_transaction = stack
        .database
        .hold("SELECT id FROM tb_shop FOR UPDATE")
        .await;
    while_sale_is_locked(&stack, sale, async {
        tokio::select! {
            () = buy_until_dropped(&stack, &users[0], sale) => {}
            () = fault() => {}
        }
        // From here on this transaction may be idle for longer than that of the instance.
        let limit = format!("SET SESSION {limit}");
        sqlx::query(&limit)
            .execute(&mut *idle_transaction)
            .await
            .unwrap();
    })
    .await;
    let is_sold = until(Duration::from_secs(60), async || {
        stack.buy(&users[1], sale).await.status == 200
    })
    .await;
    assert!(is_sold, "the row is still held");
    assert_eq!(stack.orders(sale).await, 1);
    let is_open = sqlx::query("DO 0").execute(&mut *idle_transaction).await;
    is_open.expect("the rows are free before the other transaction was ended");
}

/// Buys without success, until it is dropped: a busy machine may end a purchase before the fault, so another follows.
async fn buy_until_dropped(stack: &Stack, user: &SignedIn, sale: i64) {
    loop {
        stack.buy(user, sale).await.refused(503, "UNAVAILABLE");
    }
}

/// A text that stops leaves its transaction open, which holds the rows that it inserted. OceanBase has a limit for idle
/// transactions, too, but it does not end this one.
#[tokio::test]
async fn a_transaction_whose_text_stopped_is_ended_by_the_server() {
    let database = TestDatabase::migrated().await;
    let step_limit = Duration::from_secs(3);
    let ours = mysql::connect(&database.url(), 2, step_limit).await;
    let zone = Zone(chrono_tz::Asia::Shanghai);
    let store = OrderStore::new(ours.expect("connect"), zone);
    let order = NewOrder {
        id: store.local_seconds() << 32,
        buyer: Buyer {
            user_id: 1,
            voucher_id: 1,
        },
        unguarded: false,
    };
    let sold_out = Text::default().insert(&order).take([&order]);
    let transaction = store.begin().await.expect("a transaction");
    let stopped = transaction
        .commit_with(sold_out, &order, Kind::Purchases)
        .await;
    // The text stops behind the insert. It is not rolled back, and its connection stays open.
    let Ok(Ended::Stopped(_open, Obstacle::SoldOut)) = stopped else {
        panic!("no such sale, and the purchase did not stop at it");
    };
    let orders = [order];
    let is_refused = async || store.refuse(&orders).await.is_ok();
    assert!(
        until(Duration::from_secs(60), is_refused).await,
        "the row of the order is still locked"
    );
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_left_for_its_successor() {
    let old = RedisServer::start().await;
    let new = RedisServer::start().await;
    let proxy = Proxy::start(old.address()).await.expect("a proxy");
    let url = format!("redis://{}/", proxy.address).into();
    let server = redis_connection::server(&url, None, None).expect("an address");
    let limit = Duration::from_secs(1);
    let redis = redis_connection::connect(server, limit)
        .await
        .expect("connect");
    let mut shared = redis.commands();
    let write = command("SET", &["key", "value"]);
    write.exec_async(&mut shared).await.expect("a write");

    let demote = command("REPLICAOF", &["127.0.0.1", &new.port().to_string()]);
    demote
        .exec_async(&mut old.conn().await)
        .await
        .expect("a replica");
    write
        .exec_async(&mut shared)
        .await
        .expect_err("a replica takes no writes");
    proxy.lead_to(new.address());
    let script = redis::Script::new("return redis.call('SET', KEYS[1], 'value')");
    eventually("writes reach the new master", async || {
        script
            .key("by script")
            .invoke_async::<()>(&mut shared.clone())
            .await
            .is_ok()
    })
    .await;
    write.exec_async(&mut shared).await.expect("a write");
}
