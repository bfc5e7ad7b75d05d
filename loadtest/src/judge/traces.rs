//! What a run makes in the node's database and Redis, and removes again. All sales belong to one shop of the run's own, and
//! all users have phones that nobody had.

use std::time::Duration;

use rand::Rng;
use redis::RedisError;
use redis_link::RoutedConnection;
use sqlx::{
    Connection, MySql, MySqlConnection, Transaction,
    mysql::{MySqlDatabaseError, MySqlPool, MySqlPoolOptions},
};
use tokio::time::timeout;
use workload::{Access, Error, buyers::Buyer, redis_connection};

/// The tables of the course in which rows are made.
const TABLES: [&str; 5] = [
    "tb_voucher_order",
    "tb_seckill_voucher",
    "tb_voucher",
    "tb_user",
    "tb_shop",
];
/// The phones from which those of the buyers are drawn.
const PHONES: std::ops::Range<u64> = 19_900_000_000..19_999_999_000;
/// The ids from which one that no shop has is drawn.
const ABSENT_SHOPS: std::ops::Range<u64> = 1_500_000_000..2_100_000_000;
/// The name of the run's own shop.
pub const SHOP_NAME: &str = "judge";
/// The key that is there while a judgement is under way, and for how many seconds, should it be killed.
const RUNNING: &str = "judge:running";
const RUNS_FOR: u64 = 600;
/// How long a connection to the database may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long the removal may take: purchases that hold rows are waited for.
const REMOVED_WITHIN: Duration = Duration::from_secs(60);

/// What a run has made.
pub struct Traces {
    pool: MySqlPool,
    redis: RoutedConnection,
    /// Its shop, from [`Traces::make_shop`] on: no row is removed without one.
    shop: Option<u64>,
    /// The name of a shop that the node itself was asked to make.
    made_by_node: Option<String>,
    phones: Vec<String>,
    keys: Vec<String>,
}

impl Traces {
    /// Connects to both servers, and makes sure that everything can be removed again. Writes nothing.
    pub async fn open(access: &Access) -> Result<Self, Error> {
        for (url, advice) in [
            (
                &access.database_url,
                "--database-url, such as mysql://root:123@127.0.0.1:3306/hmdp",
            ),
            (
                &access.redis_url,
                "--redis-url, such as redis://:123@127.0.0.1:6379/0",
            ),
        ] {
            if url.is_empty() {
                let sentence = format!("name your node's own server in {advice}");
                return Err(Error::Usage(sentence));
            }
        }
        // Connects without the pool first, which would try an address that refuses connections again and again.
        let connecting = MySqlConnection::connect(&access.database_url);
        let connected = timeout(LIMIT, connecting).await;
        let connected = connected.unwrap_or(Err(sqlx::Error::PoolTimedOut));
        drop(connected.map_err(database_error)?);
        let options = MySqlPoolOptions::new()
            .max_connections(2)
            .acquire_timeout(LIMIT);
        let pool = options.connect(&access.database_url).await;
        let pool = pool.map_err(database_error)?;
        for table in TABLES {
            // Changes nothing; a right or a table that is missing shows.
            let sql = format!("DELETE FROM {table} WHERE FALSE");
            sqlx::query(&sql)
                .execute(&pool)
                .await
                .map_err(database_error)?;
        }
        let redis = redis_connection::connect(&access.redis_url).await;
        let redis = redis.map_err(|error| match error {
            Error::Redis { source, .. } => redis_error(&source),
            other => other,
        })?;
        Ok(Self {
            pool,
            redis,
            shop: None,
            made_by_node: None,
            phones: Vec::new(),
            keys: Vec::new(),
        })
    }

    /// A connection to Redis.
    pub fn redis(&self) -> RoutedConnection {
        self.redis.clone()
    }

    /// Connections to the database.
    pub fn database(&self) -> MySqlPool {
        self.pool.clone()
    }

    /// Removes these keys at the end.
    pub fn made_keys(&mut self, keys: impl IntoIterator<Item = String>) {
        self.keys.extend(keys);
    }

    /// Makes sure that no other judgement is under way on this Redis: two at a time would count each other's statements as reads
    /// of their nodes.
    pub async fn keep_others_away(&mut self) -> Result<(), Error> {
        let mut set = redis::cmd("SET");
        set.arg(RUNNING).arg(1).arg("NX").arg("EX").arg(RUNS_FOR);
        let set: Result<Option<String>, RedisError> = set.query_async(&mut self.redis).await;
        if set.map_err(|error| redis_error(&error))?.is_none() {
            return Err(Error::Usage(format!(
                "another judgement is under way here: wait until it ends, and judge again. If it was killed, delete the key \
                 {RUNNING} of this Redis"
            )));
        }
        self.keys.push(RUNNING.to_owned());
        Ok(())
    }

