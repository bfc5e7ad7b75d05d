//! One row under a purchase's id decides what became of it when its reply was lost, and a look-up writes nothing: the rules of
//! `src/order/store/commit.rs` and `decide.rs`, on a database behind a proxy.

use std::time::Duration;

use seckill::clock::Zone;
use seckill::connection::mysql;
use seckill::error::{Cause, Error};
use seckill::order::batch::BatchCommitter;
use seckill::order::model::{Buyer, NewOrder};
use seckill::order::store::{Kind, OrderStore, Text};
use testkit::proxy::{Mode, Proxy};
use tokio::time::Instant;

use crate::resilience::TAKES_STOCK;
use crate::support::database::TestDatabase;

pub const SALE: i64 = 9;
const PATIENCE: Duration = Duration::from_secs(10);
/// Part of the statement that reads the rows under the ids of orders.
const READS_ROWS: &str = "tb_voucher_order WHERE id IN";
pub const REFUSALS: &str =
    "SELECT COUNT(*) FROM tb_voucher_order WHERE status = 4 AND voucher_id = id AND buyer IS NULL";

/// A database with a sale of five, a proxy before it, and a store on either side of the proxy.
pub struct Scene {
    pub database: TestDatabase,
    pub proxy: Proxy,
    /// Reaches the database through the proxy, on one connection.
    pub store: OrderStore,
    /// Reaches it without the proxy.
    pub direct: OrderStore,
}

impl Scene {
    pub async fn new() -> Self {
        let database = TestDatabase::migrated().await;
        let sale = format!(
            "INSERT INTO tb_seckill_voucher (voucher_id, stock, issued) VALUES ({SALE}, 5, 5)"
        );
        database.run(&sale).await;
        let proxy = Proxy::start(database.server().to_owned())
            .await
            .expect("a proxy");
        let proxied_url = database.url_through(proxy.address).into();
        let zone = Zone(chrono_tz::Asia::Shanghai);
        let db = mysql::connect(&proxied_url, 1, PATIENCE)
            .await
            .expect("connect");
        let direct = mysql::connect(&database.url(), 4, PATIENCE)
            .await
            .expect("connect");
        Scene {
            database,
            proxy,
            store: OrderStore::new(db, zone),
            direct: OrderStore::new(direct, zone),
        }
    }

    /// An order of this user, whose id was drawn so many seconds ago.
    pub fn order(&self, user_id: i64, seconds_ago: i64) -> NewOrder {
        NewOrder {
            id: ((self.store.local_seconds() - seconds_ago) << 32) + user_id,
            buyer: Buyer {
                user_id,
                voucher_id: SALE,
            },
            unguarded: false,
        }
    }

    /// Orders of the sale, and its stock.
    pub async fn tables(&self) -> (i64, i64) {
        let orders = format!("SELECT COUNT(*) FROM tb_voucher_order WHERE voucher_id = {SALE}");
        let orders = self.database.number(&orders).await;
        (orders, self.database.of_sale(SALE, "stock").await)
    }
}

/// Places the order on this store, as a purchase does.
pub async fn place(store: &OrderStore, order: &NewOrder) -> Result<i64, Error> {
    let text = Text::default().insert_if_first(order).take([order]);
    store.begin().await?.place(order, text).await
}

/// A proxy that has lost its server sends an error in place of the reply, even if the server has run the text. And after an
/// error of the COMMIT itself the order may be there.
#[tokio::test]
async fn an_error_in_place_of_a_reply_or_of_the_commit_is_no_refusal() {
    let scene = Scene::new().await;
    for (user, mode) in [(1, Mode::FailReplyTo(TAKES_STOCK)), (2, Mode::FailCommit)] {
        let order = scene.order(user, 0);
        scene.proxy.set(mode);
        let placed = place(&scene.store, &order).await;
        assert!(
            matches!(placed, Ok(id) if id == order.id),
            "{mode:?}: the server has run it: {placed:?}"
        );
        assert_eq!(scene.tables().await, (user, 5 - user));
    }
}

