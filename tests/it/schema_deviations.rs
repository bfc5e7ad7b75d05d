//! Databases that people have, which deviate from the tables of the Java project. Each deviation is either supported, or refused
//! before anything is changed, by one sentence that names the column and the remedy.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use seckill::connection::database_check::ready_to_serve;
use seckill::connection::{migrate, mysql};
use secrecy::ExposeSecret;
use serde_json::json;
use sqlx::Executor;

use crate::database_failover::doctor;
use crate::schema::java_database;
use crate::support::api::{get, post};
use crate::support::database::{TestDatabase, is_oceanbase};
use crate::support::instance::Instance;
use crate::support::stack::{SignedIn, Stack, sign_in};

/// Deviations that are not supported: the statement that makes one, what the error names, and a part of its remedy.
const REFUSED: [(&str, &str, &str); 30] = [
    // Engines that cannot roll back.
    (
        "ALTER TABLE tb_voucher_order ENGINE = MyISAM",
        "tb_voucher_order is kept by the engine MyISAM",
        "ENGINE = InnoDB",
    ),
    (
        "ALTER TABLE tb_seckill_voucher ENGINE = MyISAM",
        "tb_seckill_voucher is kept by the engine MyISAM",
        "ENGINE = InnoDB",
    ),
    (
        "ALTER TABLE tb_user ENGINE = MEMORY",
        "tb_user is kept by the engine MEMORY",
        "ENGINE = InnoDB",
    ),
    // Times that are no instants, or that change by themselves.
    (
        "ALTER TABLE tb_seckill_voucher MODIFY begin_time DATETIME NULL",
        "tb_seckill_voucher.begin_time is datetime",
        "MODIFY begin_time TIMESTAMP",
    ),
    (
        "ALTER TABLE tb_seckill_voucher MODIFY end_time DATETIME NOT NULL",
        "tb_seckill_voucher.end_time is datetime",
        "MODIFY end_time TIMESTAMP",
    ),
    (
        "ALTER TABLE tb_seckill_voucher MODIFY end_time TIMESTAMP NOT NULL \
         DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP",
        "tb_seckill_voucher.end_time is set by every UPDATE",
        "MODIFY end_time TIMESTAMP",
    ),
    (
        "ALTER TABLE tb_voucher_order MODIFY create_time DATETIME DEFAULT CURRENT_TIMESTAMP",
        "tb_voucher_order.create_time is datetime",
        "MODIFY create_time TIMESTAMP",
    ),
    (
        "ALTER TABLE tb_voucher_order MODIFY create_time TIMESTAMP NULL DEFAULT NULL",
        "tb_voucher_order.create_time has not the default CURRENT_TIMESTAMP",
        "DEFAULT CURRENT_TIMESTAMP",
    ),
    (
        "ALTER TABLE tb_voucher_order MODIFY pay_time DATETIME NULL",
        "tb_voucher_order.pay_time is datetime",
        "MODIFY pay_time TIMESTAMP NULL",
    ),
    (
        "ALTER TABLE tb_shop MODIFY update_time DATETIME NULL",
        "tb_shop.update_time is datetime",
        "MODIFY update_time TIMESTAMP",
    ),
    // Numbers that cannot hold what they must.
    (
        "ALTER TABLE tb_voucher_order MODIFY id INT NOT NULL",
        "tb_voucher_order.id is int",
        "MODIFY id BIGINT",
    ),
    (
        "ALTER TABLE tb_voucher_order MODIFY user_id INT UNSIGNED NOT NULL",
        "tb_voucher_order.user_id is int",
        "MODIFY user_id BIGINT",
    ),
    (
        "ALTER TABLE tb_voucher_order MODIFY voucher_id VARCHAR(32) NOT NULL",
        "tb_voucher_order.voucher_id is varchar",
        "MODIFY voucher_id BIGINT",
    ),
    (
        "ALTER TABLE tb_seckill_voucher MODIFY stock SMALLINT NOT NULL",
        "tb_seckill_voucher.stock is smallint",
        "MODIFY stock INT",
    ),
    (
        "ALTER TABLE tb_voucher MODIFY pay_value DECIMAL(10, 2) NOT NULL",
        "tb_voucher.pay_value is decimal",
        "MODIFY pay_value BIGINT",
    ),
    // A new order would have no status.
    (
        "ALTER TABLE tb_voucher_order MODIFY status TINYINT NULL DEFAULT NULL",
        "tb_voucher_order.status has not the default 1",
        "DEFAULT 1",
    ),
    (
        "ALTER TABLE tb_voucher_order MODIFY status TINYINT NULL DEFAULT 1; \
         INSERT INTO tb_voucher_order (id, user_id, voucher_id, status) VALUES (1, 7, 9, NULL)",
        "tb_voucher_order has rows whose status is NULL",
        "SET status = 1 WHERE status IS NULL",
    ),
    // Columns that are not there, and columns that a new row would need.
    (
        "ALTER TABLE tb_user DROP COLUMN icon",
        "tb_user has no column icon",
        "ADD COLUMN icon VARCHAR(255)",
    ),
    (
        "ALTER TABLE tb_voucher_order DROP COLUMN refund_time",
        "tb_voucher_order has no column refund_time",
        "ADD COLUMN refund_time TIMESTAMP NULL",
    ),
    (
        "ALTER TABLE tb_user ADD COLUMN email VARCHAR(64) NOT NULL",
        "tb_user.email takes no NULL and has no default",
        "MODIFY email varchar(64) NULL",
    ),
    (
        "ALTER TABLE tb_voucher_order ADD COLUMN amount BIGINT NOT NULL",
        "tb_voucher_order.amount takes no NULL and has no default",
        "MODIFY amount bigint",
    ),
    (
        "ALTER TABLE tb_user MODIFY id BIGINT UNSIGNED NOT NULL",
        "tb_user.id does not count by itself",
        "AUTO_INCREMENT",
    ),
    // Keys.
    (
        "ALTER TABLE tb_user DROP KEY phone_key, ADD UNIQUE KEY phone_name (phone, nick_name)",
        "tb_user has no unique key (phone)",
        "ADD UNIQUE KEY (phone)",
    ),
    (
        "ALTER TABLE tb_voucher_order DROP PRIMARY KEY, ADD PRIMARY KEY (id, user_id)",
        "tb_voucher_order has no unique key (id)",
        "ADD UNIQUE KEY (id)",
    ),
    (
        "ALTER TABLE tb_seckill_voucher DROP PRIMARY KEY",
        "tb_seckill_voucher has no unique key (voucher_id)",
        "ADD UNIQUE KEY (voucher_id)",
    ),
    (
        "ALTER TABLE tb_voucher_order ADD CONSTRAINT fk_sale FOREIGN KEY (voucher_id) \
         REFERENCES tb_seckill_voucher (voucher_id)",
        "tb_voucher_order.voucher_id has the foreign key fk_sale",
        "DROP FOREIGN KEY fk_sale",
    ),
    (
        "ALTER TABLE tb_voucher_order ADD CONSTRAINT fk_user FOREIGN KEY (user_id) \
         REFERENCES tb_user (id) ON DELETE CASCADE ON UPDATE CASCADE",
        "tb_voucher_order.user_id has the foreign key fk_user",
        "DROP FOREIGN KEY fk_user",
    ),
    // Tables that cannot have the keys, or that are views.
    (
        "ALTER TABLE tb_voucher_order PARTITION BY HASH (id) PARTITIONS 4",
        "tb_voucher_order is partitioned",
        "REMOVE PARTITIONING",
    ),
    (
        "RENAME TABLE tb_shop TO shops; CREATE VIEW tb_shop AS SELECT * FROM shops",
        "tb_shop is a view",
        "DROP VIEW tb_shop",
    ),
    // A column of ours that is there already, and is another one.
    (
        "ALTER TABLE tb_seckill_voucher ADD COLUMN issued INT NOT NULL",
        "tb_seckill_voucher.issued takes no NULL",
        "MODIFY issued int",
    ),
];

