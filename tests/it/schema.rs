//! Migrations: on an empty database, a second time, and over the tables and rows of an existing hm-dianping database.

use futures_util::{StreamExt, stream};
use seckill::connection::migrate;
use sqlx::MySqlConnection;

use crate::support::database::{TestDatabase, is_oceanbase};
use crate::support::{eventually, read};

/// The tables as the Java project creates them, where that matters here: other widths and signs, zero dates as defaults,
/// times that may be NULL, none of our columns. One connection runs them, because the SQL mode belongs to the session.
const EXISTING: [&str; 6] = [
    "SET SESSION sql_mode = ''",
    "CREATE TABLE tb_user (id BIGINT(20) UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, \
     phone VARCHAR(11) NOT NULL, password VARCHAR(128), nick_name VARCHAR(32), icon VARCHAR(255), \
     create_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, \
     update_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, UNIQUE KEY phone_key (phone))",
    "CREATE TABLE tb_shop (id BIGINT(20) UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, \
     name VARCHAR(128) NOT NULL, type_id BIGINT(20) UNSIGNED NOT NULL, images VARCHAR(1024) NOT NULL, \
     area VARCHAR(128), address VARCHAR(255) NOT NULL, x DOUBLE UNSIGNED NOT NULL, y DOUBLE UNSIGNED NOT NULL, \
     avg_price BIGINT(10) UNSIGNED, sold INT(10) UNSIGNED ZEROFILL NOT NULL, \
     comments INT(10) UNSIGNED ZEROFILL NOT NULL, score INT(2) UNSIGNED ZEROFILL NOT NULL, \
     open_hours VARCHAR(32), create_time TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP, \
     update_time TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP)",
    "CREATE TABLE tb_voucher (id BIGINT(20) UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, \
     shop_id BIGINT(20) UNSIGNED, title VARCHAR(255) NOT NULL, sub_title VARCHAR(255), \
     rules VARCHAR(1024), pay_value BIGINT(10) UNSIGNED NOT NULL, actual_value BIGINT(10) NOT NULL, \
     type TINYINT(1) UNSIGNED NOT NULL DEFAULT 0, status TINYINT(1) UNSIGNED NOT NULL DEFAULT 1, \
     create_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, \
     update_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)",
    "CREATE TABLE tb_seckill_voucher (voucher_id BIGINT(20) UNSIGNED NOT NULL PRIMARY KEY, \
     stock INT(8) NOT NULL, create_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, \
     begin_time TIMESTAMP NOT NULL DEFAULT '0000-00-00 00:00:00', \
     end_time TIMESTAMP NOT NULL DEFAULT '0000-00-00 00:00:00', \
     update_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)",
    "CREATE TABLE tb_voucher_order (id BIGINT(20) NOT NULL PRIMARY KEY, \
     user_id BIGINT(20) UNSIGNED NOT NULL, voucher_id BIGINT(20) UNSIGNED NOT NULL, \
     pay_type TINYINT(1) UNSIGNED NOT NULL DEFAULT 1, status TINYINT(1) UNSIGNED NOT NULL DEFAULT 1, \
     create_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, pay_time TIMESTAMP NULL, \
     use_time TIMESTAMP NULL, refund_time TIMESTAMP NULL, \
     update_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP)",
];

/// A database of the Java project, without rows.
pub async fn java_database() -> TestDatabase {
    let database = TestDatabase::empty().await;
    let mut connection = database.pool.acquire().await.unwrap();
    for statement in EXISTING {
        sqlx::query(statement)
            .execute(&mut *connection)
            .await
            .unwrap();
    }
    // Its SQL mode must not go back to the pool.
    connection.close().await.unwrap();
    database
}

async fn existing() -> TestDatabase {
    let database = java_database().await;
    database
        .run(
            "INSERT INTO tb_voucher_order (id, user_id, voucher_id, status) \
             VALUES (1, 7, 9, 1), (2, 7, 9, 4), (3, 8, 9, 1)",
        )
        .await;
    database
}

#[tokio::test]
async fn migrating_twice_or_on_two_nodes_at_once_is_harmless() {
    let database = TestDatabase::empty().await;
    let url = database.url();
    let second_url = database.url();
    let (first, second) = tokio::join!(migrate::run(&url), migrate::run(&second_url));
    assert!(first.unwrap() + second.unwrap() > 0);
    assert_eq!(migrate::run(&url).await.unwrap(), 0);
    let mut connection = database.pool.acquire().await.unwrap();
    assert_eq!(migrate::missing(&mut connection).await.unwrap(), 0);
}