    /// How many orders there are.
    pub async fn existing_orders(&self) -> Result<i64, Error> {
        sqlx::query_scalar("SELECT COUNT(*) FROM tb_voucher_order")
            .fetch_one(&self.pool)
            .await
            .map_err(database_error)
    }

    /// Makes the shop to which all sales belong; returns its id.
    pub async fn make_shop(&mut self) -> Result<u64, Error> {
        let insert = "INSERT INTO tb_shop \
             (name, type_id, images, address, x, y, avg_price, sold, comments, score, open_hours) \
             VALUES (?, 1, '', 'to be removed', 120.15, 30.32, 80, 0, 0, 37, '00:00-24:00')";
        let insert = sqlx::query(insert).bind(SHOP_NAME);
        let made = insert.execute(&self.pool).await;
        let shop = made.map_err(database_error)?.last_insert_id();
        self.shop = Some(shop);
        self.keys.push(format!("cache:shop:{shop}"));
        Ok(shop)
    }

    /// A name for a shop that the node makes; no other shop has it. Such a shop is removed at the end.
    pub fn choose_shop_name(&mut self) -> String {
        let name = format!("judge {:016x}", rand::random::<u64>());
        self.made_by_node = Some(name.clone());
        name
    }

    /// The id of the shop with this name.
    pub async fn find_shop(&self, name: &str) -> Result<Option<u64>, Error> {
        sqlx::query_scalar("SELECT CAST(id AS UNSIGNED) FROM tb_shop WHERE name = ?")
            .bind(name)
            .fetch_optional(&self.pool)
            .await
            .map_err(database_error)
    }

    /// An id that no shop has, and that other languages' integers of 32 bits hold.
    pub async fn choose_absent_shop(&self) -> Result<u64, Error> {
        loop {
            let id: u64 = rand::rng().random_range(ABSENT_SHOPS);
            let shops: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM tb_shop WHERE id = ?")
                .bind(id)
                .fetch_one(&self.pool)
                .await
                .map_err(database_error)?;
            if shops == 0 {
                return Ok(id);
            }
        }
    }