async fn remaining_steps(database: &TestDatabase) -> i64 {
    let tables = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() \
                  AND table_name IN ('tb_stock_return', 'tb_idempotency', 'tb_stock_unit')";
    database.number(tables).await
}

/// The remedies that an error names, as SQL.
fn remedies(error: &str) -> Vec<&str> {
    let lines = error.lines();
    lines
        .filter_map(|line| Some(line.split_once(" Remedy: ")?.1))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deviation_that_is_not_supported_is_refused_before_anything_is_changed() {
    let cases = REFUSED.into_iter().map(async |(deviation, says, remedy)| {
        let database = java_database().await;
        let deviating = try_all(&database, &format!("SET sql_mode = ''; {deviation}")).await;
        if is_oceanbase() && (deviating.is_err() || deviation.contains("ENGINE =")) {
            // OceanBase has one engine, and allows fewer changes of a column: nobody has this deviation there.
            return None;
        }
        deviating.unwrap();
        let Err(error) = migrate::run(&database.url()).await else {
            return Some(format!("{deviation}: is migrated"));
        };
        let error = format!("{error:#}");
        let line = error.lines().find(|line| line.contains(says));
        if !line.is_some_and(|line| line.contains(remedy)) {
            return Some(format!(
                "{deviation}: no `{says}` with `{remedy}` in: {error}"
            ));
        }
        if remaining_steps(&database).await != 0 {
            return Some(format!("{deviation}: something was changed"));
        }
        if is_oceanbase() && remedy == "REMOVE PARTITIONING" {
            // On OceanBase such a table has to be created anew.
            return None;
        }
        // The remedy works.
        for statement in remedies(&error) {
            run_all(&database, statement).await;
        }
        let migrated = migrate::run(&database.url()).await;
        migrated
            .err()
            .map(|error| format!("{deviation}, mended: {error:#}"))
    });
    // Each has a database and connections of its own.
    let wrong: Vec<Option<String>> = stream::iter(cases).buffer_unordered(4).collect().await;
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs statements on one connection, and closes it, because they may change its settings.
async fn try_all(database: &TestDatabase, statements: &str) -> Result<(), String> {
    let mut connection = database.pool.acquire().await.unwrap();
    for statement in statements.split("; ") {
        sqlx::query(statement)
            .persistent(false)
            .execute(&mut *connection)
            .await
            .map_err(|error| format!("{statement}: {error}"))?;
    }
    connection.close().await.unwrap();
    Ok(())
}

/// The same; none may fail.
async fn run_all(database: &TestDatabase, statements: &str) {
    try_all(database, statements).await.unwrap();
}

/// The tables may be changed after a migration, so `serve` and `doctor` check them, too.
#[tokio::test]
async fn a_deviation_that_is_made_after_the_migration_is_found_at_a_start() {
    let database = TestDatabase::migrated().await;
    let pool = mysql::connect(&database.url(), 1, Duration::from_secs(20))
        .await
        .unwrap();
    database
        .run("INSERT INTO tb_user (phone) VALUES ('13800000000')")
        .await;
    ready_to_serve(&pool).await.unwrap();
    assert_eq!(
        database
            .number("SELECT COUNT(*) FROM tb_voucher_order")
            .await,
        0,
        "the refusal that was tried"
    );
    for (deviation, says, undo) in [
        (
            "CREATE TRIGGER picky BEFORE INSERT ON tb_voucher_order FOR EACH ROW \
             IF NEW.status = 4 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF",
            "not this one",
            "DROP TRIGGER picky",
        ),
        (
            "ALTER TABLE tb_voucher_order DROP KEY uk_one_order_per_user",
            "tb_voucher_order has no unique key uk_one_order_per_user (voucher_id, buyer)",
            "ALTER TABLE tb_voucher_order ADD UNIQUE KEY uk_one_order_per_user (voucher_id, buyer)",
        ),
        (
            "ALTER TABLE tb_voucher_order MODIFY buyer BIGINT UNSIGNED NULL",
            "tb_voucher_order.buyer is not generated",
            "",
        ),
        (
            "ALTER TABLE tb_stock_return ENGINE = MyISAM",
            "tb_stock_return is kept by the engine MyISAM",
            "",
        ),
    ] {
        let deviating = database.pool.execute(deviation).await;
        if is_oceanbase() && (deviating.is_err() || deviation.contains("ENGINE =")) {
            continue;
        }
        deviating.unwrap();
        let error = ready_to_serve(&pool).await.unwrap_err().to_string();
        assert!(error.contains(says), "{deviation}: {error}");
        if !undo.is_empty() {
            database.run(undo).await;
        }
    }
    if is_oceanbase() {
        return;
    }
    let said = doctor(database.url().expose_secret());
    for says in [
        "FAIL  tb_voucher_order.buyer is",
        "FAIL  tb_stock_return is",
    ] {
        assert!(said.contains(says), "{says}: {said}");
    }
}

/// Most forks add such a key. With it, a user who has cancelled an order cannot buy again.
#[tokio::test]
async fn a_unique_key_without_the_status_is_named() {
    let database = java_database().await;
    database
        .run("ALTER TABLE tb_voucher_order ADD UNIQUE KEY uk_user_voucher (user_id, voucher_id)")
        .await;
    let url = database.url();
    let url = url.expose_secret();
    let env = [("DATABASE_URL", url.to_owned())];
    let migrated = Instance::says(0, &["migrate"], &env, "5 migration steps applied");
    for said in [migrated, doctor(url)] {
        for says in [
            "uk_user_voucher",
            "(user_id, voucher_id)",
            "ALTER TABLE tb_voucher_order DROP KEY uk_user_voucher",
        ] {
            assert!(said.contains(says), "{says}: {said}");
        }
    }
}

/// `doctor` reports no other error, and no server as unavailable.
#[tokio::test]
async fn before_the_first_migration_doctor_says_to_migrate() {
    let stack = Stack::start_on(java_database().await, 0, &[]).await;
    let said = Instance::says(1, &["doctor"], &stack.env(), "run `seckill migrate`");
    assert!(!said.contains("ERROR"), "{said}");
    assert!(!said.contains("is not available"), "{said}");
}

/// Deviations that are supported, all in one database.
const SUPPORTED: [&str; 9] = [
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

/// Buys, and has the order end as `cancelled`, after which the user buys again, or as `paid`.
async fn assert_lifetime(stack: &Stack, user: &SignedIn, sale: i64, end: &str) {
    let order = stack.buy_committed(user, sale).await;
    let found = stack.look_up(user, order).await;
    assert_eq!(found.data()["status"], 1, "{found:?}");
    let path = format!("/voucher-order/{order}");
    let change = async |action: &str| {
        let changing = post(stack.url(), &format!("{path}/{action}")).token(&user.token);
        changing.send().await
    };
    if end == "cancelled" {
        assert_eq!(change("cancel").await.data()["status"], 4);
        let again = stack.buy_committed(user, sale).await;
        assert_ne!(again, order);
    } else {
        assert_eq!(change("pay").await.data()["status"], 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_with_every_supported_deviation_sells_and_is_read() {
    if is_oceanbase() {
        // OceanBase has neither the character set nor half of these changes.
        return;
    }
    let database = java_database().await;
    for statement in SUPPORTED {
        run_all(&database, statement).await;
    }
    migrate::run(&database.url()).await.unwrap();
    // docs/OPERATIONS.md: without expiry nothing needs it.
    run_all(
        &database,
        "ALTER TABLE tb_voucher_order DROP KEY idx_status_create_time",
    )
    .await;
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

    // A row with NULLs that we would not have written.
    let user = &buyers[0];
    let old = format!(
        "INSERT INTO tb_voucher_order (id, user_id, voucher_id, pay_type, create_time, update_time) \
         VALUES (5, {}, 1, NULL, NULL, NULL)",
        user.id
    );
    stack.database.run(&old).await;
    let found = stack.look_up(user, 5).await;
    assert!(found.data().get("createTime").is_none(), "{found:?}");
    let orders_page = get(stack.url(), "/voucher-order/of/me").token(&user.token);
    let orders_page = orders_page.send().await;
    assert!(
        orders_page
            .data()
            .as_array()
            .is_some_and(|orders| orders.len() == 10),
        "{orders_page:?}"
    );
    let vouchers = get(stack.url(), "/voucher/list/1").send().await;
    assert_eq!(
        vouchers.data()[0],
        json!({ "id": 1, "shopId": 1, "title": "", "type": 0 })
    );

    // Shops without times, without a place, and at a place that is not on Earth.
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
    let count_up_to =
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <= ";
    let newest = "SELECT MAX(ID) FROM information_schema.PROCESSLIST WHERE DB = DATABASE()";
    let newest = stack.database.number(newest).await;
    let connections = format!("{count_up_to}{newest}");
    let before = stack.database.number(&connections).await;
    for emoji in ["%F0%9F%8D%9C", "%F0%9F%8D%A3"] {
        let search = format!("/shop/of/name?name={emoji}");
        let found = get(stack.url(), &search).send().await;
        found.refused(400, "INVALID_PARAMETER");
    }
    let after = stack.database.number(&connections).await;
    assert_eq!(after, before, "a connection was lost");
    let shop = json!({ "name": "面🍜", "typeId": 1, "address": "x", "x": 120.0, "y": 30.0 });
    let created = post(stack.url(), "/shop").admin().json(shop).send().await;
    created.refused(400, "INVALID_PARAMETER");
    let errors = stack.instances[0].lines_with("ERROR");
    assert!(errors.is_empty(), "{}", errors.join("\n"));

    let said = Instance::says(0, &["doctor"], &stack.env(), "ready to serve");
    assert!(!said.contains("FAIL"), "{said}");
    // This order is of no sale.
    let delete = "DELETE FROM tb_voucher_order WHERE id = 5";
    stack.database.run(delete).await;
    Instance::says(0, &["audit"], &stack.env(), "holds");
}

/// A sale whose row cannot be read is refused, and named in the log. Purchases of the other sales succeed, although their rows
/// are read by the same query, and another sale still opens.
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
    // Several rounds: sales that are due at the same moment are read together.
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
        // Longer than an instance uses what it has read of a sale.
        tokio::time::sleep(Duration::from_millis(850)).await;
    }
    for sale in broken {
        let unreadable = stack.instances[0].lines_with("a row cannot be read");
        let named = format!("id={sale} ");
        let is_named = unreadable.iter().any(|line| line.contains(&named));
        assert!(is_named, "{named}: {}", unreadable.join("\n"));
    }
    assert_eq!(sound.len(), 4);
    let first = format!("the first is that of voucher {}", broken[0]);
    Instance::says(0, &["doctor"], &stack.env(), &first);
    // A stream's sale opens all the same.
    let user = stack.users(1).await.remove(0);
    let stream = stack.publish(5, "stream").await;
    stack.buy_committed(&user, stream).await;
    // The list and the audit show the sound sales.
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