#[tokio::test]
async fn an_existing_database_keeps_its_rows_and_gains_what_is_missing() {
    let database = existing().await;
    // The index on this column is not unique here.
    database.run("ALTER TABLE tb_user DROP KEY phone_key").await;
    database
        .run("ALTER TABLE tb_user ADD KEY phone_key (phone)")
        .await;
    migrate::run(&database.url()).await.unwrap();
    assert_eq!(
        database
            .number("SELECT COUNT(*) FROM tb_voucher_order")
            .await,
        3
    );
    let sale = "INSERT INTO tb_seckill_voucher (voucher_id, stock, begin_time, end_time) \
                VALUES (9, 5, NOW(), NOW())";
    database.run(sale).await;
    let with_defaults = "SELECT COUNT(*) FROM tb_seckill_voucher WHERE strategy = 'reentrant-lock' \
                         AND issued IS NULL";
    assert_eq!(database.number(with_defaults).await, 1);
    for (table, index) in [
        ("tb_voucher_order", "idx_status_create_time"),
        ("tb_stock_return", "PRIMARY"),
        ("tb_user", "uk_phone"),
    ] {
        let index_rows = format!(
            "SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE() \
             AND table_name = '{table}' AND index_name = '{index}' AND seq_in_index = 1"
        );
        assert_eq!(database.number(&index_rows).await, 1, "{table}.{index}");
    }
}

#[tokio::test]
async fn rows_written_by_a_java_node_are_guarded_too() {
    for database in [existing().await, TestDatabase::empty().await] {
        migrate::run(&database.url()).await.unwrap();
        database.run("DELETE FROM tb_voucher_order").await;
        // A Java node inserts only the columns it knows.
        let insert = |id: i64, status: i64| {
            format!(
                "INSERT INTO tb_voucher_order (id, user_id, voucher_id, status) \
                 VALUES ({id}, 7, 9, {status})"
            )
        };
        database.run(&insert(1, 1)).await;
        let second = sqlx::query(&insert(2, 1)).execute(&database.pool).await;
        assert!(second.is_err_and(|error| error.to_string().contains("uk_one_order_per_user")));
        // A cancelled order frees its user's place; a paid one does not.
        database
            .run("UPDATE tb_voucher_order SET status = 4 WHERE id = 1")
            .await;
        database.run(&insert(2, 1)).await;
        let reactivate = "UPDATE tb_voucher_order SET status = 1 WHERE id = 1";
        let reactivated = sqlx::query(reactivate).execute(&database.pool).await;
        assert!(reactivated.is_err());
        // Lab orders are exempt.
        let insert = "INSERT INTO tb_voucher_order (id, user_id, voucher_id, unguarded) VALUES";
        database
            .run(&format!("{insert} (3, 7, 9, 1), (4, 7, 9, 1)"))
            .await;
    }
}

#[tokio::test]
async fn rows_that_violate_a_new_constraint_are_named_and_nothing_is_changed() {
    let database = existing().await;
    database
        .run("INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES (4, 8, 9)")
        .await;
    let error = migrate::run(&database.url()).await.unwrap_err().to_string();
    assert!(error.contains("user 8, voucher 9: 2 orders"), "{error}");
    let columns = "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() \
                   AND column_name IN ('unguarded', 'strategy')";
    assert_eq!(database.number(columns).await, 0);
    // Repaired as the message says, it succeeds.
    database
        .run("UPDATE tb_voucher_order SET status = 4 WHERE id = 4")
        .await;
    migrate::run(&database.url()).await.unwrap();

    let database = existing().await;
    database.run("ALTER TABLE tb_user DROP KEY phone_key").await;
    database
        .run("INSERT INTO tb_user (phone) VALUES ('13800000001'), ('13800000001')")
        .await;
    let error = migrate::run(&database.url()).await.unwrap_err().to_string();
    assert!(error.contains("one phone number"), "{error}");
}

/// The statements of each step, without comments.
fn steps() -> Vec<Vec<String>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
    let files = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    names.iter().map(|name| statements_of(name)).collect()
}