/// An earlier copy of the text has committed the order, as when a proxy sends the text twice.
#[tokio::test]
async fn an_order_that_an_earlier_copy_of_its_text_made_is_a_success() {
    let scene = Scene::new().await;
    let order = scene.order(1, 0);
    for _ in 0..2 {
        let placed = place(&scene.store, &order).await;
        assert!(matches!(placed, Ok(id) if id == order.id), "{placed:?}");
    }
    // The first attempt to read the row that is in the way fails.
    scene.proxy.set(Mode::FailReplyTo(READS_ROWS));
    let placed = place(&scene.store, &order).await;
    assert!(matches!(placed, Ok(id) if id == order.id), "{placed:?}");
    assert_eq!(scene.tables().await, (1, 4));
    // Another buyer's purchase under the same id does not get this order.
    let stranger = NewOrder {
        buyer: Buyer {
            user_id: 2,
            ..order.buyer
        },
        ..order
    };
    let placed = place(&scene.store, &stranger).await;
    assert!(matches!(placed, Err(Error::DuplicateId)), "{placed:?}");
}

/// The same with a batch; at last the rows that are in its way cannot be read.
#[tokio::test]
async fn a_batch_that_an_earlier_copy_of_its_text_made_is_a_success() {
    let scene = Scene::new().await;
    let orders = [scene.order(1, 0), scene.order(2, 0)];
    let committer = BatchCommitter::new(scene.store.clone(), Kind::Purchases);
    for reads in [Mode::Forward, Mode::Forward, Mode::FailReplyTo(READS_ROWS)] {
        scene.proxy.set(reads);
        let outcomes = committer.commit(&orders, Instant::now() + PATIENCE).await;
        let Ok(outcomes) = outcomes else {
            panic!("the batch failed: {reads:?}");
        };
        for (order, outcome) in orders.iter().zip(outcomes) {
            assert!(
                matches!(outcome, Ok(id) if id == order.id),
                "{reads:?}: {outcome:?}"
            );
        }
        assert_eq!(scene.tables().await, (2, 3));
    }
}

/// The refusal has the user of its order, but is no order.
#[tokio::test]
async fn a_refused_order_is_no_success_of_its_batch() {
    let scene = Scene::new().await;
    let orders = [scene.order(1, 0), scene.order(2, 0)];
    scene.direct.refuse(&orders[..1]).await.expect("a refusal");
    let committer = BatchCommitter::new(scene.store.clone(), Kind::Purchases);
    let outcomes = committer.commit(&orders, Instant::now() + PATIENCE).await;
    let Ok(outcomes) = outcomes else {
        panic!("the batch failed");
    };
    assert!(
        matches!(outcomes[..], [Err(Error::DuplicateId), Ok(_)]),
        "{outcomes:?}"
    );
    assert_eq!(scene.tables().await, (1, 4));
}

/// Two nodes that have the same buyers in another order would wait for each other's rows.
#[tokio::test]
async fn a_batch_inserts_in_the_order_of_its_buyers_whatever_the_order_of_arrival() {
    let scene = Scene::new().await;
    let orders = [scene.order(2, 0), scene.order(1, 0)];
    let [second, first] = orders.map(|order| order.id);
    let sorted = format!("({first},1,{SALE}),({second},2,{SALE})");
    let sorted = &*sorted.leak();
    scene.proxy.count(sorted);
    let committer = BatchCommitter::new(scene.store.clone(), Kind::Purchases);
    let outcomes = committer.commit(&orders, Instant::now() + PATIENCE).await;
    assert!(matches!(outcomes, Ok(outcomes) if outcomes.iter().all(Result::is_ok)));
    assert_eq!(scene.proxy.counted(sorted), 1, "{sorted}");
}

/// Two that decide the same orders would wait for each other's rows.
#[tokio::test]
async fn refusals_are_inserted_in_the_order_of_their_ids() {
    let scene = Scene::new().await;
    let orders = [scene.order(2, 0), scene.order(1, 0)];
    let [second, first] = orders.map(|order| order.id);
    let sorted = format!("({first},1,{first},4),({second},2,{second},4)");
    let sorted = &*sorted.leak();
    scene.proxy.count(sorted);
    scene.store.refuse(&orders).await.expect("refusals");
    assert_eq!(scene.proxy.counted(sorted), 1, "{sorted}");
}

