//! The properties of a database server that the service relies on, whatever its product. Each is tested with a few statements on
//! a few connections, without the service. `docs/OPERATIONS.md` lists the properties; without one of them, the service could deny
//! an order that exists.

use std::time::{Duration, Instant};

use chrono::{NaiveDateTime, Utc};
use futures_util::StreamExt;
use sqlx::mysql::MySql;
use sqlx::pool::PoolConnection;
use sqlx::{Either, MySqlConnection, raw_sql};

use crate::support::database::TestDatabase;
use crate::support::eventually;

/// The statement by which a purchase inserts its order under this id.
fn insert(id: i64, user_id: i64) -> String {
    format!("INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES ({id}, {user_id}, 9)")
}

/// The statement that refuses the order of this id.
fn refuse(id: i64, user_id: i64) -> String {
    format!(
        "INSERT IGNORE INTO tb_voucher_order (id, user_id, voucher_id, status) VALUES ({id}, {user_id}, {id}, 4)"
    )
}

/// A connection at the isolation level of the service.
async fn connection(database: &TestDatabase) -> PoolConnection<MySql> {
    let mut connection = database.pool.acquire().await.expect("a connection");
    run(
        &mut connection,
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    )
    .await;
    connection
}

async fn run(connection: &mut MySqlConnection, text: &str) {
    let (_, error) = replies(connection, text).await;
    assert_eq!(error, None, "{text}");
}

/// How many rows each statement of a text changed, up to the first that fails; and the error number of the one that failed.
async fn replies(connection: &mut MySqlConnection, text: &str) -> (Vec<u64>, Option<u16>) {
    let mut changed = Vec::new();
    let mut steps = raw_sql(text).fetch_many(connection);
    while let Some(step) = steps.next().await {
        match step {
            Ok(Either::Left(done)) => changed.push(done.rows_affected()),
            Ok(Either::Right(_)) => {}
            Err(sqlx::Error::Database(error)) => {
                let error = error.downcast::<sqlx::mysql::MySqlDatabaseError>();
                return (changed, Some(error.number()));
            }
            Err(error) => panic!("{text}: {error}"),
        }
    }
    (changed, None)
}

async fn time(connection: &mut MySqlConnection) -> NaiveDateTime {
    sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)")
        .fetch_one(connection)
        .await
        .expect("the time")
}

const DUPLICATE: u16 = 1062;
const OUT_OF_RANGE: u16 = 1690;
const TOO_LARGE: &str = "SET @check = 9223372036854775807 + 1";

#[tokio::test]
async fn of_several_rows_inserted_under_one_key_at_once_exactly_one_is_committed() {
    let database = TestDatabase::migrated().await;
    for id in 1..=20 {
        let inserting = (1..=4).map(async |user_id| {
            let mut connection = connection(&database).await;
            let text = format!(
                "START TRANSACTION; {}; COMMIT",
                insert(id, 10 * id + user_id)
            );
            replies(&mut connection, &text).await.1
        });
        let mut errors = futures_util::future::join_all(inserting).await;
        errors.sort_unstable();
        let refused = Some(DUPLICATE);
        assert_eq!(errors, [None, refused, refused, refused]);
    }
}

#[tokio::test]
async fn an_insert_waits_for_the_end_of_a_transaction_that_has_inserted_its_key() {
    let database = TestDatabase::migrated().await;
    let mut id = 0;
    for (end, of_insert, of_refusal) in [
        ("COMMIT", (vec![], Some(DUPLICATE)), (vec![0], None)),
        ("ROLLBACK", (vec![1], None), (vec![1], None)),
    ] {
        for refuses in [false, true] {
            id += 1;
            let mut first = connection(&database).await;
            run(
                &mut first,
                &format!("START TRANSACTION; {}", insert(id, id)),
            )
            .await;
            let (statement, expected) = if refuses {
                (refuse(id, 100 + id), &of_refusal)
            } else {
                (insert(id, 100 + id), &of_insert)
            };
            let mut second = connection(&database).await;
            let text = statement.clone();
            let waiting = tokio::spawn(async move { replies(&mut second, &text).await });
            eventually("the second insert waits, or does not", async || {
                waiting.is_finished() || database.runs(&statement).await
            })
            .await;
            assert!(!waiting.is_finished(), "{statement} does not wait");
            run(&mut first, end).await;
            let replies = waiting.await.expect("an answer");
            assert_eq!(&replies, expected, "{statement}, behind {end}");
            let rows = format!("SELECT COUNT(*) FROM tb_voucher_order WHERE id = {id}");
            assert_eq!(database.number(&rows).await, 1, "{statement}, behind {end}");
        }
    }
}

