//! Whether the database can do what the service needs: its version, writes, tables and rights. Found at start, as one
//! sentence each; later it would be a 503 to every buyer.

use anyhow::{anyhow, bail, ensure};
use sqlx::Executor;

use super::migrate;
use super::mysql::Database;
use super::server_check;

/// One write of each kind, of the newest columns, none of which does anything. They fail without the right to it, and where
/// the tables are of another release.
const WRITES: [&str; 3] = [
    "INSERT INTO tb_voucher_order (id, user_id, voucher_id, unguarded) SELECT 1, 1, 1, 0 FROM DUAL \
     WHERE FALSE AND EXISTS (SELECT buyer FROM tb_voucher_order)",
    "UPDATE tb_seckill_voucher SET stock = stock, issued = issued, strategy = strategy WHERE FALSE",
    "DELETE FROM tb_idempotency WHERE FALSE AND operation = idempotency_key AND result = 1",
];

/// Checks all of it, before an instance serves or sample data is written.
///
/// # Errors
/// The first thing that must be repaired, as a sentence for the administrator.
pub async fn ready_to_serve(database: &Database) -> anyhow::Result<()> {
    let checks = async {
        let mut connection = database.pool.acquire(database.pool.deadline()).await?;
        server_check::version_and_writable(&mut connection).await?;
        let missing = migrate::missing(&mut connection).await?;
        ensure!(
            missing == 0,
            "{missing} migration steps are missing: run `seckill migrate` first, on the database of DATABASE_URL"
        );
        for write in WRITES {
            let refused = |error| {
                anyhow!(
                    "the database of DATABASE_URL fails a write that changes nothing ({error}): its user needs SELECT, INSERT, \
                     UPDATE and DELETE, and its tables the columns of this release"
                )
            };
            connection.execute(write).await.map_err(refused)?;
        }
        connection.answered();
        Ok(())
    };
    let limit = database.timeout * 4;
    let in_time = tokio::time::timeout(limit, checks).await;
    in_time
        .unwrap_or_else(|_| bail!("the database of DATABASE_URL did not answer within {limit:?}"))
}
