//! The ground to measure on: a database of its own on the stack's MariaDB, a database number of its own
//! in the stack's Redis, and many signed-in buyers. A developer's own sales are not touched.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use redis::aio::MultiplexedConnection;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::{Executor, MySqlPool};
use workload::{Access, ledger::Ledger, live::Progress};

use crate::client::wire::TOKEN;

/// Ours alone; `./dev` lets its user have every database whose name begins with `seckill_`.
const DATABASE: &str = "seckill_bench";

/// The number of our Redis database.
const REDIS_DATABASE: u8 = 9;

/// Buyers who are signed in.
#[derive(Debug, Clone)]
pub struct Buyers {
    /// Their session tokens.
    pub tokens: Vec<[u8; TOKEN]>,
    /// Their user ids, in the same order.
    pub users: Vec<u64>,
    /// A file of lines `token user`, for the baseline.
    pub file: PathBuf,
}

/// Where to measure.
#[derive(Debug, Clone)]
pub struct Ground {
    /// Addresses and secrets.
    pub access: Access,
    /// The program under test.
    pub seckill: PathBuf,
    /// A folder for files.
    pub folder: PathBuf,
    /// The processes of the database and of Redis.
    pub pids: Pids,
    /// Reads a sale's end.
    pub ledger: Ledger,
    pool: MySqlPool,
}

/// Processes on this machine; `None` where they cannot be found, as in a container of their own.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pids {
    /// The database.
    pub database: Option<u32>,
    /// Redis.
    pub redis: Option<u32>,
}

/// What the servers are.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Servers {
    /// Such as `10.11.6-MariaDB`.
    pub database: String,
    /// `innodb_flush_log_at_trx_commit`.
    pub flush_at_commit: i64,
    /// `redis_version`.
    pub redis: String,
    /// `appendfsync`, or `off` where there is no append-only file.
    pub redis_sync: String,
}

impl Ground {
    /// Makes the database where it is missing, and its tables.
    pub async fn prepare(
        access: Access,
        seckill: PathBuf,
        folder: PathBuf,
    ) -> anyhow::Result<Self> {
        let (Some((server, _)), Some((redis, _))) =
            (access.database_url.rsplit_once('/'), access.redis_url.rsplit_once('/'))
        else {
            bail!("DATABASE_URL and REDIS_URL must end with a database: `eval \"$(./dev env)\"`");
        };
        let mut access = access.clone();
        let create = format!("CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4");
        let pool = MySqlPoolOptions::new().max_connections(1).connect(&access.database_url).await?;
        pool.execute(create.as_str()).await.context("making a database for the benchmark")?;
        pool.close().await;
        access.database_url = format!("{server}/{DATABASE}");
        access.redis_url = format!("{redis}/{REDIS_DATABASE}");
        std::fs::create_dir_all(&folder)?;
        let flags = ["migrate".into(), "--database-url".into(), access.database_url.clone()];
        run(&seckill, &flags).await?;
        let pool = MySqlPoolOptions::new().max_connections(4).connect(&access.database_url).await?;
        let ledger = Ledger::open(&access.database_url).await?;
        let mut ground = Self { access, seckill, folder, pids: Pids::default(), ledger, pool };
        ground.pids = ground.find_pids().await?;
        Ok(ground)
    }