fn statements_of(step: &str) -> Vec<String> {
    let mut text = read(&format!("migrations/{step}"));
    if is_oceanbase() {
        text = migrate::text_for_oceanbase(&text);
    }
    let lines = text.lines().filter(|line| !line.starts_with("--"));
    let text = lines.collect::<Vec<_>>().join("\n");
    let statements = text.split(";\n").map(str::trim);
    statements
        .filter(|statement| !statement.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Whether a statement changes a table; the others prepare one that does.
fn changes_a_table(statement: &str) -> bool {
    statement.starts_with("EXECUTE") || statement.starts_with("CREATE")
}

/// The columns and indexes of all tables, one per line.
async fn tables(database: &TestDatabase) -> Vec<String> {
    let tables = "SELECT CONCAT_WS(' ', table_name, column_name, column_type, extra, generation_expression) \
         FROM information_schema.columns WHERE table_schema = DATABASE() UNION ALL \
         SELECT CONCAT_WS(' ', table_name, index_name, seq_in_index, column_name, non_unique) \
         FROM information_schema.statistics WHERE table_schema = DATABASE() ORDER BY 1";
    sqlx::query_scalar(tables)
        .fetch_all(&database.pool)
        .await
        .unwrap()
}

/// Runs a statement of a step. OceanBase refuses a change of tables at times while other databases' tables are changed, asks to
/// try it again (5627), and has done nothing.
async fn run_step(connection: &mut MySqlConnection, statement: &str) {
    eventually(statement, async || {
        let ran = sqlx::raw_sql(statement).execute(&mut *connection).await;
        match ran {
            Ok(_) => true,
            Err(error) if error.to_string().contains("5627 (HY000)") => false,
            Err(error) => panic!("{statement}: {error}"),
        }
    })
    .await;
}

/// A database of the Java project on which the migration was cut short within this step, counted from 0, after this number of
/// its statements. `migrated` is a database whose migration is complete.
async fn cut_short(migrated: &TestDatabase, step: usize, statements: usize) -> TestDatabase {
    let database = java_database().await;
    let steps = steps();
    let done = steps[..step].iter().flatten();
    let done = done.chain(&steps[step][..statements]);
    let mut connection = database.pool.acquire().await.unwrap();
    for statement in done {
        run_step(&mut connection, statement).await;
    }
    connection.close().await.unwrap();
    let record = format!("{}._sqlx_migrations", migrated.name());
    let create = format!("CREATE TABLE _sqlx_migrations LIKE {record}");
    database.run(&create).await;
    let insert = format!(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         SELECT version, description, version <= {step}, checksum, execution_time \
         FROM {record} WHERE version <= {step} + 1"
    );
    database.run(&insert).await;
    database
}

/// Each change of a table commits by itself. If a process ends within a step, at whatever statement, the next migration does the
/// rest and repeats nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_that_was_cut_short_anywhere_is_finished_by_the_next() {
    let migrated = &java_database().await;
    migrate::run(&migrated.url()).await.unwrap();
    let expected = &tables(migrated).await;
    let steps = steps();
    let mut cases = Vec::new();
    for (step, statements) in steps.iter().enumerate().skip(1) {
        for (end, statement) in (1..).zip(statements) {
            if changes_a_table(statement) {
                cases.push((step, end));
            }
        }
    }
    assert!(cases.len() >= 13, "{cases:?}");
    let finished = cases.iter().map(async |(step, statements)| {
        let database = cut_short(migrated, *step, *statements).await;
        let case = format!("step {}, after {statements} statements", step + 1);
        let mut connection = database.pool.acquire().await.unwrap();
        let missing = migrate::missing(&mut connection).await.unwrap();
        drop(connection);
        if missing != steps.len() - step {
            return Some(format!("{case}: {missing} steps are missing"));
        }
        if let Err(error) = migrate::run(&database.url()).await {
            return Some(format!("{case}: {error:#}"));
        }
        let found = tables(&database).await;
        (found != *expected).then(|| format!("{case}: {found:#?}"))
    });
    let wrong: Vec<Option<String>> = stream::iter(finished).buffer_unordered(4).collect().await;
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}\nnot {expected:#?}", wrong.join("\n"));
}

/// A Java node went on writing rows after the migration was cut short.
#[tokio::test]
async fn rows_that_violate_a_new_constraint_are_named_after_a_migration_was_cut_short() {
    let migrated = java_database().await;
    migrate::run(&migrated.url()).await.unwrap();
    let database = cut_short(&migrated, 1, 1).await;
    let orders =
        "INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES (1, 8, 9), (2, 8, 9)";
    database.run(orders).await;
    let error = migrate::run(&database.url()).await.unwrap_err().to_string();
    assert!(error.contains("user 8, voucher 9: 2 orders"), "{error}");
    database
        .run("DELETE FROM tb_voucher_order WHERE id = 2")
        .await;
    migrate::run(&database.url()).await.unwrap();
}
