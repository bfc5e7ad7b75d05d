//! Databases that people have: what deviates from the tables of the Java project and can be borne sells, and is read.

use std::time::Duration;

use seckill::connection::migrate;
use serde_json::json;

use crate::schema::java_database;
use crate::support::api::{get, post};
use crate::support::database::TestDatabase;
use crate::support::instance::Instance;
use crate::support::stack::{SignedIn, Stack, sign_in};

/// Runs statements on one connection, whose settings go with it.
async fn run_all(database: &TestDatabase, statements: &str) {
    let mut connection = database.pool.acquire().await.unwrap();
    for statement in statements.split("; ") {
        sqlx::query(statement)
            .persistent(false)
            .execute(&mut *connection)
            .await
            .unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    connection.close().await.unwrap();
}

/// What is borne, all of it at once.
const BORNE: [&str; 9] = [
    "ALTER TABLE tb_user MODIFY phone CHAR(11) NOT NULL, MODIFY icon VARCHAR(255) NULL DEFAULT NULL, \
     ADD COLUMN email VARCHAR(64) NULL, ADD COLUMN level INT NOT NULL DEFAULT 1",
    "ALTER TABLE tb_voucher_order MODIFY id BIGINT UNSIGNED NOT NULL, \
     MODIFY pay_type INT ZEROFILL NULL DEFAULT NULL, MODIFY status TINYINT NULL DEFAULT 1, \
     MODIFY create_time TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP, \
     MODIFY update_time TIMESTAMP NULL DEFAULT NULL, ADD COLUMN note VARCHAR(64) NULL",
    "ALTER TABLE tb_voucher_order ADD CONSTRAINT fk_user FOREIGN KEY (user_id) REFERENCES tb_user (id)",
    "ALTER TABLE tb_seckill_voucher MODIFY stock INT UNSIGNED ZEROFILL NULL, \
     MODIFY begin_time TIMESTAMP NULL DEFAULT NULL, MODIFY end_time TIMESTAMP NULL DEFAULT NULL, \
     ADD CONSTRAINT fk_voucher FOREIGN KEY (voucher_id) REFERENCES tb_voucher (id) ON DELETE CASCADE",
    "ALTER TABLE tb_voucher MODIFY pay_value INT NULL, MODIFY actual_value BIGINT NULL, \
     MODIFY title VARCHAR(255) NULL, MODIFY type INT NULL, MODIFY status INT NULL DEFAULT 1",
    "ALTER TABLE tb_shop CONVERT TO CHARACTER SET utf8mb3, MODIFY x DECIMAL(10, 6) NULL, \
     MODIFY y DECIMAL(10, 6) NULL, MODIFY address VARCHAR(255) NULL, MODIFY sold INT NULL, \
     MODIFY images VARCHAR(1024) NULL",
    "INSERT INTO tb_shop (id, name, type_id, images, address, x, y, sold, comments, score, create_time, update_time) \
     VALUES (1, '店', 1, '', '', 120.1, 30.3, 0, 0, 0, NULL, NULL), \
            (2, '无址', 1, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, NULL), \
            (3, '远店', 1, '', '', 999, 99, 0, 0, 0, NULL, NULL)",
    "INSERT INTO tb_voucher (id, shop_id, title, pay_value, actual_value, type) \
     VALUES (1, 1, NULL, NULL, NULL, NULL)",
    "ALTER TABLE tb_voucher AUTO_INCREMENT = 10",
];

async fn assert_lifetime(stack: &Stack, user: &SignedIn, sale: i64, orders: &str) {
    let order = stack.buy_committed(user, sale).await;
    let found = stack.look_up(user, order).await;
    assert_eq!(found.data()["status"], 1, "{found:?}");
    let path = format!("/voucher-order/{order}");
    let change = async |to: &str| {
        let changing = post(stack.url(), &format!("{path}/{to}")).token(&user.token);
        changing.send().await
    };
    if orders == "cancelled" {
        assert_eq!(change("cancel").await.data()["status"], 4);
        let again = stack.buy_committed(user, sale).await;
        assert_ne!(again, order);
    } else {
        assert_eq!(change("pay").await.data()["status"], 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_be_borne_sells_and_is_read() {
    let database = java_database().await;
    for statement in BORNE {
        run_all(&database, statement).await;
    }
    migrate::run(&database.url()).await.unwrap();
    let stack = Stack::start_on(database, 1, &[]).await;
    let mut redis = stack.redis.conn().await;
    let buyers = [
        sign_in(stack.url(), &mut redis, "13800000001").await,
        sign_in(stack.url(), &mut redis, "13800000002").await,
    ];
    for strategy in [
        "reentrant-lock",
        "row-lock",
        "group-commit",
        "stream",
        "unit-rows",
    ] {
        let sale = stack.publish(5, strategy).await;
        assert_lifetime(&stack, &buyers[0], sale, "cancelled").await;
        assert_lifetime(&stack, &buyers[1], sale, "paid").await;
        assert_eq!(stack.tables(sale).await.0, 3, "{strategy}");
    }

    // Rows that nobody wrote in our way.
    let user = &buyers[0];
    let old = format!(
        "INSERT INTO tb_voucher_order (id, user_id, voucher_id, pay_type, create_time, update_time) \
         VALUES (5, {}, 1, NULL, NULL, NULL)",
        user.id
    );
    stack.database.run(&old).await;
    let found = stack.look_up(user, 5).await;
    assert!(found.data().get("createTime").is_none(), "{found:?}");
    let mine = get(stack.url(), "/voucher-order/of/me").token(&user.token);
    let mine = mine.send().await;
    assert!(
        mine.data()
            .as_array()
            .is_some_and(|orders| orders.len() == 10),
        "{mine:?}"
    );
    let vouchers = get(stack.url(), "/voucher/list/1").send().await;
    assert_eq!(
        vouchers.data()[0],
        json!({ "id": 1, "shopId": 1, "title": "", "type": 0 })
    );

    // Shops: without times, without a place, and at one that is not on Earth.
    let shop = get(stack.url(), "/shop/2").send().await;
    assert!(shop.data().get("createTime").is_none(), "{shop:?}");
    let near = get(stack.url(), "/shop/of/type?typeId=1&x=120.1&y=30.3")
        .send()
        .await;
    let ids: Vec<i64> = near
        .data()
        .as_array()
        .unwrap()
        .iter()
        .map(|shop| shop["id"].as_i64().unwrap())
        .collect();
    assert_eq!(ids, [1], "{near:?}");
    for list in ["/shop/of/type?typeId=1", "/shop/of/name"] {
        let shops = get(stack.url(), list).send().await;
        assert_eq!(
            shops.data().as_array().map(Vec::len),
            Some(3),
            "{list}: {shops:?}"
        );
    }

    // A text that the tables cannot hold is the request's fault, and costs no connection.
    let open =
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <= ";
    let newest = "SELECT MAX(ID) FROM information_schema.PROCESSLIST WHERE DB = DATABASE()";
    let newest = stack.database.number(newest).await;
    let before = stack.database.number(&format!("{open}{newest}")).await;
    for emoji in ["%F0%9F%8D%9C", "%F0%9F%8D%A3"] {
        let search = format!("/shop/of/name?name={emoji}");
        let found = get(stack.url(), &search).send().await;
        found.refused(400, "INVALID_PARAMETER");
    }
    let after = stack.database.number(&format!("{open}{newest}")).await;
    assert_eq!(after, before, "a connection was lost");
    let shop = json!({ "name": "面🍜", "typeId": 1, "address": "x", "x": 120.0, "y": 30.0 });
    let created = post(stack.url(), "/shop").admin().json(shop).send().await;
    created.refused(400, "INVALID_PARAMETER");
    let errors = stack.instances[0].lines_with("ERROR");
    assert!(errors.is_empty(), "{}", errors.join("\n"));

    let said = Instance::says(0, &["doctor"], &stack.env(), "ready to serve");
    assert!(!said.contains("FAIL"), "{said}");
    // Of no sale.
    let delete = "DELETE FROM tb_voucher_order WHERE id = 5";
    stack.database.run(delete).await;
    Instance::says(0, &["audit"], &stack.env(), "holds");
}

/// A sale whose row cannot be read is refused, and named in the log. It fails no purchase of another one, though they are
/// read together; and it keeps no other from opening.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_row_that_cannot_be_read_fails_no_other() {
    let stack = Stack::start(1, &[]).await;
    stack
        .database
        .run(
            "ALTER TABLE tb_seckill_voucher MODIFY stock INT NULL, \
             MODIFY begin_time TIMESTAMP NULL, MODIFY end_time TIMESTAMP NULL",
        )
        .await;
    let sales = stack.publish_each(40, ["reentrant-lock"; 8]).await;
    let (sound, broken) = sales.split_at(4);
    for (sale, fault) in broken.iter().zip([
        "begin_time = NULL",
        "end_time = NULL",
        "stock = NULL",
        "begin_time = 0, end_time = 0",
    ]) {
        let update = format!("UPDATE tb_seckill_voucher SET {fault} WHERE voucher_id = {sale}");
        run_all(
            &stack.database,
            &format!("SET SESSION sql_mode = ''; {update}"),
        )
        .await;
    }
    // Rounds, because sales are read together that are due at the same moment.
    for round in 0..4 {
        let users = stack.users(8).await;
        let purchases = sales
            .iter()
            .zip(&users)
            .map(async |(sale, user)| (*sale, stack.buy(user, *sale).await));
        for (sale, answer) in futures_util::future::join_all(purchases).await {
            if broken.contains(&sale) {
                answer.refused(503, "UNAVAILABLE");
            } else if round == 0 {
                answer.bought();
            } else {
                answer.refused(200, "ALREADY_ORDERED");
            }
        }
        // Longer than a reading of a sale is used.
        tokio::time::sleep(Duration::from_millis(850)).await;
    }
    for sale in broken {
        let unreadable = stack.instances[0].lines_with("a row cannot be read");
        let named = format!("id={sale} ");
        let is_named = unreadable.iter().any(|line| line.contains(&named));
        assert!(is_named, "{named}: {}", unreadable.join("\n"));
    }
    assert_eq!(sound.len(), 4);
    // A stream's sale opens all the same.
    let user = stack.users(1).await.remove(0);
    let stream = stack.publish(5, "stream").await;
    stack.buy_committed(&user, stream).await;
    // Lists and the audit show the others.
    let listed = get(stack.url(), "/voucher/list/1").send().await;
    assert!(
        listed
            .data()
            .as_array()
            .is_some_and(|vouchers| vouchers.len() >= 8),
        "{listed:?}"
    );
    let (_, audit) = Instance::run(&["audit"], &stack.env());
    for sale in sound {
        assert!(
            audit
                .lines()
                .any(|line| line.trim_start().starts_with(&format!("{sale} "))
                    && line.contains("holds")),
            "{audit}"
        );
    }
}
