//! Test environment: a database and a Redis database number of the benchmark's own on the stack's servers, and
//! signed-in buyers. A developer's own sales are not touched.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use lock::RoutedConnection;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::{Executor, MySqlPool};
use workload::{Access, buyers::Buyer, redis_connection, sessions};

use crate::bench::command;
use crate::bench::generator::wire::TOKEN;

/// Databases of the benchmark's own. `./dev` grants its user every database whose name begins with `seckill_`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Databases {
    /// The database's name.
    pub database: &'static str,
    /// The number of the Redis database.
    pub redis: u8,
    /// Whether orders stay when a run is over; otherwise every run starts with an empty table.
    pub keeps_orders: bool,
}

/// Where the ratios are measured.
pub const MAIN: Databases = Databases { database: "seckill_bench", redis: 9, keeps_orders: false };

/// Signed-in buyers. Their sessions are in Redis until [`Buyers::sign_out`].
#[derive(Debug)]
pub struct Buyers {
    /// Their session tokens.
    pub tokens: Arc<[[u8; TOKEN]]>,
    /// Their user ids, in the same order.
    pub users: Vec<u64>,
    /// A file of lines `token user`, for the baseline without sessions.
    pub file: PathBuf,
    signed_in: Vec<Buyer>,
}

impl Buyers {
    /// Signs in `count` buyers by writing their sessions to Redis.
    ///
    /// # Errors
    /// Redis fails, or the file cannot be written.
    pub async fn sign_in(environment: &Environment, count: usize) -> anyhow::Result<Self> {
        let signed_in = sessions::buyers(1, count)?;
        sessions::open(&environment.access, &signed_in).await?;
        let users = signed_in.iter().map(|buyer| buyer.user_id).collect();
        let tokens: Option<Arc<[[u8; TOKEN]]>> =
            signed_in.iter().map(|buyer| buyer.token.as_bytes().try_into().ok()).collect();
        let line = |buyer: &Buyer| Ok(format!("{} {}\n", buyer.token.to_str()?, buyer.user_id));
        let lines = signed_in.iter().map(line).collect::<anyhow::Result<String>>()?;
        let file = environment.folder.join("buyers");
        std::fs::write(&file, lines)?;
        Ok(Self { tokens: tokens.context("a token's length")?, users, file, signed_in })
    }

    /// `count` of them, spread over all; others for every `turn`.
    pub fn part(&self, count: usize, turn: usize) -> Self {
        let step = (self.users.len() / count.max(1)).max(1);
        let chosen = || (turn % step..self.users.len()).step_by(step).take(count);
        Self {
            tokens: chosen().map(|at| self.tokens[at]).collect(),
            users: chosen().map(|at| self.users[at]).collect(),
            file: self.file.clone(),
            signed_in: Vec::new(),
        }
    }

    /// Removes their sessions, which the service would keep for weeks after the last request.
    ///
    /// # Errors
    /// Redis fails.
    pub async fn sign_out(&self, environment: &Environment) -> anyhow::Result<()> {
        Ok(sessions::end(&environment.access, &self.signed_in).await?)
    }
}

/// The servers and files that all measurements share.
#[derive(Debug, Clone)]
pub struct Environment {
    /// Addresses and secrets.
    pub access: Access,
    /// The service's binary.
    pub seckill: PathBuf,
    /// Folder for the report, logs and other files.
    pub folder: PathBuf,
    /// Process ids of the database and of Redis.
    pub pids: Pids,
    /// Connections to the database.
    pub pool: MySqlPool,
    databases: Databases,
}

/// Process ids on this machine; `None` where they cannot be found, as in a container.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pids {
    /// The database.
    pub database: Option<u32>,
    /// Redis.
    pub redis: Option<u32>,
}

/// Versions and durability settings of the database and of Redis.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Versions {
    /// Such as `10.11.6-MariaDB`.
    pub database: String,
    /// `innodb_flush_log_at_trx_commit`.
    pub flush_at_commit: i64,
    /// `redis_version`.
    pub redis: String,
    /// `appendfsync`, or `off` where there is no append-only file.
    pub redis_sync: String,
}

impl Environment {
    /// Creates the database and its tables where they are missing.
    ///
    /// # Errors
    /// A server cannot be reached, or refuses.
    pub async fn prepare(
        mut access: Access,
        seckill: PathBuf,
        folder: PathBuf,
        databases: Databases,
    ) -> anyhow::Result<Self> {
        let (Some((server, _)), Some((redis, _))) =
            (access.database_url.rsplit_once('/'), access.redis_url.rsplit_once('/'))
        else {
            bail!("DATABASE_URL and REDIS_URL must end with a database: `eval \"$(./dev env)\"`");
        };
        let (database_url, redis_url) =
            (format!("{server}/{}", databases.database), format!("{redis}/{}", databases.redis));
        let create =
            format!("CREATE DATABASE IF NOT EXISTS {} CHARACTER SET utf8mb4", databases.database);
        let pool = MySqlPoolOptions::new().max_connections(1).connect(&access.database_url).await?;
        pool.execute(create.as_str()).await.context("creating the benchmark's database")?;
        pool.close().await;
        (access.database_url, access.redis_url) = (database_url, redis_url);
        let mut migrate = Command::new(&seckill);
        migrate.args(["migrate", "--database-url", &access.database_url]);
        let output = command::output(migrate).await?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`seckill migrate` failed: {errors}");
        let pool = MySqlPoolOptions::new().max_connections(4).connect(&access.database_url).await?;
        let mut environment =
            Self { access, seckill, folder, pids: Pids::default(), pool, databases };
        environment.pids = environment.find_pids().await?;
        Ok(environment)
    }

