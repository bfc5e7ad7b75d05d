//! Sales and orders in the benchmark's own tables: many made at once by SQL, and read for the audit.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sqlx::{Executor, MySqlPool};
use workload::checker::{OrderRow, Sale};

/// A sale with its orders.
pub type SaleRows = (Sale, Vec<OrderRow>);

/// How long the tables must not have changed.
const QUIET: Duration = Duration::from_millis(150);
/// Longest wait for that.
const LIMIT: Duration = Duration::from_secs(30);

/// Rows of the table `numbers`, which counts from 0.
const NUMBERS: u64 = 100_000;
/// Orders made by one statement: a thousand users with a hundred each.
const CHUNK: u64 = 100_000;
/// Past orders of one user.
const ORDERS_PER_USER: u64 = 100;

/// Creates what the other functions need.
///
/// # Errors
/// The database fails.
pub async fn prepare(pool: &MySqlPool) -> anyhow::Result<()> {
    pool.execute("CREATE TABLE IF NOT EXISTS numbers (n INT UNSIGNED PRIMARY KEY)").await?;
    let known: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM numbers").fetch_one(pool).await?;
    if known != NUMBERS.cast_signed() {
        let digit = "(SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 \
                     UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)";
        let insert = format!(
            "INSERT IGNORE INTO numbers SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d \
             FROM {digit} a, {digit} b, {digit} c, {digit} e, {digit} f"
        );
        pool.execute(insert.as_str()).await?;
    }
    Ok(())
}

/// Opens `count` sales of `stock` each, on `group-commit`, from an hour ago for three hours; their vouchers' ids. Redis
/// learns nothing of them, which this strategy does not need.
///
/// # Errors
/// The database fails.
pub async fn open(pool: &MySqlPool, count: u64, stock: u32) -> anyhow::Result<RangeInclusive<u64>> {
    let vouchers = format!(
        "INSERT INTO tb_voucher (shop_id, title, pay_value, actual_value, type) \
         SELECT 1, 'Benchmark', 8000, 10000, 1 FROM numbers WHERE n < {count}"
    );
    let first = pool.execute(vouchers.as_str()).await?.last_insert_id();
    let last = first + count - 1;
    let sales = format!(
        "INSERT INTO tb_seckill_voucher (voucher_id, stock, issued, begin_time, end_time, strategy) \
         SELECT id, {stock}, {stock}, NOW() - INTERVAL 1 HOUR, NOW() + INTERVAL 2 HOUR, 'group-commit' \
         FROM tb_voucher WHERE id BETWEEN {first} AND {last}"
    );
    let made = pool.execute(sales.as_str()).await?.rows_affected();
    ensure!(made == count, "{made} of {count} sales were made: ids are not consecutive");
    Ok(first..=last)
}

/// Fills the table of orders up to `count` paid ones of the day before: a hundred each of users from 1 on, in sales that
/// are over. Chunk by chunk in the order of the indexes, so that a table of ten millions takes minutes at most.
///
/// # Errors
/// The database fails.
pub async fn past_orders(pool: &MySqlPool, count: u64) -> anyhow::Result<()> {
    pool.execute("TRUNCATE TABLE tb_voucher_order").await?;
    let mut connection = pool.acquire().await?;
    for chunk in 0..count.div_ceil(CHUNK) {
        let (first, rows) = (chunk * CHUNK, CHUNK.min(count - chunk * CHUNK));
        // Vouchers of these ids may be open now: orders of users who will not buy there.
        let insert = format!(
            "INSERT INTO tb_voucher_order (id, user_id, voucher_id, status, create_time) \
             SELECT {first} + n + 1, ({first} + n) DIV {ORDERS_PER_USER} + 1, \
             4000000000 + n MOD {ORDERS_PER_USER}, 2, NOW() - INTERVAL 1 DAY \
             FROM numbers WHERE n < {rows} ORDER BY n"
        );
        connection.execute(insert.as_str()).await?;
    }
    connection.execute("ANALYZE TABLE tb_voucher_order").await?;
    Ok(())
}

/// Bytes of table and indexes for one order.
///
/// # Errors
/// The database fails, or has no orders.
pub async fn bytes_per_order(pool: &MySqlPool) -> anyhow::Result<f64> {
    let query = "SELECT CAST((data_length + index_length) / table_rows AS DOUBLE) FROM \
                 information_schema.tables WHERE table_schema = DATABASE() \
                 AND table_name = 'tb_voucher_order'";
    let bytes: Option<f64> = sqlx::query_scalar(query).fetch_one(pool).await?;
    bytes.context("the size of an order in the database")
}

/// Median time of a small transaction of one client, with its commit.
///
/// # Errors
/// The database fails.
pub async fn commit_time(pool: &MySqlPool) -> anyhow::Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..100 {
        let begun = Instant::now();
        pool.execute("UPDATE tb_seckill_voucher SET stock = stock + 1 ORDER BY voucher_id LIMIT 1")
            .await?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Sales and their orders, by voucher, once they have not changed for a moment and there are as many as were `confirmed`,
/// some of which may still wait in the stream.
///
/// # Errors
/// The database fails, or they go on changing.
pub async fn wait_until_unchanged(
    pool: &MySqlPool,
    sales: RangeInclusive<u64>,
    confirmed: usize,
) -> anyhow::Result<Vec<SaleRows>> {
    let begun = Instant::now();
    let mut last = read(pool, &sales).await?;
    loop {
        tokio::time::sleep(QUIET).await;
        let now = read(pool, &sales).await?;
        let (is_unchanged, is_late) = (now == last, begun.elapsed() > LIMIT);
        let orders = now.iter().map(|(_, rows)| rows.len()).sum::<usize>();
        if is_unchanged && (orders >= confirmed || is_late) {
            return Ok(now);
        }
        ensure!(!is_late, "the tables still change after {LIMIT:?}");
        last = now;
    }
}

async fn read(pool: &MySqlPool, sales: &RangeInclusive<u64>) -> anyhow::Result<Vec<SaleRows>> {
    let (first, last) = (*sales.start(), *sales.end());
    let mut snapshot =
        pool.begin_with("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY").await?;
    let query = "SELECT CAST(issued AS SIGNED), CAST(stock + (SELECT COUNT(*) FROM tb_stock_unit u \
                 WHERE u.voucher_id = s.voucher_id) AS SIGNED) FROM tb_seckill_voucher s \
                 WHERE voucher_id BETWEEN ? AND ? ORDER BY voucher_id";
    let stocks: Vec<(i64, i64)> =
        sqlx::query_as(query).bind(first).bind(last).fetch_all(&mut *snapshot).await?;
    ensure!(stocks.len() == sales.clone().count(), "a sale is missing");
    let sale = |(issued, stock_left)| (Sale { issued, stock_left, added: 0 }, Vec::new());
    let mut rows: Vec<SaleRows> = stocks.into_iter().map(sale).collect();
    let query = "SELECT voucher_id, id, user_id, status FROM tb_voucher_order \
                 WHERE voucher_id BETWEEN ? AND ? ORDER BY voucher_id, id";
    let orders: Vec<(u64, i64, u64, u8)> =
        sqlx::query_as(query).bind(first).bind(last).fetch_all(&mut *snapshot).await?;
    snapshot.commit().await?;
    for (voucher, id, user_id, status) in orders {
        let at = usize::try_from(voucher - first)?;
        rows[at].1.push(OrderRow { id, user_id, status });
    }
    Ok(rows)
}
