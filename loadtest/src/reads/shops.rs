//! The table of shops: its ids, temporary rows for a test, the time of a query, the number of statements the
//! database has executed, and a lock that makes loads slow.

use std::time::{Duration, Instant};

use sqlx::{
    Connection as _, MySqlConnection, Row,
    mysql::{MySqlPool, MySqlPoolOptions},
};

use workload::Error;

/// Ids of temporary shops begin here, far above those of a service in use.
const FIRST_ID: u64 = 1_000_000_000_000;
/// How many temporary shops there can be.
const MOST: u64 = 1_000_000;
/// The address that marks them, so that nothing else is ever removed.
const MARK: &str = "made by the load tool, to be removed by it";
/// A type that no list shows.
const TYPE_ID: u64 = 2_000_000_000;
/// Rows in one INSERT.
const BATCH: u64 = 500;

/// The service's database, as far as shops are concerned.
#[derive(Clone)]
pub struct ShopTable {
    pool: MySqlPool,
    url: String,
}

fn failed(what: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |source| Error::Database { what, source }
}

impl ShopTable {
    /// Connects.
    ///
    /// # Errors
    /// [`Error::Usage`] without an address, [`Error::Database`].
    pub async fn open(database_url: &str) -> Result<Self, Error> {
        if database_url.is_empty() {
            return Err(Error::Usage(
                "this scenario needs the service's database: set DATABASE_URL to the service's own \
                 (`eval \"$(./dev env)\"`) or give --database-url"
                    .to_owned(),
            ));
        }
        let pool = MySqlPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(Duration::from_secs(3))
            .connect(database_url)
            .await
            .map_err(failed("while connecting"))?;
        Ok(Self { pool, url: database_url.to_owned() })
    }

    /// The lowest ids of shops that are not temporary, at most `limit`.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn ids(&self, limit: u64) -> Result<Vec<u64>, Error> {
        sqlx::query_scalar("SELECT id FROM tb_shop WHERE id < ? ORDER BY id LIMIT ?")
            .bind(FIRST_ID)
            .bind(limit)
            .fetch_all(&self.pool)
            .await
            .map_err(failed("while listing shops"))
    }

    /// The name of a shop.
    ///
    /// # Errors
    /// [`Error::Usage`] when there is none, [`Error::Database`].
    pub async fn name(&self, id: u64) -> Result<String, Error> {
        let name: Option<String> = sqlx::query_scalar("SELECT name FROM tb_shop WHERE id = ?")
            .bind(id)
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("while reading a shop"))?;
        name.ok_or_else(|| {
            Error::Usage(format!(
                "there is no shop {id} in the database: `seckill seed` makes some, --shop-id takes \
                 another"
            ))
        })
    }

    /// How many shops there are with an id in this range, both ends included.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn count(&self, from: u64, to: u64) -> Result<u64, Error> {
        let count: i64 =
            sqlx::query_scalar("SELECT COUNT(*) FROM tb_shop WHERE id BETWEEN ? AND ?")
                .bind(from)
                .bind(to)
                .fetch_one(&self.pool)
                .await
                .map_err(failed("while counting shops"))?;
        Ok(count.unsigned_abs())
    }

    /// How long one read of this shop takes: the median of 21, from this tool.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn query_time(&self, id: u64) -> Result<Duration, Error> {
        let mut times = Vec::with_capacity(21);
        for _ in 0..21 {
            let begin = Instant::now();
            sqlx::query("SELECT * FROM tb_shop WHERE id = ?")
                .bind(id)
                .fetch_optional(&self.pool)
                .await
                .map_err(failed("while timing a read"))?;
            times.push(begin.elapsed());
        }
        times.sort_unstable();
        Ok(times[10])
    }

    /// Prepared statements the whole server has executed since it started, those of this tool left
    /// out as they are sent as text where it matters. An independent count beside the service's own.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn statements(&self) -> Result<u64, Error> {
        let failed = failed("while reading the server's status");
        let row = sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'")
            .fetch_one(&self.pool)
            .await
            .map_err(&failed)?;
        let value: String = row.try_get(1).map_err(&failed)?;
        value.parse().map_err(|_| failed(sqlx::Error::Protocol(format!("a count of '{value}'"))))
    }

    /// Locks the table against readers until [`TableLock::unlock`] (or the end of this process): every
    /// load begun meanwhile lasts until then.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn lock(&self) -> Result<TableLock, Error> {
        let failed =
            failed("while locking the table of shops (this needs the privilege LOCK TABLES)");
        let mut connection = MySqlConnection::connect(&self.url).await.map_err(&failed)?;
        sqlx::raw_sql("LOCK TABLES tb_shop WRITE")
            .execute(&mut connection)
            .await
            .map_err(&failed)?;
        Ok(TableLock { connection })
    }

    /// Inserts so many temporary shops and returns their ids.
    ///
    /// # Errors
    /// [`Error::Database`]; [`Error::Usage`] for more than a million.
    pub async fn make_temporary(&self, count: u64) -> Result<Temporary, Error> {
        if count > MOST {
            return Err(Error::Usage(format!("at most {MOST} temporary shops can be made")));
        }
        self.remove_leftovers().await?;
        let temporary = Temporary {
            table: self.clone(),
            ids: (FIRST_ID..FIRST_ID + count).collect(),
            next_auto: self.next_auto_increment().await?,
        };
        let failed = failed("while making temporary shops");
        for part in temporary.ids.chunks(BATCH as usize) {
            let mut insert = sqlx::QueryBuilder::new(
                "INSERT INTO tb_shop (id, name, type_id, images, address, x, y) ",
            );
            insert.push_values(part, |mut row, id| {
                row.push_bind(*id)
                    .push_bind(format!("temporary {id}"))
                    .push_bind(TYPE_ID)
                    .push_bind("")
                    .push_bind(MARK)
                    .push_bind(120.0)
                    .push_bind(30.0);
            });
            // Not cached: the last part may have a size of its own.
            if let Err(error) = insert.build().persistent(false).execute(&self.pool).await {
                // What was inserted before must not stay.
                temporary.remove().await?;
                return Err(failed(error));
            }
        }
        Ok(temporary)
    }

    /// Removes what a run left that was ended from outside.
    async fn remove_leftovers(&self) -> Result<(), Error> {
        if self.count(FIRST_ID, FIRST_ID + MOST).await? > 0 {
            // 1: the database takes the highest id in the table plus one.
            Temporary { table: self.clone(), ids: Vec::new(), next_auto: 1 }.remove().await?;
        }
        Ok(())
    }

    /// The next id the table would give, which explicit ids would move for good.
    async fn next_auto_increment(&self) -> Result<u64, Error> {
        let failed = failed("while reading the table's definition");
        let row = sqlx::raw_sql("SHOW CREATE TABLE tb_shop")
            .fetch_one(&self.pool)
            .await
            .map_err(&failed)?;
        let text: String = row.try_get(1).map_err(&failed)?;
        Ok(auto_increment(&text))
    }
}