/// IGNORE hides the foreign key that keeps the refusal out of the table. Without a row under the id, nothing is decided.
#[tokio::test]
async fn an_order_whose_refusal_cannot_be_inserted_is_not_reported_as_refused() {
    let scene = Scene::new().await;
    let key = "ALTER TABLE tb_voucher_order ADD CONSTRAINT fk_sale FOREIGN KEY (voucher_id) \
               REFERENCES tb_seckill_voucher (voucher_id)";
    scene.database.run(key).await;
    if !scene.database.keeps_refusals_out().await {
        return;
    }
    let order = scene.order(1, 0);
    scene.proxy.set(Mode::LoseRequest(TAKES_STOCK));
    let placed = place(&scene.store, &order).await;
    assert!(
        matches!(placed, Err(Error::OutcomeUnknown(Some(id))) if id == order.id),
        "{placed:?}"
    );
}

/// On the only connection, a text stops with its order inserted; then comes the next text.
#[tokio::test]
async fn the_next_purchase_on_a_connection_commits_nothing_of_the_one_before() {
    let scene = Scene::new().await;
    let none_left = format!("UPDATE tb_seckill_voucher SET stock = 0 WHERE voucher_id = {SALE}");
    scene.database.run(&none_left).await;
    let refused = place(&scene.store, &scene.order(1, 0)).await;
    assert!(matches!(refused, Err(Error::SoldOut)), "{refused:?}");
    // The deadline of this one is over.
    let refused = place(&scene.store, &scene.order(2, 60)).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    let one_left = format!("UPDATE tb_seckill_voucher SET stock = 1 WHERE voucher_id = {SALE}");
    scene.database.run(&one_left).await;
    place(&scene.store, &scene.order(3, 0))
        .await
        .expect("bought");
    assert_eq!(scene.tables().await, (1, 0), "an order without stock");
}

/// Two deciders meet the open transaction of the same order. They wait until it is rolled back, and agree.
#[tokio::test]
async fn two_deciders_wait_for_the_transaction_and_say_the_same() {
    let scene = Scene::new().await;
    let order = scene.order(1, 0);
    let insert = format!(
        "INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES ({}, 1, {SALE})",
        order.id
    );
    let open = scene.database.hold(&insert).await;
    let deciders = [(); 2].map(|()| {
        let store = scene.direct.clone();
        let limit = Duration::from_secs(60);
        tokio::spawn(async move {
            tokio::time::timeout(limit, async {
                loop {
                    // Asks again after a lock wait that was too long.
                    if let Ok(rows) = store.refuse(&[order]).await {
                        return rows;
                    }
                }
            })
            .await
            .expect("a decision")
        })
    });
    scene.database.wait_for_statement("INSERT IGNORE").await;
    open.rollback().await.expect("a rollback");
    for decider in deciders {
        let rows = decider.await.expect("a decision");
        let row = rows[&order.id];
        assert_eq!(row.buyer.voucher_id, order.id, "the refusal: {row:?}");
    }
    assert_eq!(scene.database.number(REFUSALS).await, 1);
    let late = place(&scene.store, &order).await;
    assert!(late.is_err(), "it was refused: {late:?}");
    assert_eq!(scene.tables().await, (0, 5));
}

/// A look-up of an id that is about to be used refuses nothing.
#[tokio::test]
async fn a_look_up_writes_nothing_and_keeps_no_order_out() {
    let scene = Scene::new().await;
    let order = scene.order(1, 0);
    let look_ups = (0..100).map(|_| scene.direct.probe(order.id, 2));
    for looked_up in futures_util::future::join_all(look_ups).await {
        assert!(
            matches!(looked_up, Err(Error::Unavailable(_))),
            "{looked_up:?}"
        );
    }
    // The text of a purchase may still commit this long after its id was drawn.
    let young = scene.order(2, 15);
    let looked_up = scene.direct.probe(young.id, 2).await;
    assert!(
        matches!(looked_up, Err(Error::Unavailable(Cause::OrderUndecided))),
        "{looked_up:?}"
    );
    // For an old id the answer is certain: the refusal is tried on the table, and undone.
    let old = scene.order(1, 60);
    let looked_up = scene.direct.probe(old.id, 2).await;
    assert!(matches!(looked_up, Ok(None)), "{looked_up:?}");
    let rows = "SELECT COUNT(*) FROM tb_voucher_order";
    assert_eq!(scene.database.number(rows).await, 0);
    place(&scene.store, &order).await.expect("bought");
    let looked_up = scene.direct.probe(order.id, 1).await;
    assert!(matches!(looked_up, Ok(Some(_))), "{looked_up:?}");
}
