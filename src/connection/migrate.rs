//! Schema migrations, also for a database that a Java node has been using. Before anything is changed, the tables are
//! compared with what is needed, and rows that would violate a new constraint are searched for, so that the message names
//! them instead of an error number.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use include_dir::{Dir, File, include_dir};
use secrecy::SecretString;
use sqlx::migrate::{Migrate, Migration, MigrationType, Migrator};
use sqlx::{Connection, Executor, MySqlConnection};

use super::mysql::connect_once;
use super::product::{self, Product};
use super::schema_check::{Stage, deviations};
use super::server_check::version_and_writable;
use super::server_error::{Meaning, meaning_of};

static FILES: Dir = include_dir!("$CARGO_MANIFEST_DIR/migrations");

/// The steps: files such as `0002_one_order_per_user.sql`. An applied step is recognised by the checksum of its text. In place
/// of `sqlx::migrate!`, for the reason in [`super::row`].
fn steps() -> anyhow::Result<Migrator> {
    let step = |file: &'static File<'static>| {
        let (version, name) = file.path().file_stem()?.to_str()?.split_once('_')?;
        let version = version.parse().ok()?;
        let name = name.replace('_', " ").into();
        let text = file.contents_utf8()?.into();
        Some(Migration::new(
            version,
            name,
            MigrationType::Simple,
            text,
            false,
        ))
    };
    let steps: Option<Vec<Migration>> = FILES.files().map(step).collect();
    let mut steps = steps.context("a file in migrations/ is not named as a step")?;
    steps.sort_unstable_by_key(|step| step.version);
    Ok(Migrator {
        migrations: steps.into(),
        // `run` holds a lock of its own.
        locking: false,
        ..Migrator::DEFAULT
    })
}

