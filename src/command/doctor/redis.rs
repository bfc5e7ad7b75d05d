//! `doctor`: Redis.

use anyhow::anyhow;
use redis::AsyncCommands;

use super::findings::Findings;
use crate::connection::redis::RoutedConnection;
use crate::connection::redis_requirements::field;
use crate::keys::record::recorded;
use crate::keys::{KeyStyle, rights};

/// A channel of the locks' form, without subscribers.
const LOCK_CHANNEL: &str = "redisson_lock__channel:{doctor}";

/// Checks eviction, persistence, replicas, rights and key style; connecting has checked the version.
pub(super) async fn check(
    findings: &mut Findings,
    redis: &mut RoutedConnection,
    style: KeyStyle,
) -> anyhow::Result<()> {
    let info: String = redis::cmd("INFO").query_async(redis).await?;
    let of = |name| field(&info, name).unwrap_or_default();
    let policy = of("maxmemory_policy");
    if !matches!(policy, "" | "noeviction") {
        findings.warn(
            &format!("maxmemory-policy is {policy}"),
            "locks and sessions can be evicted; use noeviction",
        );
    }
    if of("aof_enabled") == "0" {
        findings.warn(
            "the append-only file is off",
            "a restart loses sessions and the id counters; set appendonly yes",
        );
    }
    let replicas = of("connected_slaves");
    if !matches!(replicas, "" | "0") && of("min_slaves_good_slaves").is_empty() {
        findings.warn(
            &format!("{replicas} replicas, and the master takes writes when it has lost them"),
            "cut off, it admits orders that a failover loses; set min-replicas-to-write 1 and min-replicas-max-lag 10",
        );
    }
    match redis.publish::<_, _, i64>(LOCK_CHANNEL, "0").await {
        Err(error) if error.code() == Some("NOPERM") => findings.warn(
            &format!("the user may not publish on {LOCK_CHANNEL}"),
            "other clients learn of released locks late; ACL SETUSER … +publish +subscribe &redisson_*",
        ),
        published => drop(published?),
    }
    if findings.end(rights::check(redis).await).is_some() {
        findings.good("the user has the rights that are needed");
    }
    match recorded(redis).await? {
        Some(other) if other != style.to_string() => {
            findings.end::<()>(Err(anyhow!(
                "key style {style}, while other instances use {other}: set --key-style (KEY_STYLE) alike, or switch all \
                 instances as docs/OPERATIONS.md says"
            )));
        }
        Some(_) => findings.good(&format!("key style {style}, as recorded")),
        None => findings.good(&format!("key style {style}, which the first start records")),
    }
    Ok(())
}
