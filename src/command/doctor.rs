//! `seckill doctor`: checks everything that a start needs, prints each finding with what to do about it, and fails where
//! something must be repaired.

use std::time::Duration;

use anyhow::bail;
use chrono::{DateTime, TimeDelta, Utc};
use redis::Script;

use crate::config::DoctorConfig;
use crate::connection::mysql::Database;
use crate::connection::shared::SharedConnection;
use crate::connection::{self, migrate, mysql};
use crate::scripts;

/// Clocks further apart than this are worth a warning.
const MAX_SKEW: TimeDelta = TimeDelta::seconds(2);

/// The oldest Redis that has what the scripts use: GEOSEARCH came with 6.2.
const MIN_REDIS: (u32, u32) = (6, 2);

#[derive(Default)]
struct Findings {
    failures: usize,
}

impl Findings {
    fn good(&self, what: &str) {
        println!("  ok    {what}");
    }

    fn warn(&self, what: &str, advice: &str) {
        println!("  warn  {what}\n        → {advice}");
    }

    fn fail(&mut self, what: &str, advice: &str) {
        self.failures += 1;
        println!("  FAIL  {what}\n        → {advice}");
    }
}

/// Runs the command.
pub async fn run(config: DoctorConfig) -> anyhow::Result<()> {
    let mut findings = Findings::default();
    println!("time zone");
    findings.good(&format!("{}: it is {}", config.time_zone.0, config.time_zone.now()));

    println!("database");
    let database = &config.database;
    match mysql::connect(&database.database_url, 1, database.database_timeout).await {
        Ok(pool) => {
            if let Err(error) = check_database(&mut findings, &pool, &config).await {
                findings.fail(&format!("{error:#}"), "see the message");
            }
        }
        Err(error) => findings.fail(&format!("{error:#}"), "start it, or correct DATABASE_URL"),
    }

    println!("redis");
    let timeout = config.redis.redis_timeout;
    let connected = match connection::redis::client(&config.redis.redis_url) {
        Ok(client) => connection::redis::connect(&client, timeout).await,
        Err(error) => Err(error),
    };
    match connected {
        Ok(mut redis) => {
            if let Err(error) = check_redis(&mut findings, &mut redis).await {
                findings.fail(&format!("{error:#}"), "see the message");
            }
        }
        Err(error) => findings.fail(&format!("{error:#}"), "start it, or correct REDIS_URL"),
    }

    if findings.failures > 0 {
        bail!("{} problems to solve before serving", findings.failures);
    }
    println!("ready to serve");
    Ok(())
}

async fn check_database(
    findings: &mut Findings,
    database: &Database,
    config: &DoctorConfig,
) -> anyhow::Result<()> {
    let facts = mysql::facts(database).await?;
    findings.good(&format!("version {}", facts.version));
    if facts.flush_at_commit == 1 {
        findings.good("commits are durable (innodb_flush_log_at_trx_commit=1)");
    } else {
        findings.warn(
            &format!("innodb_flush_log_at_trx_commit={}", facts.flush_at_commit),
            "a confirmed order can be lost in a power cut; set it to 1",
        );
    }
    let wanted = i64::from(config.database.database_connections);
    if facts.max_connections < 2 * wanted {
        findings.warn(
            &format!("max_connections={} for {wanted} an instance", facts.max_connections),
            "raise it, or lower --database-connections",
        );
    }
    skew(findings, "the database", facts.now.and_utc());
    match migrate::missing(&mut *database.pool.acquire().await?).await? {
        0 => findings.good("the schema is up to date"),
        steps => {
            findings.fail(&format!("{steps} migration steps are missing"), "run `seckill migrate`")
        }
    }
    Ok(())
}

async fn check_redis(findings: &mut Findings, redis: &mut SharedConnection) -> anyhow::Result<()> {
    let info: String = redis::cmd("INFO").arg("server").query_async(redis).await?;
    let version = field(&info, "redis_version").unwrap_or("0.0");
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let parsed = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if parsed >= MIN_REDIS {
        findings.good(&format!("version {version}"));
    } else {
        findings.fail(&format!("version {version}"), "install Redis 6.2 or newer");
    }
    let memory: String = redis::cmd("INFO").arg("memory").query_async(redis).await?;
    match field(&memory, "maxmemory_policy") {
        None | Some("noeviction") => findings.good("keys are never evicted"),
        Some(policy) => findings.warn(
            &format!("maxmemory-policy is {policy}"),
            "locks and sessions can be evicted; use noeviction",
        ),
    }
    let persistence: String = redis::cmd("INFO").arg("persistence").query_async(redis).await?;
    match field(&persistence, "aof_enabled") {
        Some("0") => findings.warn(
            "the append-only file is off",
            "a restart loses sessions and the id counters; set appendonly yes",
        ),
        _ => findings.good("the append-only file is on"),
    }
    let (seconds, micros): (i64, u32) = redis::cmd("TIME").query_async(redis).await?;
    if let Some(now) = DateTime::from_timestamp(seconds, micros * 1000) {
        skew(findings, "Redis", now);
    }
    let mut loaded = 0;
    for (name, source) in scripts::ALL.iter().chain(cache::SCRIPTS).chain(lock::SCRIPTS) {
        match Script::new(source).load_async(redis).await {
            Ok(_) => loaded += 1,
            Err(error) => findings.fail(&format!("{name}: {error}"), "this is a bug; report it"),
        }
    }
    findings.good(&format!("{loaded} scripts load"));
    Ok(())
}

fn skew(findings: &mut Findings, whose: &str, now: DateTime<Utc>) {
    let skew = (now - Utc::now()).abs();
    if skew > MAX_SKEW {
        let skew = Duration::from_millis(skew.num_milliseconds().unsigned_abs());
        findings.warn(
            &format!("{whose}'s clock is {skew:?} away from this node's"),
            "run a time service on every machine; sales follow the database's clock",
        );
    } else {
        findings.good(&format!("{whose}'s clock agrees with this node's"));
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