/// `AUTO_INCREMENT=` of a table's definition; 1 where there is none.
fn auto_increment(definition: &str) -> u64 {
    let number = definition.split_once(" AUTO_INCREMENT=").map(|(_, rest)| rest);
    let digits = number.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(1)
}

/// A lock on the table of shops: nothing can read it.
pub struct TableLock {
    connection: MySqlConnection,
}

impl TableLock {
    /// Unlocks the table.
    ///
    /// # Errors
    /// [`Error::Database`]; the lock ends with this connection in any case.
    pub async fn unlock(mut self) -> Result<(), Error> {
        let unlocked = sqlx::raw_sql("UNLOCK TABLES").execute(&mut self.connection).await;
        unlocked.map(drop).map_err(failed("while unlocking the table of shops"))
    }
}

/// Shops that exist for one run.
pub struct Temporary {
    table: ShopTable,
    /// Their ids.
    pub ids: Vec<u64>,
    next_auto: u64,
}

impl Temporary {
    /// Removes them, and gives the table its next id back.
    ///
    /// # Errors
    /// [`Error::Database`]; the next run then removes them.
    pub async fn remove(&self) -> Result<(), Error> {
        let failed = failed("while removing temporary shops");
        sqlx::query("DELETE FROM tb_shop WHERE id BETWEEN ? AND ? AND address = ?")
            .bind(FIRST_ID)
            .bind(FIRST_ID + MOST)
            .bind(MARK)
            .execute(&self.table.pool)
            .await
            .map_err(&failed)?;
        let restore = format!("ALTER TABLE tb_shop AUTO_INCREMENT = {}", self.next_auto);
        sqlx::raw_sql(&restore).execute(&self.table.pool).await.map_err(&failed)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_id_is_read_from_the_definition() {
        let definition = "CREATE TABLE `tb_shop` (\n `id` bigint AUTO_INCREMENT,\n) ENGINE=InnoDB \
                          AUTO_INCREMENT=42 DEFAULT CHARSET=utf8mb4";
        assert_eq!(auto_increment(definition), 42);
        assert_eq!(auto_increment("CREATE TABLE t (id int AUTO_INCREMENT) ENGINE=InnoDB"), 1);
    }
}
