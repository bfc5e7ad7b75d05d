//! `doctor`: Redis.

use chrono::DateTime;
use redis::Script;

use super::findings::{Findings, skew};
use crate::connection::redis::RoutedConnection;
use crate::connection::redis_requirements::field;
use crate::keys::rights;
use crate::scripts;

/// A channel of the locks' form, without subscribers.
const LOCK_CHANNEL: &str = "redisson_lock__channel:{doctor}";

/// Checks version, eviction, persistence, clock, channel rights and scripts.
pub(super) async fn check(
    findings: &mut Findings,
    redis: &mut RoutedConnection,
) -> anyhow::Result<()> {
    let info: String = redis::cmd("INFO").arg("server").query_async(redis).await?;
    let version = field(&info, "redis_version").unwrap_or("0.0");
    if let Some(valkey) = field(&info, "valkey_version") {
        findings.good(&format!("Valkey {valkey}, compatible with Redis {version}"));
    } else {
        findings.good(&format!("version {version}"));
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
    let replication: String = redis::cmd("INFO").arg("replication").query_async(redis).await?;
    let replicas = field(&replication, "connected_slaves").unwrap_or("0");
    if replicas != "0" && field(&replication, "min_slaves_good_slaves").is_none() {
        findings.warn(
            &format!("{replicas} replicas, and the master takes writes when it has lost them"),
            "cut off, it admits orders that a failover loses; set min-replicas-to-write 1 and min-replicas-max-lag 10",
        );
    }
    let (seconds, micros): (i64, u32) = redis::cmd("TIME").query_async(redis).await?;
    if let Some(now) = DateTime::from_timestamp(seconds, micros * 1000) {
        skew(findings, "Redis", now);
    }
    let publish = redis::cmd("PUBLISH").arg(LOCK_CHANNEL).arg("0").clone();
    match publish.query_async::<i64>(redis).await {
        Ok(_) => findings.good("releases of locks can be published"),
        Err(error) if error.code() == Some("NOPERM") => findings.warn(
            &format!("the user may not publish on {LOCK_CHANNEL}"),
            "other clients learn of released locks late; ACL SETUSER … +publish +subscribe &redisson_*",
        ),
        Err(error) => return Err(error.into()),
    }
    match rights::check(redis).await {
        Ok(()) => findings.good("the user has the rights that are needed"),
        Err(error) => findings.fail(&error.to_string(), "grant them"),
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
