//! The table of shops as its database sees it: a lock under which every read of it stands still, and which statements stand
//! there.

use std::time::Duration;

use sqlx::{
    MySqlConnection, Row,
    mysql::{MySqlPool, MySqlRow},
};
use workload::Error;

use crate::judge::traces::database_error;

/// How long the table may be in use by others before the lock is given up.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// The table `tb_shop` of the node.
pub struct ShopTable {
    pool: MySqlPool,
    /// The name of its database, as in the process list.
    database: String,
}

impl ShopTable {
    pub async fn open(pool: MySqlPool) -> Result<Self, Error> {
        let database: Option<String> = sqlx::query_scalar("SELECT DATABASE()")
            .fetch_one(&pool)
            .await
            .map_err(database_error)?;
        Ok(Self {
            pool,
            database: database.unwrap_or_default(),
        })
    }

    /// Locks the table against all others until this connection is passed to [`unlock`] or dropped: what reads it meanwhile
    /// waits until then.
    pub async fn lock(&self) -> Result<MySqlConnection, sqlx::Error> {
        let mut connection = self.pool.acquire().await?.detach();
        let limit = format!("SET SESSION lock_wait_timeout = {}", LOCK_LIMIT.as_secs());
        for statement in [limit.as_str(), "LOCK TABLES tb_shop WRITE"] {
            sqlx::raw_sql(statement).execute(&mut connection).await?;
        }
        Ok(connection)
    }

    /// The SELECTs that wait for the locked table now. Without the privilege PROCESS a user sees its own only.
    pub async fn waiting(&self) -> Result<Vec<String>, Error> {
        let mut rows = self.processes().await?;
        rows.retain(|row| text(row, "State").contains("metadata lock"));
        let statements = rows.iter().map(|row| text(row, "Info"));
        Ok(statements
            .filter(|text| text.to_lowercase().contains("select"))
            .collect())
    }

    /// Whether a statement that changes the table is being executed now.
    pub async fn is_being_updated(&self) -> Result<bool, Error> {
        let rows = self.processes().await?;
        let mut statements = rows.iter().map(|row| text(row, "Info").to_lowercase());
        Ok(statements.any(|text| text.contains("update") && text.contains("tb_shop")))
    }

    /// What is done in this database now. Not from information_schema.processlist: MariaDB keeps that in a temporary table, and
    /// crashed once when it dropped one.
    async fn processes(&self) -> Result<Vec<MySqlRow>, Error> {
        let mut rows = sqlx::raw_sql("SHOW PROCESSLIST")
            .fetch_all(&self.pool)
            .await
            .map_err(database_error)?;
        rows.retain(|row| text(row, "db") == self.database);
        Ok(rows)
    }

    /// How many SELECTs the server has executed, for everybody; `None` where it does not count them.
    pub async fn selects(&self) -> Result<Option<u64>, Error> {
        let rows = sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Com_select'")
            .fetch_all(&self.pool)
            .await
            .map_err(database_error)?;
        Ok(rows.first().and_then(|row| text(row, "Value").parse().ok()))
    }
}

/// Unlocks the table that [`ShopTable::lock`] has locked.
pub async fn unlock(mut lock: MySqlConnection) -> Result<(), Error> {
    let unlocked = sqlx::raw_sql("UNLOCK TABLES").execute(&mut lock).await;
    unlocked.map(drop).map_err(database_error)
}

/// A column's text; a statement with values need not be UTF-8.
fn text(row: &MySqlRow, column: &str) -> String {
    let bytes: Option<Vec<u8>> = row.try_get_unchecked(column).unwrap_or_default();
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}