#[tokio::test]
async fn an_answered_commit_is_seen_by_every_later_transaction() {
    let database = TestDatabase::migrated().await;
    let mut writer = connection(&database).await;
    let mut reader = connection(&database).await;
    for id in 1..=200 {
        let text = format!("START TRANSACTION; {}; COMMIT", insert(id, id));
        run(&mut writer, &text).await;
        let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM tb_voucher_order")
            .fetch_one(&mut *reader)
            .await
            .expect("a count");
        assert_eq!(count, id);
    }
    // Also by a transaction that had begun before.
    run(
        &mut reader,
        "START TRANSACTION; SELECT COUNT(*) FROM tb_voucher_order",
    )
    .await;
    run(&mut writer, &insert(201, 201)).await;
    assert_eq!(
        replies(&mut reader, &refuse(201, 201)).await,
        (vec![0], None)
    );
    let voucher_id: i64 = sqlx::query_scalar(
        "SELECT CAST(voucher_id AS SIGNED) FROM tb_voucher_order WHERE id = 201",
    )
    .fetch_one(&mut *reader)
    .await
    .expect("the row that kept the other out");
    assert_eq!(voucher_id, 9);
}

#[tokio::test]
async fn the_statements_of_a_text_run_in_order_up_to_the_first_that_fails() {
    let database = TestDatabase::migrated().await;
    let mut connection = connection(&database).await;
    run(&mut connection, &insert(1, 1)).await;
    for (fails, number) in [
        (TOO_LARGE.to_owned(), OUT_OF_RANGE),
        (insert(1, 2), DUPLICATE),
    ] {
        let text = format!(
            "ROLLBACK; START TRANSACTION; {}; {fails}; {}; COMMIT",
            insert(2, 2),
            insert(3, 3)
        );
        assert_eq!(
            replies(&mut connection, &text).await,
            (vec![0, 0, 1], Some(number))
        );
        // The transaction is still open, and the next text in it finds only the first row.
        let next = "DELETE FROM tb_voucher_order WHERE id IN (2, 3); ROLLBACK";
        assert_eq!(replies(&mut connection, next).await, (vec![1, 0], None));
        let rows = "SELECT COUNT(*) FROM tb_voucher_order";
        assert_eq!(database.number(rows).await, 1, "nothing was committed");
    }
}

#[tokio::test]
async fn an_update_counts_the_rows_that_its_condition_matched() {
    let database = TestDatabase::migrated().await;
    let mut connection = connection(&database).await;
    run(
        &mut connection,
        "INSERT INTO tb_seckill_voucher (voucher_id, stock) VALUES (8, 0), (9, 1)",
    )
    .await;
    for (statement, rows) in [
        ("UPDATE tb_seckill_voucher SET stock = stock", 2),
        (
            "UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id IN (8, 9) AND stock >= 1",
            1,
        ),
        (
            "UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id IN (8, 9) AND stock >= 1",
            0,
        ),
        (
            "INSERT IGNORE INTO tb_seckill_voucher (voucher_id, stock) VALUES (9, 1), (10, 1)",
            1,
        ),
    ] {
        // A check by the next statement sees the same count.
        let text =
            format!("{statement}; SET @check = 9223372036854775807 + (ROW_COUNT() <> {rows})");
        assert_eq!(
            replies(&mut connection, &text).await,
            (vec![rows, 0], None),
            "{statement}"
        );
    }
}

#[tokio::test]
async fn the_servers_clock_goes_on_from_statement_to_statement_and_is_in_utc() {
    const PAUSE: Duration = Duration::from_millis(20);
    let database = TestDatabase::migrated().await;
    let mut first_connection = connection(&database).await;
    let mut second_connection = connection(&database).await;
    run(
        &mut first_connection,
        "SET SESSION time_zone = '+08:00'; START TRANSACTION",
    )
    .await;
    let began = Instant::now();
    let first = time(&mut first_connection).await;
    assert!((Utc::now().naive_utc() - first).abs() < chrono::TimeDelta::seconds(10));
    let mut latest = first;
    for _ in 0..50 {
        for connection in [&mut first_connection, &mut second_connection] {
            let now = time(connection).await;
            assert!(now > latest - chrono::TimeDelta::seconds(10));
            latest = now;
        }
    }
    // Also within a text, where a statement before may have waited.
    let text = format!(
        "SET @before = UTC_TIMESTAMP(6); SELECT SLEEP({}); \
         SET @check = 9223372036854775807 + (TIMESTAMPDIFF(MICROSECOND, @before, UTC_TIMESTAMP(6)) < {})",
        PAUSE.as_secs_f64(),
        PAUSE.as_micros()
    );
    run(&mut first_connection, &text).await;
    let passed = (time(&mut first_connection).await - first)
        .to_std()
        .expect("it goes on");
    assert!(passed.abs_diff(began.elapsed()) < Duration::from_secs(1));
}
