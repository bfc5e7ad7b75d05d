//! Sales and orders in the benchmark's own tables, many made at once by SQL.

use std::ops::RangeInclusive;

use anyhow::ensure;
use sqlx::{Executor, MySqlPool};

/// Orders made by one statement: a thousand users with a hundred each.
const CHUNK: u64 = 100_000;
/// Past orders of one user.
const ORDERS_PER_USER: u64 = 100;

/// A table of the numbers below 100,000, in a column `n`.
fn numbers() -> String {
    let digit = "(SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 \
                 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)";
    format!(
        "(SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d AS n \
         FROM {digit} a, {digit} b, {digit} c, {digit} e, {digit} f) numbers"
    )
}

/// Opens `count` sales of `stock` each, on `group-commit`, from an hour ago for three hours; returns their vouchers' ids.
/// Redis learns nothing of them: this strategy does not need that.
pub async fn open(pool: &MySqlPool, count: u64, stock: u32) -> anyhow::Result<RangeInclusive<u64>> {
    let vouchers = format!(
        "INSERT INTO tb_voucher (shop_id, title, pay_value, actual_value, type) \
         SELECT 1, 'Benchmark', 8000, 10000, 1 FROM {} WHERE n < {count}",
        numbers()
    );
    let first = pool.execute(vouchers.as_str()).await?.last_insert_id();
    let last = first + count - 1;
    let sales = format!(
        "INSERT INTO tb_seckill_voucher (voucher_id, stock, issued, begin_time, end_time, strategy) \
         SELECT id, {stock}, {stock}, NOW() - INTERVAL 1 HOUR, NOW() + INTERVAL 2 HOUR, 'group-commit' \
         FROM tb_voucher WHERE id BETWEEN {first} AND {last}"
    );
    let made = pool.execute(sales.as_str()).await?.rows_affected();
    ensure!(
        made == count,
        "{made} of {count} sales were made: ids are not consecutive"
    );
    Ok(first..=last)
}

/// Empties the table, then fills it with `count` paid orders of the day before: users from 1 on have a hundred each, in
/// sales of their own. They are inserted in chunks and in the order of the indexes, so that ten millions take minutes at
/// most.
pub async fn past_orders(pool: &MySqlPool, count: u64) -> anyhow::Result<()> {
    pool.execute("TRUNCATE TABLE tb_voucher_order").await?;
    let mut connection = pool.acquire().await?;
    for chunk in 0..count.div_ceil(CHUNK) {
        let first = chunk * CHUNK;
        let rows = CHUNK.min(count - chunk * CHUNK);
        // No sale of the benchmark has a voucher's id that is so high.
        let insert = format!(
            "INSERT INTO tb_voucher_order (id, user_id, voucher_id, status, create_time) \
             SELECT {first} + n + 1, ({first} + n) DIV {ORDERS_PER_USER} + 1, \
             4000000000 + n MOD {ORDERS_PER_USER}, 2, NOW() - INTERVAL 1 DAY \
             FROM {} WHERE n < {rows} ORDER BY n",
            numbers()
        );
        connection.execute(insert.as_str()).await?;
    }
    connection.execute("ANALYZE TABLE tb_voucher_order").await?;
    Ok(())
}

/// Bytes of table and indexes for one order; an error where there are no orders.
pub async fn bytes_per_order(pool: &MySqlPool) -> anyhow::Result<f64> {
    let query = "SELECT CAST((data_length + index_length) / NULLIF(table_rows, 0) AS DOUBLE) FROM \
                 information_schema.tables WHERE table_schema = DATABASE() \
                 AND table_name = 'tb_voucher_order'";
    Ok(sqlx::query_scalar(query).fetch_one(pool).await?)
}