    /// Locks a shop's row until the transaction ends: a change of the shop waits, and a read does not.
    pub async fn hold_shop(&self, shop: u64) -> Result<Transaction<'static, MySql>, Error> {
        self.hold_row("SELECT id FROM tb_shop WHERE id = ? FOR UPDATE", shop)
            .await
    }

    /// So many phones that no user has.
    pub async fn choose_phones(&mut self, count: usize) -> Result<Vec<String>, Error> {
        loop {
            let first = rand::rng().random_range(PHONES);
            let last = first + count as u64 - 1;
            let taken: i64 =
                sqlx::query_scalar("SELECT COUNT(*) FROM tb_user WHERE phone BETWEEN ? AND ?")
                    .bind(first.to_string())
                    .bind(last.to_string())
                    .fetch_one(&self.pool)
                    .await
                    .map_err(database_error)?;
            if taken == 0 {
                self.phones = (first..=last).map(|phone| phone.to_string()).collect();
                let codes = self.phones.iter();
                self.keys
                    .extend(codes.map(|phone| format!("login:code:{phone}")));
                return Ok(self.phones.clone());
            }
        }
    }

    /// Whether there is a user with this phone.
    pub async fn has_user(&self, phone: &str) -> Result<bool, Error> {
        let users: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM tb_user WHERE phone = ?")
            .bind(phone)
            .fetch_one(&self.pool)
            .await
            .map_err(database_error)?;
        Ok(users > 0)
    }

    /// These buyers have sessions now.
    pub fn signed_in<'a>(&mut self, buyers: impl IntoIterator<Item = &'a Buyer>) {
        for Buyer { user_id, token } in buyers {
            let token = token.to_str().unwrap_or_default();
            self.keys.push(format!("login:token:{token}"));
            self.keys.push(format!("lock:order:{user_id}"));
        }
    }

    /// Locks a sale's row until the transaction ends, as a database that is slow for a moment: purchases wait in it.
    pub async fn hold(&self, voucher_id: u64) -> Result<Transaction<'static, MySql>, Error> {
        let row = "SELECT stock FROM tb_seckill_voucher WHERE voucher_id = ? FOR UPDATE";
        self.hold_row(row, voucher_id).await
    }

    /// Runs a statement that locks the row with this id, in a transaction that stays open.
    async fn hold_row(&self, sql: &str, id: u64) -> Result<Transaction<'static, MySql>, Error> {
        let mut transaction = self.pool.begin().await.map_err(database_error)?;
        sqlx::query(sql)
            .bind(id)
            .execute(&mut *transaction)
            .await
            .map_err(database_error)?;
        Ok(transaction)
    }

    /// Removes everything.
    pub async fn remove(&self) -> Result<(), Error> {
        let removed = match self.shop {
            Some(shop) => {
                let removing = timeout(REMOVED_WITHIN, self.remove_rows(shop)).await;
                let removed = removing.unwrap_or(Err(sqlx::Error::PoolTimedOut));
                removed.map_err(|error| {
                    let error = database_error(error);
                    let mark =
                        format!("not all was removed: shop {shop}, its vouchers, their orders");
                    Error::Usage(format!("{mark}, users with phones from 199…: {error}"))
                })
            }
            None => Ok(Vec::new()),
        };
        let vouchers = removed.as_deref().unwrap_or_default();
        let mut pipe = redis::pipe();
        for key in &self.keys {
            pipe.cmd("UNLINK").arg(key).ignore();
        }
        for id in vouchers {
            for name in ["stock", "order", "open"] {
                pipe.cmd("UNLINK")
                    .arg(format!("seckill:{name}:{id}"))
                    .ignore();
            }
        }
        let mut redis = self.redis();
        let unlinked = pipe.query_async::<()>(&mut redis).await;
        removed?;
        unlinked.map_err(|source| redis_error(&source))
    }

    /// Removes the rows; returns the vouchers that there were.
    async fn remove_rows(&self, shop: u64) -> Result<Vec<u64>, sqlx::Error> {
        let vouchers = "SELECT CAST(id AS UNSIGNED) FROM tb_voucher WHERE shop_id = ?";
        let vouchers: Vec<u64> = sqlx::query_scalar(vouchers)
            .bind(shop)
            .fetch_all(&self.pool)
            .await?;
        for id in &vouchers {
            let orders = "DELETE FROM tb_voucher_order WHERE voucher_id = ?";
            for sql in [
                orders,
                // Waits for purchases that have changed the row; without it none can begin.
                "DELETE FROM tb_seckill_voucher WHERE voucher_id = ?",
                orders,
                "DELETE FROM tb_voucher WHERE id = ?",
            ] {
                sqlx::query(sql).bind(id).execute(&self.pool).await?;
            }
        }
        for phone in &self.phones {
            let user = sqlx::query("DELETE FROM tb_user WHERE phone = ?").bind(phone);
            user.execute(&self.pool).await?;
        }
        let removing = sqlx::query("DELETE FROM tb_shop WHERE id = ?").bind(shop);
        removing.execute(&self.pool).await?;
        if let Some(name) = &self.made_by_node {
            // It may have been renamed to a longer name.
            let removing = sqlx::query("DELETE FROM tb_shop WHERE name LIKE CONCAT(?, '%')");
            let removing = removing.bind(name);
            removing.execute(&self.pool).await?;
        }
        Ok(vouchers)
    }
}

/// What to do about an error of the database.
pub fn database_error(error: sqlx::Error) -> Error {
    let database = error.as_database_error();
    let number = database
        .and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>())
        .map(MySqlDatabaseError::number);
    let advice = match number {
        // Access denied: to the server, to the database, to a table.
        Some(1045) => "name a user and password in --database-url that your database knows",
        Some(1044 | 1142 | 1143) => {
            "this user lacks rights, so nothing was written: GRANT SELECT, INSERT, UPDATE, DELETE ON your database to it, or name \
             another in --database-url"
        }
        Some(1049 | 1146) => {
            "name the database of your node, which has the course's tables, at the end of --database-url"
        }
        Some(_) => "--database-url must be your node's own database, with the course's tables",
        None => {
            "start the database, or put --database-url right, as in mysql://root:123@127.0.0.1:3306/hmdp"
        }
    };
    Error::Usage(format!("the database says: {error}; {advice}"))
}

/// What to do about an error of Redis.
pub fn redis_error(error: &RedisError) -> Error {
    Error::Usage(format!(
        "Redis says: {error}; --redis-url must be your node's own Redis, as in redis://:password@127.0.0.1:6379/0"
    ))
}
