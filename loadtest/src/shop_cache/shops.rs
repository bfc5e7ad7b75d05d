//! The table of shops: temporary rows, the number of statements the database has executed, and a lock that makes loads
//! slow.

use std::time::Duration;

use sqlx::{
    Executor, Row,
    mysql::{MySqlPool, MySqlPoolOptions},
};
use workload::Error;

/// The address that marks temporary shops, so that nothing else is ever removed.
const MARK: &str = "made by the load tool, to be removed by it";
/// A type that no list shows.
const TYPE_ID: u64 = 2_000_000_000;
/// What the name of a temporary shop begins with, before its version.
pub const NAME: &str = "temporary, version ";

const COLUMNS: &str = "name, type_id, images, address, x, y";

/// The service's database, as far as shops are concerned: a single connection, because a lock belongs to one.
pub struct ShopTable(MySqlPool);

fn failed(source: sqlx::Error) -> Error {
    Error::Database {
        what: "at the table of shops",
        source,
    }
}

impl ShopTable {
    pub async fn open(database_url: &str) -> Result<Self, Error> {
        if database_url.is_empty() {
            return Err(Error::unset(
                "shops are in the service's database",
                "DATABASE_URL",
            ));
        }
        let options = MySqlPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(Duration::from_secs(3));
        let pool = options.connect(database_url).await;
        pool.map(Self).map_err(failed)
    }

    /// Prepared statements that the whole server has executed since it started: a count that is independent of the
    /// service's. It leaves out statements sent as text, as this tool sends them while it measures.
    pub async fn statements(&self) -> Result<u64, Error> {
        let status = self
            .0
            .fetch_one("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'");
        let value: String = status
            .await
            .and_then(|row| row.try_get(1))
            .map_err(failed)?;
        value
            .parse()
            .map_err(|_| failed(sqlx::Error::Protocol(format!("a count of '{value}'"))))
    }

    /// Locks the table against readers: every load begun from now on lasts until [`unlock`](Self::unlock).
    pub async fn lock(&self) -> Result<(), Error> {
        let locked = self.0.execute("LOCK TABLES tb_shop WRITE").await;
        locked.map(drop).map_err(failed)
    }

    pub async fn unlock(&self) -> Result<(), Error> {
        let unlocked = self.0.execute("UNLOCK TABLES").await;
        unlocked.map(drop).map_err(failed)
    }

    /// The shop with the smallest id.
    pub async fn first(&self) -> Result<u64, Error> {
        let first = sqlx::query_scalar("SELECT id FROM tb_shop ORDER BY id LIMIT 1");
        let first = first.fetch_optional(&self.0).await.map_err(failed)?;
        first.ok_or_else(|| Error::Usage("there is no shop to read".to_owned()))
    }

    /// Inserts so many temporary shops, after those of an interrupted run were removed; returns their ids.
    pub async fn make_temporary(&self, count: u64) -> Result<Vec<u64>, Error> {
        self.remove_temporary().await?;
        let first = format!(
            "INSERT INTO tb_shop ({COLUMNS}) VALUES ('{NAME}0', {TYPE_ID}, '', '{MARK}', 120, 30)"
        );
        self.0.execute(first.as_str()).await.map_err(failed)?;
        let mut made = 1;
        while made < count {
            let missing = count - made;
            let copies = format!(
                "INSERT INTO tb_shop ({COLUMNS}) \
                 SELECT {COLUMNS} FROM tb_shop WHERE address = '{MARK}' LIMIT {missing}"
            );
            let copied = self.0.execute(copies.as_str()).await.map_err(failed)?;
            made += copied.rows_affected();
        }
        let ids = sqlx::query_scalar("SELECT id FROM tb_shop WHERE address = ?").bind(MARK);
        let ids: Vec<u64> = ids.fetch_all(&self.0).await.map_err(failed)?;
        if ids.len() as u64 == count {
            return Ok(ids);
        }
        let found = ids.len();
        Err(Error::Usage(format!(
            "of {count} temporary shops {found} are there: does another run make and remove them?"
        )))
    }

    pub async fn remove_temporary(&self) -> Result<(), Error> {
        let removed = sqlx::query("DELETE FROM tb_shop WHERE address = ?").bind(MARK);
        removed.execute(&self.0).await.map(drop).map_err(failed)
    }
}