/// Texts, and what replaces them on OceanBase: it has no character set `ascii`, and its smallest edition ends when it executes
/// a `DO` that was prepared. The checksum of a step stays that of its file.
const FOR_OCEANBASE: [(&str, &str); 2] = [
    (
        "CHARACTER SET ascii COLLATE ascii_bin",
        "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    ),
    ("'DO 0'", "'SELECT 0'"),
];

/// A step's text as OceanBase can run it.
pub fn text_for_oceanbase(text: &str) -> String {
    FOR_OCEANBASE
        .iter()
        .fold(text.to_owned(), |text, (usual, otherwise)| {
            text.replace(usual, otherwise)
        })
}

/// Longest wait for the connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Longest wait for another node that is migrating, seconds.
const LOCK_WAIT_SECONDS: i64 = 60;

/// Longest time of a statement on OceanBase, which limits every statement; microseconds.
const LONGEST_STEP_US: u32 = 1_000_000_000;

const ANOTHER_MIGRATES: &str =
    "another node has been migrating this database for 60 s; try again later";

const FOREIGN: &str =
    "the database of DATABASE_URL was migrated by a newer release, or by another application";

/// The step that adds the unique keys of `tb_voucher_order` and `tb_user`.
const ADDS_UNIQUE_KEYS: i64 = 2;

/// For so long a step is tried again that met another change of tables.
const CONFLICTS_LIMIT: Duration = Duration::from_secs(60);
const CONFLICT_PAUSE: Duration = Duration::from_millis(200);

/// Rows shown of each kind of conflict.
const SHOWN: i64 = 5;

/// Brings the schema up to date; returns how many steps were applied. Idempotent, also when two nodes run it at once: the
/// second waits for the first.
///
/// # Errors
/// Where the database cannot be used or its user may not change tables; or existing tables are not what is needed, or rows
/// violate a new constraint: the message names them.
pub async fn run(url: &SecretString) -> anyhow::Result<usize> {
    // A connection of its own: the steps set session variables that must not reach the pool.
    let mut connection = connect_once(url, CONNECT_LIMIT).await?;
    version_and_writable(&mut connection).await?;
    // Where it is on, the server refuses to change rows that are not named by a key.
    connection
        .execute("SET SESSION sql_safe_updates = 0")
        .await?;
    let version = product::version(&mut connection).await?;
    let is_oceanbase = Product::from_version(&version) == Product::OceanBase;
    let _lock = if is_oceanbase {
        // The usual limit of a statement is too short for changes of tables.
        let limit = format!("SET SESSION ob_query_timeout = {LONGEST_STEP_US}");
        connection.execute(limit.as_str()).await?;
        Some(lock_by_row(url).await?)
    } else {
        lock(&mut connection).await?;
        None
    };
    let before = applied(&mut connection).await?;
    refuse_newer(&mut connection).await?;
    let found = deviations(&mut connection, Stage::BeforeMigration).await?;
    found.require_bearable()?;
    let applied_before = applied_versions(&mut connection).await?;
    if !applied_before.contains(&ADDS_UNIQUE_KEYS) {
        refuse_conflicting_rows(&mut connection).await?;
    }
    let mut migrator = steps()?;
    if is_oceanbase {
        for step in migrator.migrations.to_mut() {
            step.sql = text_for_oceanbase(&step.sql).into();
        }
    }
    apply(&migrator, &mut connection).await?;
    let after = applied(&mut connection).await?;
    // A step adds only what is missing by its name: another column or key of the same name is found here.
    let found = deviations(&mut connection, Stage::Migrated).await?;
    found.require_bearable()?;
    connection.close().await?;
    Ok(after - before)
}

/// Applies the steps that the database lacks. OceanBase refuses a change of tables at times while others are changed, and asks
/// to try it again.
async fn apply(migrator: &Migrator, connection: &mut MySqlConnection) -> anyhow::Result<()> {
    use sqlx::migrate::MigrateError::{Execute, ExecuteMigration};
    let end = Instant::now() + CONFLICTS_LIMIT;
    loop {
        forget_interrupted(connection).await?;
        match migrator.run_direct(connection).await {
            Err(Execute(of) | ExecuteMigration(of, _))
                if meaning_of(&of) == Meaning::Conflict && Instant::now() < end =>
            {
                tracing::warn!(error = %of, "a migration met another change of tables; trying again");
                tokio::time::sleep(CONFLICT_PAUSE).await;
            }
            applied => return applied.map_err(failed_migration),
        }
    }
}

/// Forgets a step that began and failed, or whose process ended: it is repeated. Each does only what is missing, and the
/// lock keeps other nodes out.
async fn forget_interrupted(connection: &mut MySqlConnection) -> anyhow::Result<()> {
    if table_exists(connection, "_sqlx_migrations").await? {
        let forget = sqlx::query("DELETE FROM _sqlx_migrations WHERE NOT success");
        forget
            .execute(connection)
            .await
            .map_err(|error| failed_migration(error.into()))?;
    }
    Ok(())
}

fn failed_migration(error: sqlx::migrate::MigrateError) -> anyhow::Error {
    use sqlx::migrate::MigrateError::{Execute, ExecuteMigration, VersionMismatch};
    match &error {
        Execute(of) | ExecuteMigration(of, _) if meaning_of(of) == Meaning::Elsewhere => {
            anyhow!(
                "the user of DATABASE_URL may not change the tables; run `seckill migrate` as one who has \
             CREATE, ALTER, INDEX, DROP, SELECT, INSERT, UPDATE and DELETE on the database, and again after a GRANT ({of})"
            )
        }
        VersionMismatch(_) => anyhow!("{FOREIGN} ({error})"),
        _ => anyhow!(error).context("a migration failed"),
    }
}

/// Acquires the database's migration lock, which ends with the connection. The migrator's own lock has a negative time limit,
/// with which MySQL waits forever and MariaDB not at all.
async fn lock(connection: &mut MySqlConnection) -> anyhow::Result<()> {
    let acquired: Option<i64> = sqlx::query_scalar(
        "SELECT CAST(GET_LOCK(CONCAT('seckill-migrate-', DATABASE()), ?) AS SIGNED)",
    )
    .bind(LOCK_WAIT_SECONDS)
    .fetch_one(connection)
    .await?;
    ensure!(acquired == Some(1), ANOTHER_MIGRATES);
    Ok(())
}

/// The same on OceanBase, whose smallest edition keeps the locks of GET_LOCK when their connections end. The lock is a row that
/// the returned connection has inserted and never commits: the insert of another node waits for it.
async fn lock_by_row(url: &SecretString) -> anyhow::Result<MySqlConnection> {
    let mut holder = connect_once(url, CONNECT_LIMIT).await?;
    let made = holder.ensure_migrations_table().await;
    made.map_err(failed_migration)?;
    let wait_us = LOCK_WAIT_SECONDS * 1_000_000;
    let waits = format!(
        "SET SESSION ob_trx_lock_timeout = {wait_us}, ob_query_timeout = {}; START TRANSACTION",
        2 * wait_us
    );
    holder.execute(waits.as_str()).await?;
    let locking = holder
        .execute(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
             VALUES (0, 'whoever migrates', TRUE, '', 0)",
        )
        .await;
    match locking {
        Err(error) if meaning_of(&error) == Meaning::Conflict => bail!(ANOTHER_MIGRATES),
        locking => locking?,
    };
    Ok(holder)
}

/// How many steps the database lacks, for `doctor` and `serve`.
pub async fn missing(connection: &mut MySqlConnection) -> anyhow::Result<usize> {
    Ok(FILES
        .files()
        .count()
        .saturating_sub(applied(connection).await?))
}

/// How many of the steps were applied; the table may be another application's.
async fn applied(connection: &mut MySqlConnection) -> anyhow::Result<usize> {
    let applied = applied_versions(connection).await?;
    Ok(steps()?
        .iter()
        .filter(|step| applied.contains(&step.version))
        .count())
}

async fn applied_versions(connection: &mut MySqlConnection) -> anyhow::Result<Vec<i64>> {
    if !table_exists(connection, "_sqlx_migrations").await? {
        return Ok(Vec::new());
    }
    let versions = sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success");
    Ok(versions.fetch_all(connection).await?)
}

/// A newer release needs other tables than this one.
async fn refuse_newer(connection: &mut MySqlConnection) -> anyhow::Result<()> {
    let applied = applied_versions(connection).await?;
    let steps = steps()?;
    let unknown = applied
        .iter()
        .find(|version| steps.iter().all(|step| step.version != **version));
    match unknown {
        Some(version) => bail!("{FOREIGN} (step {version} is not one of this release)"),
        None => Ok(()),
    }
}

async fn table_exists(connection: &mut MySqlConnection, table: &str) -> sqlx::Result<bool> {
    let count: i64 = sqlx::query_scalar(
        "SELECT COUNT(*) FROM information_schema.tables \
         WHERE table_schema = DATABASE() AND table_name = ?",
    )
    .bind(table)
    .fetch_one(connection)
    .await?;
    Ok(count > 0)
}

async fn refuse_conflicting_rows(connection: &mut MySqlConnection) -> anyhow::Result<()> {
    let orders = "SELECT CONCAT('user ', user_id, ', voucher ', voucher_id, ': ', COUNT(*), ' orders') \
         FROM tb_voucher_order WHERE status <> 4 \
         GROUP BY user_id, voucher_id HAVING COUNT(*) > 1 ORDER BY user_id, voucher_id LIMIT ?";
    let found = conflicts(connection, "tb_voucher_order", orders).await?;
    ensure!(
        found.is_empty(),
        "tb_voucher_order already holds second orders of one user for one voucher, which the \
         new unique index forbids:{found}\nNothing was changed. Cancel the surplus orders \
         (UPDATE tb_voucher_order SET status = 4 WHERE id = …) or delete them, then run \
         `seckill migrate` again."
    );
    let users = "SELECT CONCAT('user ', MIN(id), ' and others') FROM tb_user GROUP BY phone \
         HAVING COUNT(*) > 1 LIMIT ?";
    let found = conflicts(connection, "tb_user", users).await?;
    ensure!(
        found.is_empty(),
        "tb_user already holds several users with one phone number, which must be unique:{found}\n\
         Nothing was changed. Merge them, then run `seckill migrate` again."
    );
    Ok(())
}

/// The texts that the query returns, a line each; nothing where the table does not exist.
async fn conflicts(
    connection: &mut MySqlConnection,
    table: &str,
    query: &str,
) -> anyhow::Result<String> {
    if !table_exists(connection, table).await? {
        return Ok(String::new());
    }
    let rows: Vec<String> = sqlx::query_scalar(query)
        .bind(SHOWN)
        .fetch_all(connection)
        .await?;
    Ok(rows.iter().map(|row| format!("\n  {row}")).collect())
}

#[cfg(test)]
mod tests {
    /// Cargo does not build the crate anew when a file is added.
    #[test]
    fn every_step_in_the_folder_is_in_this_build() {
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations"));
        assert_eq!(folder.unwrap().count(), super::FILES.files().count());
    }
}
