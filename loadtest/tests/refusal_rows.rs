//! A refusal may be a row as well: the order's id and its user, voucher 0, cancelled. It is not a row of the sale.

use std::{fs, path::PathBuf, sync::Arc};

use seckill_loadtest::chaos::verdict::{Circumstances, Outcome, SaleVerdict};
use sqlx::{Connection, Executor, MySqlConnection};
use testkit::{
    database_server::{DatabaseServer, Settings},
    process::TemporaryFolder,
};
use workload::order_rows::OrderRows;

#[tokio::test]
async fn a_refusal_is_neither_an_order_nor_a_phantom_nor_a_duplicate_nor_a_row_after_a_no() {
    let folder = Arc::new(TemporaryFolder::new().expect("a temporary folder"));
    let server = DatabaseServer::start_in(folder, Settings::default()).await.expect("a database");
    let mut database = MySqlConnection::connect(&server.url()).await.expect("a connection");
    let files = fs::read_dir("../migrations").expect("the migrations");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    files.sort_unstable();
    for file in files {
        let sql = fs::read_to_string(file).expect("a migration");
        database.execute(sqlx::raw_sql(&sql)).await.expect("a migration");
    }
    let sale = "INSERT INTO tb_seckill_voucher (voucher_id, stock, issued, begin_time, end_time) \
                VALUES (1, 1, 2, NOW(), NOW())";
    let order = "INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES (6, 5, 1)";
    // User 5 was told PENDING under the id 7, and later that there will be no such order.
    let refusal =
        "INSERT INTO tb_voucher_order (id, user_id, status, voucher_id) VALUES (7, 5, 4, 0)";
    for sql in [sale, order, refusal] {
        database.execute(sql).await.expect("a row");
    }
    let order_rows = OrderRows::open(&server.url()).await.expect("the tables");
    let outcome = Outcome { noes: [(5, 7)].into(), ..Outcome::default() };
    let circumstances = Circumstances { published: 2, ..Circumstances::default() };

    let snapshot = order_rows.read(1).await.expect("the sale");
    let verdict = SaleVerdict::of(&outcome, &snapshot, circumstances);
    // The order is what nobody was told of.
    assert_eq!(verdict.to_string(), "VIOLATION: phantom 1");
    assert_eq!((verdict.checker.orders, snapshot.rows.len()), (1, 1));

    // The same row as one of the sale is all that the refusal is not.
    let sells =
        "UPDATE tb_voucher_order SET voucher_id = 1, unguarded = 1, status = 1 WHERE id = 7";
    database.execute(sells).await.expect("a row");
    let snapshot = order_rows.read(1).await.expect("the sale");
    let verdict = SaleVerdict::of(&outcome, &snapshot, circumstances);
    let text = verdict.to_string();
    assert_eq!(text, "VIOLATION: duplicates 1, phantom 2, drift -1, row after a no 1");
}
