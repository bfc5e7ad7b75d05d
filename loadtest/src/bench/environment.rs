//! Test environment: a database and a Redis database number of the benchmark's own on the stack's servers, and
//! signed-in buyers. A developer's own sales are not touched.

use std::ops::RangeInclusive;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, ensure};
use hyper::header::HeaderValue;
use redis_link::RoutedConnection;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::{Connection, Executor, MySqlConnection, MySqlPool};
use workload::{Access, buyers::Buyer, order_rows::OrderRows, redis_connection, sessions};

use crate::bench::options::BenchArgs;

/// Signed-in buyers, where sessions are not what grows.
pub const BUYERS: usize = 100_000;

/// Databases of the benchmark's own. `./dev` grants its user every database whose name begins with `seckill_`.
#[derive(Debug, Clone, Copy)]
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

impl Databases {
    /// Empties Redis, and drops the database of a past with many orders.
    pub async fn clear(&self, args: &BenchArgs) -> anyhow::Result<()> {
        let mut redis = redis_connection::connect(&ending(&args.redis_url, self.redis)?).await?;
        redis::cmd("FLUSHDB").query_async::<()>(&mut redis).await?;
        if self.keeps_orders {
            let mut connection = MySqlConnection::connect(&args.database_url).await?;
            let drop = format!("DROP DATABASE IF EXISTS {}", self.database);
            connection.execute(drop.as_str()).await?;
        }
        Ok(())
    }
}

/// The address with `last` as its database.
fn ending(url: &str, last: impl std::fmt::Display) -> anyhow::Result<String> {
    let (server, _) = url
        .rsplit_once('/')
        .context("DATABASE_URL and REDIS_URL must end with a database: `eval \"$(./dev env)\"`")?;
    Ok(format!("{server}/{last}"))
}

/// The servers, files and buyers that the runs on the same databases share.
#[derive(Debug)]
pub struct Environment {
    pub args: BenchArgs,
    /// The benchmark's own databases.
    pub access: Access,
    /// Process ids on this machine of the database and of Redis; `None` where they cannot be found, as in a container.
    pub pids: [Option<u32>; 2],
    /// Connections to the database.
    pub pool: MySqlPool,
    /// Reads its sales.
    pub order_rows: OrderRows,
    pub buyers: Arc<[Buyer]>,
    /// Bytes of Redis for each session.
    pub session_bytes: f64,
    pub databases: Databases,
}

impl Environment {
    /// Empties the databases, creates what is missing, and signs in `buyers`.
    pub async fn open(
        args: &BenchArgs,
        databases: Databases,
        buyers: usize,
    ) -> anyhow::Result<Self> {
        databases.clear(args).await.context("emptying the databases")?;
        let mut connection = MySqlConnection::connect(&args.database_url).await?;
        let create =
            format!("CREATE DATABASE IF NOT EXISTS {} CHARACTER SET utf8mb4", databases.database);
        connection.execute(create.as_str()).await.context("creating the benchmark's database")?;
        let access = Access {
            database_url: ending(&args.database_url, databases.database)?,
            redis_url: ending(&args.redis_url, databases.redis)?,
            // Only the instances started here know it.
            admin_token: "token-of-the-benchmark".to_owned(),
            time_zone: chrono_tz::Asia::Shanghai,
            key_style: None,
        };
        let mut migrate = Command::new(&args.seckill);
        migrate.args(["migrate", "--database-url", &access.database_url]);
        let output = tokio::task::block_in_place(|| migrate.output()).context("seckill migrate")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`seckill migrate` failed: {errors}");
        let pool = MySqlPoolOptions::new().max_connections(4).connect(&access.database_url).await?;
        let order_rows = OrderRows::open(&access.database_url).await?;
        let file =
            "SELECT IF(LEFT(@@pid_file, 1) = '/', @@pid_file, CONCAT(@@datadir, @@pid_file))";
        let file: String = sqlx::query_scalar(file).fetch_one(&pool).await?;
        let database = std::fs::read_to_string(file).ok().and_then(|pid| pid.trim().parse().ok());
        let redis = redis_info(&access, "process_id").await?.parse().ok();
        // A token is the user's id, as the baseline knows no sessions.
        let buyer = |user_id: u64| {
            let token = HeaderValue::from_str(&format!("{user_id:032x}"))?;
            anyhow::Ok(Buyer { user_id, token })
        };
        let buyers = (1..=buyers as u64).map(buyer).collect::<anyhow::Result<Arc<[_]>>>()?;
        let before: f64 = redis_info(&access, "used_memory").await?.parse()?;
        sessions::open(&access, &buyers).await.context("signing in")?;
        let after: f64 = redis_info(&access, "used_memory").await?.parse()?;
        let environment = Self {
            args: args.clone(),
            access,
            pids: [database, redis],
            pool,
            order_rows,
            session_bytes: (after - before) / buyers.len().max(1) as f64,
            buyers,
            databases,
        };
        environment.delete_orders().await?;
        Ok(environment)
    }

    pub async fn redis(&self) -> anyhow::Result<RoutedConnection> {
        Ok(redis_connection::connect(&self.access.redis_url).await?)
    }

    /// Deletes all orders, so that every run starts with an empty table; nothing where they are to stay.
    pub async fn delete_orders(&self) -> anyhow::Result<()> {
        if !self.databases.keeps_orders {
            self.pool.execute("TRUNCATE TABLE tb_voucher_order").await?;
        }
        Ok(())
    }

    /// Deletes the claims of sales that are over, so that no run finds a larger Redis than another.
    pub async fn delete_claims(&self, sales: RangeInclusive<u64>) -> anyhow::Result<()> {
        let claims: Vec<String> = sales.map(|sale| format!("seckill:order:{sale}")).collect();
        redis::cmd("UNLINK").arg(claims).query_async::<()>(&mut self.redis().await?).await?;
        Ok(())
    }
}

/// One field of Redis' INFO; empty where there is none.
pub async fn redis_info(access: &Access, field: &str) -> anyhow::Result<String> {
    let mut redis = redis_connection::connect(&access.redis_url).await?;
    let info: String = redis::cmd("INFO").query_async(&mut redis).await?;
    let mut fields = info.lines().filter_map(|line| line.split_once(':'));
    Ok(fields
        .find(|(name, _)| *name == field)
        .map_or_else(String::new, |(_, value)| value.trim().to_owned()))
}
