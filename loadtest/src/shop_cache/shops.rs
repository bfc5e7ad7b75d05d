//! The table of shops: temporary rows, the number of statements the database has executed, and a lock that makes loads
//! slow.

use std::time::Duration;

use sqlx::{
    MySqlConnection, Row,
    mysql::{MySqlPool, MySqlPoolOptions},
};
use workload::Error;

/// The address that marks temporary shops, so that nothing else is ever removed.
const MARK: &str = "made by the load tool, to be removed by it";
/// A type that no list shows.
const TYPE_ID: u64 = 2_000_000_000;
/// What the name of a temporary shop begins with, before its version.
pub const NAME: &str = "temporary, version ";
/// Rows in one INSERT.
const BATCH: usize = 500;

/// The service's database, as far as shops are concerned.
pub struct ShopTable(MySqlPool);

fn failed(what: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |source| Error::Database { what, source }
}

impl ShopTable {
    pub async fn open(database_url: &str) -> Result<Self, Error> {
        if database_url.is_empty() {
            return Err(Error::unset(
                "shops are in the service's database",
                "DATABASE_URL",
            ));
        }
        let options = MySqlPoolOptions::new().max_connections(1);
        let pool = options
            .acquire_timeout(Duration::from_secs(3))
            .connect(database_url)
            .await;
        pool.map(Self).map_err(failed("while connecting"))
    }

    /// Prepared statements that the whole server has executed since it started: a count that is independent of the
    /// service's. It leaves out statements sent as text, as this tool sends them while it measures.
    pub async fn statements(&self) -> Result<u64, Error> {
        let failed = failed("while reading the server's status");
        let row = sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'");
        let row = row.fetch_one(&self.0).await.map_err(&failed)?;
        let value: String = row.try_get(1).map_err(&failed)?;
        value
            .parse()
            .map_err(|_| failed(sqlx::Error::Protocol(format!("a count of '{value}'"))))
    }

    /// Locks the table against readers until this connection is passed to [`unlock`] or closed: every load begun meanwhile
    /// lasts until then.
    pub async fn lock(&self) -> Result<MySqlConnection, Error> {
        let failed =
            failed("while locking the table of shops (this needs the privilege LOCK TABLES)");
        let mut connection = self.0.acquire().await.map_err(&failed)?.detach();
        let locked = sqlx::raw_sql("LOCK TABLES tb_shop WRITE")
            .execute(&mut connection)
            .await;
        locked.map(|_| connection).map_err(&failed)
    }

    /// Inserts so many temporary shops, after those of an interrupted run were removed; returns their ids.
    pub async fn make_temporary(&self, count: u64) -> Result<Vec<u64>, Error> {
        self.remove_temporary().await?;
        let failed = failed("while making temporary shops");
        let numbers: Vec<u64> = (1..=count).collect();
        for part in numbers.chunks(BATCH) {
            let mut insert = sqlx::QueryBuilder::new(
                "INSERT INTO tb_shop (name, type_id, images, address, x, y) ",
            );
            insert.push_values(part, |mut row, _| {
                row.push_bind(format!("{NAME}0"))
                    .push_bind(TYPE_ID)
                    .push_bind("");
                row.push_bind(MARK).push_bind(120.0).push_bind(30.0);
            });
            // The statement is not cached: the last part may have another size.
            insert
                .build()
                .persistent(false)
                .execute(&self.0)
                .await
                .map_err(&failed)?;
        }
        let ids = sqlx::query_scalar("SELECT id FROM tb_shop WHERE address = ?").bind(MARK);
        let ids: Vec<u64> = ids.fetch_all(&self.0).await.map_err(&failed)?;
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
        removed
            .execute(&self.0)
            .await
            .map(drop)
            .map_err(failed("while removing temporary shops"))
    }
}

/// Unlocks the table that [`ShopTable::lock`] has locked.
pub async fn unlock(mut lock: MySqlConnection) -> Result<(), Error> {
    let unlocked = sqlx::raw_sql("UNLOCK TABLES").execute(&mut lock).await;
    unlocked
        .map(drop)
        .map_err(failed("while unlocking the table of shops"))
}
