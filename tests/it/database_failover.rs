//! A replica that has received an order and not applied it: what the service says of a commit whose primary is lost. Whole
//! failovers are in [`crate::slow`].

use std::sync::Arc;
use std::time::Duration;

use seckill::clock::Zone;
use seckill::connection::{migrate, mysql};
use seckill::error::Error;
use seckill::order::model::{Buyer, NewOrder};
use seckill::order::store::{OrderStore, Text};
use sqlx::{Connection, Executor, MySqlConnection, Row};
use testkit::database_server::{Product, Settings};
use testkit::process::TemporaryFolder;
use testkit::proxy::{Mode, Proxy};
use testkit::replicated_database::{ReplicatedDatabase, Replication};

use crate::support::eventually;
use crate::support::instance::Instance;

/// The replicated database is made of MariaDB servers only.
pub fn is_mariadb() -> bool {
    Product::chosen().expect("a product") == Product::MariaDb
}

/// What `doctor` says.
pub fn doctor(url: &str) -> String {
    let env = [("DATABASE_URL", url), ("REDIS_URL", "redis://127.0.0.1:1/")];
    Instance::run(
        &["doctor"],
        &env.map(|(name, value)| (name, value.to_owned())),
    )
    .1
}

/// A purchase's commit gets no reply, its primary is lost, and the address leads to the replica, which has received the
/// order and not applied it. That the replica does not have the order proves nothing: it is asked again, and has the order
/// once it is the primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lagging_replica_is_no_proof_that_an_order_was_not_made() {
    if !is_mariadb() {
        return;
    }
    let folder = Arc::new(TemporaryFolder::new().expect("a temporary folder"));
    let replication = Replication::SemiSynchronous;
    let pair = ReplicatedDatabase::start_in(folder, replication, Settings::default()).await;
    let mut pair = pair.expect("a replicated database");
    migrate::run(&pair.url().into()).await.expect("migrate");
    let proxy = Proxy::start(pair.address()).await.expect("a proxy");
    let url = pair.primary().url_at(proxy.address.port()).into();
    let db = mysql::connect(&url, 4, Duration::from_secs(10))
        .await
        .expect("connect");
    let store = OrderStore::new(db, Zone(chrono_tz::Asia::Shanghai));
    let now = store.local_seconds() << 32;
    let order = move |number| {
        let buyer = Buyer {
            user_id: number,
            voucher_id: 1,
        };
        NewOrder {
            id: now + number,
            buyer,
            unguarded: false,
        }
    };

    // `doctor` says what a commit is worth on each of the servers.
    let semi_synchronous = "commits wait for one of 1 replicas (AFTER_SYNC)";
    let of_primary = doctor(&pair.url());
    assert!(of_primary.contains(semi_synchronous), "{of_primary}");
    let of_replica = doctor(&pair.replica().url());
    assert!(
        of_replica.contains("FAIL  the database of DATABASE_URL is read-only"),
        "{of_replica}"
    );

    // A server that is made read-only before the commit refuses it, so that nothing was done.
    let mut transaction = store.begin().await.expect("a transaction");
    transaction.insert(&order(76)).await.expect("an insert");
    let mut primary = pair.primary().admin().await.expect("connect");
    primary
        .execute("SET GLOBAL read_only = 1")
        .await
        .expect("read-only");
    let refused = transaction.place(&order(76), Text::default()).await;
    primary
        .execute("SET GLOBAL read_only = 0")
        .await
        .expect("writable");
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");

    let mut transaction = store.begin().await.expect("a transaction");
    transaction.insert(&order(77)).await.expect("an insert");
    pair.stop_applying().await.expect("stop");
    proxy.set(Mode::LoseCommitReplyThenCut);
    let commit = tokio::spawn(async move { transaction.place(&order(77), Text::default()).await });
    let row = "SELECT COUNT(*) FROM seckill.tb_voucher_order WHERE user_id = 77 AND status = 1";
    eventually("it is committed", async || {
        primary
            .fetch_one(row)
            .await
            .expect("a number")
            .get::<i64, _>(0)
            == 1
    })
    .await;
    pair.kill_primary();
    pair.lead_to_replica();
    proxy.set(Mode::Forward);
    eventually("the replica is read, and does not have it", async || {
        matches!(store.find(order(77).id).await, Ok(None))
    })
    .await;
    let found = store.probe(order(77).id, 77).await;
    assert!(
        matches!(found, Err(Error::Unavailable(_))),
        "the replica was believed: {found:?}"
    );
    assert!(
        !commit.is_finished(),
        "the replica was believed: {:?}",
        commit.await
    );
    pair.promote().await.expect("promote");
    let committed = commit.await.expect("the purchase");
    assert!(
        matches!(committed, Ok(id) if id == order(77).id),
        "{committed:?}"
    );
    let found = store.probe(order(77).id, 77).await.expect("an answer");
    assert!(
        matches!(&found, Some(order) if order.user_id == 77),
        "{found:?}"
    );
    let of_promoted = doctor(&pair.url());
    assert!(
        of_promoted.contains("warn  commits do not wait for a replica"),
        "{of_promoted}"
    );
    let mut new_primary = MySqlConnection::connect(&pair.url())
        .await
        .expect("connect");
    assert_eq!(
        new_primary
            .fetch_one(row)
            .await
            .expect("a number")
            .get::<i64, _>(0),
        1
    );
}
