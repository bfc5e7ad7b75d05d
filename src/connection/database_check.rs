//! Whether the database can do what the service needs: its version, writes, tables and rights. What is missing is reported at
//! start, in one sentence each. Found later, it would be a 503 to every buyer.

use anyhow::{anyhow, bail, ensure};
use sqlx::Executor;

use super::migrate;
use super::mysql::Database;
use super::schema_check::{self, Deviations, Stage};
use super::server_check;
use super::server_error::is_duplicate;

/// One write of each kind. None changes anything, and each fails if the user has no right to it.
const WRITES: [&str; 3] = [
    "INSERT INTO tb_voucher_order (id, user_id, voucher_id, unguarded) SELECT 1, 1, 1, 0 FROM DUAL WHERE FALSE",
    "UPDATE tb_seckill_voucher SET stock = stock WHERE FALSE",
    "DELETE FROM tb_idempotency WHERE FALSE",
];

/// Inserts the row that refuses an order (`order/store/decide.rs`), for any user that exists; to be rolled back. The schema
/// does not show what a trigger does with such a row.
const REFUSAL: &str = "INSERT INTO tb_voucher_order (id, user_id, voucher_id, status) \
     SELECT 1, MIN(id), 1, 4 FROM tb_user HAVING MIN(id) IS NOT NULL";

/// What was found of a database whose server can be used.
pub struct Examination {
    /// How many migration steps it lacks.
    pub missing_steps: usize,
    /// How its tables deviate from what is needed.
    pub deviations: Deviations,
}

/// Examines the database.
///
/// # Errors
/// The server cannot be used, or the user lacks a right: as a sentence for the administrator.
pub async fn examine(database: &Database) -> anyhow::Result<Examination> {
    let examining = async {
        let mut connection = database.pool.acquire(database.pool.deadline()).await?;
        server_check::version_and_writable(&mut connection).await?;
        let missing_steps = migrate::missing(&mut connection).await?;
        let stage = if missing_steps == 0 {
            Stage::Migrated
        } else {
            Stage::BeforeMigration
        };
        let deviations = schema_check::deviations(&mut connection, stage).await?;
        if missing_steps == 0 && deviations.refused.is_empty() {
            for write in WRITES {
                let refused = |error| {
                    anyhow!(
                        "the database of DATABASE_URL fails a write that changes nothing ({error}): its user needs SELECT, \
                         INSERT, UPDATE and DELETE"
                    )
                };
                connection.execute(write).await.map_err(refused)?;
            }
            connection.execute("START TRANSACTION").await?;
            let refusing = connection.execute(REFUSAL).await;
            connection.execute("ROLLBACK").await?;
            // A duplicate is proof as well: the table has taken such a row before.
            if let Err(error) = refusing
                && !is_duplicate(&error)
            {
                bail!(
                    "tb_voucher_order does not take the row that says that an order was refused ({error}): is there a trigger or a \
                     CHECK that refuses a row with status 4 whose voucher is its own id? Let such a row pass"
                );
            }
        }
        connection.answered();
        Ok(Examination {
            missing_steps,
            deviations,
        })
    };
    let limit = database.timeout * 4;
    let in_time = tokio::time::timeout(limit, examining).await;
    in_time
        .unwrap_or_else(|_| bail!("the database of DATABASE_URL did not answer within {limit:?}"))
}

/// Checks all of it, before an instance serves.
///
/// # Errors
/// What must be repaired, as sentences for the administrator.
pub async fn ready_to_serve(database: &Database) -> anyhow::Result<()> {
    let Examination {
        missing_steps,
        deviations,
    } = examine(database).await?;
    ensure!(missing_steps == 0, migrate_first(missing_steps));
    deviations.require_bearable()
}

/// What to do about missing migration steps.
pub fn migrate_first(missing_steps: usize) -> String {
    format!(
        "{missing_steps} migration steps are missing: run `seckill migrate` first, on the database of DATABASE_URL"
    )
}
