//! Whether the database can do what the service needs: its version, writes, tables and rights. Found at start, as one
//! sentence each; later it would be a 503 to every buyer.

use anyhow::{anyhow, bail, ensure};
use sqlx::Executor;

use super::migrate;
use super::mysql::Database;
use super::server_check;
use super::server_error::{Meaning, meaning_of};

/// Writes of every kind to every table that the service writes to, none of which does anything. They fail without the right
/// to do it, and where a column is not there.
const WRITES: [&str; 12] = [
    "INSERT INTO tb_user (phone, nick_name, icon) SELECT '', '', '' FROM DUAL WHERE FALSE",
    "INSERT INTO tb_shop (name, type_id, images, area, address, x, y, avg_price, open_hours) \
     SELECT '', 1, '', '', '', 0, 0, 0, '' FROM DUAL WHERE FALSE",
    "UPDATE tb_shop SET name = name WHERE FALSE",
    "INSERT INTO tb_voucher (shop_id, title, sub_title, rules, pay_value, actual_value, type, status) \
     SELECT 1, '', '', '', 0, 0, 1, 1 FROM DUAL WHERE FALSE",
    "INSERT INTO tb_seckill_voucher (voucher_id, stock, begin_time, end_time, issued, strategy) \
     SELECT 1, 0, NOW(), NOW(), 0, '' FROM DUAL WHERE FALSE",
    "UPDATE tb_seckill_voucher SET stock = stock, issued = issued, strategy = strategy WHERE FALSE",
    "INSERT INTO tb_voucher_order (id, user_id, voucher_id, unguarded) SELECT 1, 1, 1, 0 FROM DUAL \
     WHERE FALSE AND EXISTS (SELECT buyer FROM tb_voucher_order)",
    "UPDATE tb_voucher_order SET status = status, pay_time = pay_time WHERE FALSE",
    "DELETE FROM tb_stock_return WHERE FALSE AND order_id = voucher_id + user_id",
    "INSERT INTO tb_stock_unit (voucher_id) SELECT 1 FROM DUAL WHERE FALSE",
    "DELETE FROM tb_stock_unit WHERE FALSE AND id = voucher_id",
    "DELETE FROM tb_idempotency WHERE FALSE AND operation = idempotency_key AND result = 1",
];

/// Checks all of it, before an instance serves or sample data is written.
///
/// # Errors
/// The first thing that must be repaired, as a sentence for the administrator.
pub async fn ready_to_serve(database: &Database) -> anyhow::Result<()> {
    let checks = async {
        let mut connection = database.pool.acquire().await?;
        server_check::version_and_writable(&mut connection).await?;
        let missing = migrate::missing(&mut connection).await?;
        ensure!(
            missing == 0,
            "{missing} migration steps are missing: run `seckill migrate` first, on the database of DATABASE_URL"
        );
        for write in WRITES {
            connection.execute(write).await.map_err(|error| refused_write(&error))?;
        }
        connection.answered();
        Ok(())
    };
    let limit = database.timeout * 4;
    let in_time = tokio::time::timeout(limit, checks).await;
    in_time
        .unwrap_or_else(|_| bail!("the database of DATABASE_URL did not answer within {limit:?}"))
}

fn refused_write(error: &sqlx::Error) -> anyhow::Error {
    match meaning_of(error) {
        Meaning::Schema => anyhow!(
            "the tables in the database of DATABASE_URL are not what this release needs; was a column \
             or a table renamed or dropped? ({error})"
        ),
        Meaning::Elsewhere => anyhow!(
            "the user of DATABASE_URL cannot write; GRANT SELECT, INSERT, UPDATE, DELETE on the \
             database ({error})"
        ),
        _ => anyhow!("the database of DATABASE_URL fails a write that changes nothing ({error})"),
    }
}
