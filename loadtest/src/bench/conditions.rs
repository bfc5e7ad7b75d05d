//! The conditions of a measurement, which stand below its figures.

use std::process::Command;
use std::time::Duration;

use crate::bench::environment::{Environment, REDIS, redis_info};

/// Processors, shared by the servers and the load generator.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

/// Date, commit, machine, versions and flush settings, rounds: one paragraph.
pub async fn text(environment: &Environment, took: Duration) -> anyhow::Result<String> {
    let args = &environment.args;
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let processor = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let processor = processor.map_or("unknown", |name| name.trim_start_matches([':', ' ', '\t']));
    let load = read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ");
    let query = "SELECT VERSION(), CAST(@@innodb_flush_log_at_trx_commit AS SIGNED)";
    let (database, flush): (String, i64) =
        sqlx::query_as(query).fetch_one(&environment.pool).await?;
    let redis = redis_info(&environment.access, "redis_version").await?;
    let flush_redis = REDIS.join(" ");
    Ok(format!(
        "{} · commit {} · {} cores ({processor}), load {load} · MariaDB/MySQL {database} with \
         innodb_flush_log_at_trx_commit={flush} · Redis {redis} {flush_redis} · {} rounds of {} ms a run · \
         {} s in all. The load generator shares these cores with all servers.",
        chrono::Local::now().format("%Y-%m-%d %H:%M"),
        commit(),
        cores(),
        args.rounds(),
        args.duration().as_millis(),
        took.as_secs(),
    ))
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