    async fn find_pids(&self) -> anyhow::Result<Pids> {
        let file =
            "SELECT IF(LEFT(@@pid_file, 1) = '/', @@pid_file, CONCAT(@@datadir, @@pid_file))";
        let file: String = sqlx::query_scalar(file).fetch_one(&self.pool).await?;
        let database = std::fs::read_to_string(file).ok().and_then(|pid| pid.trim().parse().ok());
        let mut redis = self.redis().await?;
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut redis).await?;
        let redis = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        Ok(Pids { database, redis: redis.and_then(|pid| pid.trim().parse().ok()) })
    }

    /// `count` buyers: those of the last run where their sessions are still there, otherwise new ones.
    pub async fn buyers(&self, count: usize) -> anyhow::Result<Buyers> {
        let tokens = self.folder.join("tokens");
        if let Ok(buyers) = self.signed_in(&tokens, count).await {
            return Ok(buyers);
        }
        Progress::Stderr.say(&format!("signing in {count} buyers (once; they are kept)"));
        let flags: Vec<String> = [
            "seed",
            "--database-url",
            &self.access.database_url,
            "--redis-url",
            &self.access.redis_url,
            "--tokens",
            &count.to_string(),
            "--tokens-file",
            &tokens.display().to_string(),
        ]
        .map(str::to_owned)
        .into();
        run(&self.seckill, &flags).await?;
        self.signed_in(&tokens, count).await
    }

    async fn signed_in(&self, tokens: &Path, count: usize) -> anyhow::Result<Buyers> {
        let text = std::fs::read_to_string(tokens)?;
        let lines: Vec<&str> = text.lines().take(count).collect();
        ensure!(lines.len() == count, "too few tokens");
        let mut redis = self.redis().await?;
        let (mut users, mut list) = (Vec::with_capacity(count), String::new());
        for lines in lines.chunks(1000) {
            let mut pipe = redis::pipe();
            for token in lines {
                pipe.hget(format!("login:token:{token}"), "id");
            }
            let ids: Vec<Option<u64>> = pipe.query_async(&mut redis).await?;
            for (token, user) in lines.iter().zip(ids) {
                let user = user.context("a session is over")?;
                list += &format!("{token} {user}\n");
                users.push(user);
            }
        }
        let tokens: Option<Vec<[u8; TOKEN]>> =
            lines.iter().map(|line| line.as_bytes().try_into().ok()).collect();
        let file = self.folder.join("buyers");
        std::fs::write(&file, list)?;
        Ok(Buyers { tokens: tokens.context("not a file of tokens")?, users, file })
    }

    /// A connection to our database of Redis.
    pub async fn redis(&self) -> anyhow::Result<MultiplexedConnection> {
        let client = redis::Client::open(self.access.redis_url.as_str())?;
        Ok(client.get_multiplexed_async_connection().await?)
    }

    /// Removes all orders, so that no run finds a larger table than the others did.
    pub async fn forget_orders(&self) -> anyhow::Result<()> {
        self.pool.execute("TRUNCATE TABLE tb_voucher_order").await?;
        Ok(())
    }

    /// What is left of a sale.
    pub async fn stock(&self, voucher: u64) -> anyhow::Result<i64> {
        let query = "SELECT CAST(stock AS SIGNED) FROM tb_seckill_voucher WHERE voucher_id = ?";
        Ok(sqlx::query_scalar(query).bind(voucher).fetch_one(&self.pool).await?)
    }

    /// Versions and durability.
    pub async fn servers(&self) -> anyhow::Result<Servers> {
        let query = "SELECT VERSION(), CAST(@@innodb_flush_log_at_trx_commit AS SIGNED)";
        let (database, flush_at_commit) = sqlx::query_as(query).fetch_one(&self.pool).await?;
        let mut redis = self.redis().await?;
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut redis).await?;
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        let mut setting = async |name: &str| -> anyhow::Result<String> {
            let pair: Vec<String> =
                redis::cmd("CONFIG").arg("GET").arg(name).query_async(&mut redis).await?;
            Ok(pair.into_iter().nth(1).unwrap_or_default())
        };
        let on = setting("appendonly").await? == "yes";
        let redis_sync = if on { setting("appendfsync").await? } else { "off".to_owned() };
        Ok(Servers {
            database,
            flush_at_commit,
            redis: version.unwrap_or("unknown").trim().to_owned(),
            redis_sync,
        })
    }
}

/// Runs a subcommand of the service to its end.
async fn run(program: &Path, flags: &[String]) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    command.args(flags);
    let output = crate::stack::output(command).await?;
    let said = String::from_utf8_lossy(&output.stderr);
    let name = flags.first().map_or("", |name| name);
    ensure!(output.status.success(), "`seckill {name}` failed: {said}");
    Ok(())
}
