//! Test environment: a database and a Redis of its own, and signed-in buyers; and the conditions of a measurement in it.

use std::ops::RangeInclusive;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use hyper::header::HeaderValue;
use redis_link::RoutedConnection;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::{Executor, MySqlPool};
use testkit::database_server::Settings;
use testkit::process::TemporaryFolder;
use testkit::redis_server::{RedisServer, Role};
use testkit::replicated_database::{ReplicatedDatabase, Replication};
use workload::{Access, buyers::Buyer, order_rows::OrderRows, redis_connection, sessions};

use crate::bench::options::BenchArgs;
use crate::chaos::test_cluster::access;

/// Signed-in buyers, except where the number of sessions grows.
pub const BUYERS: usize = 100_000;

/// A database: whether it has a replica, and arguments of its servers.
pub type Database = (Replication, &'static [&'static str]);

/// A database without a binary log.
pub const PLAIN: Database = (Replication::None, &["--skip-log-bin"]);

/// Arguments of every database server and of every Redis: those of `./dev up`.
const DATABASE: [&str; 3] = [
    "--innodb-buffer-pool-size=256M",
    "--loose-innodb-log-file-size=96M",
    "--max-connections=3000",
];
const REDIS: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "everysec"];

/// The servers, files and buyers that the runs on the same databases share.
#[derive(Debug)]
pub struct Environment {
    pub args: BenchArgs,
    pub access: Access,
    /// Connections to the database.
    pub pool: MySqlPool,
    /// Reads sales and their orders from its tables.
    pub order_rows: OrderRows,
    pub buyers: Arc<[Buyer]>,
    /// Bytes of Redis for each session.
    pub session_bytes: f64,
    /// Whether orders stay when a run is over; otherwise every run starts with an empty table.
    pub keeps_orders: bool,
    /// Process ids of the database and of Redis.
    pub pids: [u32; 2],
    /// The servers run until these fields are dropped.
    _database: ReplicatedDatabase,
    pub redis_server: RedisServer,
}

impl Environment {
    /// Starts the servers, makes the tables, and signs in `buyers`.
    pub async fn open(
        args: &BenchArgs,
        (replication, arguments): Database,
        buyers: usize,
    ) -> anyhow::Result<Self> {
        let folder = Arc::new(TemporaryFolder::new()?);
        let arguments = DATABASE
            .iter()
            .chain(arguments)
            .map(|&argument| argument.to_owned());
        let settings = Settings {
            arguments: arguments.collect(),
            ..Settings::default()
        };
        let database = ReplicatedDatabase::start_in(folder.clone(), replication, settings).await?;
        let arguments = REDIS.map(str::to_owned).to_vec();
        let redis = RedisServer::start_in(folder, Role::Alone, arguments).await?;
        let pids = [database.primary().process()?.id(), redis.process()?.id()];
        // Past the proxy, which only some of the databases have.
        let access = access(database.primary().url(), redis.url());
        let mut migrate = Command::new(&args.seckill);
        migrate.args(["migrate", "--database-url", &access.database_url]);
        let output = tokio::task::block_in_place(|| migrate.output()).context("seckill migrate")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "`seckill migrate` failed: {errors}"
        );
        let pool = MySqlPoolOptions::new()
            .max_connections(4)
            .connect(&access.database_url)
            .await?;
        let order_rows = OrderRows::open(&access.database_url).await?;
        let buyers = (1..=buyers as u64)
            .map(buyer)
            .collect::<anyhow::Result<Arc<[_]>>>()?;
        let before: f64 = redis_info(&access, "used_memory").await?.parse()?;
        sessions::open(&access, &buyers)
            .await
            .context("signing in")?;
        let after: f64 = redis_info(&access, "used_memory").await?.parse()?;
        Ok(Self {
            args: args.clone(),
            access,
            pool,
            order_rows,
            session_bytes: (after - before) / buyers.len().max(1) as f64,
            buyers,
            keeps_orders: false,
            pids,
            _database: database,
            redis_server: redis,
        })
    }

    pub async fn redis(&self) -> anyhow::Result<RoutedConnection> {
        Ok(redis_connection::connect(&self.access.redis_url).await?)
    }

    /// Deletes all orders, unless they are to stay, and the claims of these sales, which are over: so every run begins with
    /// the same data.
    pub async fn clear(&self, sales: RangeInclusive<u64>) -> anyhow::Result<()> {
        if !self.keeps_orders {
            self.pool.execute("TRUNCATE TABLE tb_voucher_order").await?;
        }
        let claims: Vec<String> = sales.map(|sale| format!("seckill:order:{sale}")).collect();
        redis::cmd("UNLINK")
            .arg(claims)
            .query_async::<()>(&mut self.redis().await?)
            .await?;
        Ok(())
    }

    /// What stands below the figures: date, commit, machine, versions and flush settings, rounds, in one paragraph.
    pub async fn conditions(&self, took: Duration) -> anyhow::Result<String> {
        let args = &self.args;
        let unfit = if args.quick {
            "**A quick run, not fit for conclusions.** "
        } else {
            ""
        };
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpu = read("/proc/cpuinfo");
        let processor = cpu.lines().find_map(|line| line.strip_prefix("model name"));
        let processor =
            processor.map_or("unknown", |name| name.trim_start_matches([':', ' ', '\t']));
        let load = read("/proc/loadavg")
            .split(' ')
            .take(3)
            .collect::<Vec<_>>()
            .join(" ");
        let query = "SELECT VERSION(), CAST(@@innodb_flush_log_at_trx_commit AS SIGNED)";
        let (database, flush): (String, i64) = sqlx::query_as(query).fetch_one(&self.pool).await?;
        let flushes = if database.contains("OceanBase") {
            "a log that is opened with O_SYNC".to_owned()
        } else {
            format!("innodb_flush_log_at_trx_commit={flush}")
        };
        let redis = redis_info(&self.access, "redis_version").await?;
        Ok(format!(
            "{unfit}{} · commit {} · {} cores ({processor}), load {load} · database {database} with \
             {flushes} · Redis {redis} {} · {} rounds of {} ms a run · \
             {} s in all",
            chrono::Local::now().format("%Y-%m-%d %H:%M"),
            commit(),
            std::thread::available_parallelism().map_or(0, usize::from),
            REDIS.join(" "),
            args.rounds(),
            args.duration().as_millis(),
            took.as_secs(),
        ))
    }
}

/// A buyer whose token is the user's id, as the baseline knows no sessions.
fn buyer(user_id: u64) -> anyhow::Result<Buyer> {
    let token = HeaderValue::from_str(&format!("{user_id:032x}"))?;
    Ok(Buyer { user_id, token })
}

/// The checkout's commit, with a `+` where it has uncommitted changes.
fn commit() -> String {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR")]);
    git.args(["describe", "--always", "--dirty=+", "--exclude=*"]);
    let output = git.output().ok().filter(|output| output.status.success());
    let commit = output.and_then(|output| String::from_utf8(output.stdout).ok());
    commit.map_or_else(|| "unknown".to_owned(), |commit| commit.trim().to_owned())
}

/// One field of Redis' INFO; empty where there is none.
async fn redis_info(access: &Access, field: &str) -> anyhow::Result<String> {
    let mut redis = redis_connection::connect(&access.redis_url).await?;
    let info: String = redis::cmd("INFO").query_async(&mut redis).await?;
    let value = info
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(value.unwrap_or_default().trim().to_owned())
}