    async fn find_pids(&self) -> anyhow::Result<Pids> {
        let file =
            "SELECT IF(LEFT(@@pid_file, 1) = '/', @@pid_file, CONCAT(@@datadir, @@pid_file))";
        let file: String = sqlx::query_scalar(file).fetch_one(&self.pool).await?;
        let database = std::fs::read_to_string(file).ok().and_then(|pid| pid.trim().parse().ok());
        let redis = self.redis_info("process_id").await?;
        Ok(Pids { database, redis: redis.and_then(|pid| pid.parse().ok()) })
    }

    /// One field of Redis' INFO.
    ///
    /// # Errors
    /// Redis fails.
    pub async fn redis_info(&self, field: &str) -> anyhow::Result<Option<String>> {
        let info: String = redis::cmd("INFO").query_async(&mut self.redis().await?).await?;
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        Ok(fields.find(|(name, _)| *name == field).map(|(_, value)| value.trim().to_owned()))
    }

    async fn redis(&self) -> anyhow::Result<RoutedConnection> {
        Ok(redis_connection::connect(&self.access.redis_url).await?)
    }

    /// Deletes all orders, so that every run starts with an empty table; nothing where they are to stay.
    ///
    /// # Errors
    /// The database fails.
    pub async fn delete_orders(&self) -> anyhow::Result<()> {
        if !self.databases.keeps_orders {
            self.pool.execute("TRUNCATE TABLE tb_voucher_order").await?;
        }
        Ok(())
    }

    /// Deletes the claims of sales that are over, so that no run finds a larger Redis than another.
    ///
    /// # Errors
    /// Redis fails.
    pub async fn delete_claims(&self, sales: RangeInclusive<u64>) -> anyhow::Result<()> {
        let claims: Vec<String> = sales.map(|sale| format!("seckill:order:{sale}")).collect();
        redis::cmd("UNLINK").arg(claims).query_async::<()>(&mut self.redis().await?).await?;
        Ok(())
    }

    /// Deletes all keys of the Redis database, which is the benchmark's own.
    ///
    /// # Errors
    /// Redis fails.
    pub async fn flush_redis(&self) -> anyhow::Result<()> {
        Ok(redis::cmd("FLUSHDB").query_async::<()>(&mut self.redis().await?).await?)
    }

    /// Whether this is the one on these databases.
    pub fn is(&self, databases: Databases) -> bool {
        self.databases == databases
    }

    /// Drops the database that these name, if it is there.
    ///
    /// # Errors
    /// The database fails.
    pub async fn drop_database(&self, databases: Databases) -> anyhow::Result<()> {
        let drop = format!("DROP DATABASE IF EXISTS {}", databases.database);
        self.pool.execute(drop.as_str()).await?;
        Ok(())
    }

    /// Memory that Redis uses, in bytes.
    ///
    /// # Errors
    /// Redis fails, or does not say.
    pub async fn redis_memory(&self) -> anyhow::Result<f64> {
        let memory = self.redis_info("used_memory").await?;
        memory.and_then(|bytes| bytes.parse().ok()).context("Redis' used_memory")
    }

    /// A shop; publishing a sale makes one.
    ///
    /// # Errors
    /// The database fails, or there is none.
    pub async fn shop(&self) -> anyhow::Result<u64> {
        let id = sqlx::query_scalar("SELECT id FROM tb_shop ORDER BY id LIMIT 1");
        Ok(id.fetch_one(&self.pool).await?)
    }

    /// Reads versions and durability settings.
    ///
    /// # Errors
    /// A server fails.
    pub async fn versions(&self) -> anyhow::Result<Versions> {
        let query = "SELECT VERSION(), CAST(@@innodb_flush_log_at_trx_commit AS SIGNED)";
        let (database, flush_at_commit) = sqlx::query_as(query).fetch_one(&self.pool).await?;
        let version = self.redis_info("redis_version").await?;
        let mut redis = self.redis().await?;
        let mut setting = async |name: &str| -> anyhow::Result<String> {
            let pair: Vec<String> =
                redis::cmd("CONFIG").arg("GET").arg(name).query_async(&mut redis).await?;
            Ok(pair.into_iter().nth(1).unwrap_or_default())
        };
        let on = setting("appendonly").await? == "yes";
        let redis_sync = if on { setting("appendfsync").await? } else { "off".to_owned() };
        let redis = version.unwrap_or_else(|| "unknown".to_owned());
        Ok(Versions { database, flush_at_commit, redis, redis_sync })
    }
}
