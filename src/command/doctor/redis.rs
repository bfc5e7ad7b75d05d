//! `doctor`: Redis, and the open sales that a Java node published.

use std::collections::HashMap;

use redis::{AsyncCommands, RedisResult};

use super::findings::Findings;
use crate::connection::redis::{RoutedConnection, info_field};
use crate::keys::record::is_recorded;
use crate::keys::{KeyStyle, Keys, rights};
use crate::order::store::OrderStore;

/// Checks eviction, persistence, replicas, rights and key style.
pub(super) async fn check(
    findings: &mut Findings,
    redis: &mut RoutedConnection,
    style: KeyStyle,
) -> anyhow::Result<()> {
    let info: String = redis::cmd("INFO").query_async(redis).await?;
    let info_of = |name| info_field(&info, name).unwrap_or_default();
    let policy = info_of("maxmemory_policy");
    if !matches!(policy, "" | "noeviction") {
        findings.warn(
            &format!("maxmemory-policy is {policy}"),
            "locks and sessions can be evicted; use noeviction",
        );
    }
    if info_of("aof_enabled") == "0" {
        let (what, advice) = without_append_only_file(redis, &info).await?;
        findings.warn(&what, advice);
    }
    let replicas = info_of("connected_slaves");
    if !matches!(replicas, "" | "0") && info_of("min_slaves_good_slaves").is_empty() {
        findings.warn(
            &format!("{replicas} replicas, and the master takes writes when it has lost them"),
            "cut off, it admits orders that a failover loses; set min-replicas-to-write 1 and min-replicas-max-lag 10",
        );
    }
    // A channel of the locks' form, without subscribers.
    if let Err(error) = redis
        .publish::<_, _, i64>("redisson_lock__channel:{doctor}", "0")
        .await
    {
        findings.warn(
            &format!("the user may not publish on the locks' channels ({error})"),
            "other clients learn of released locks late; ACL SETUSER … +publish +subscribe &redisson_*",
        );
    }
    if findings.value_or_fail(rights::check(redis).await).is_some() {
        findings.good("the user has the rights that are needed");
    }
    match findings.value_or_fail(is_recorded(redis, style).await) {
        Some(true) => findings.good(&format!("key style {style}, as recorded")),
        Some(false) => findings.good(&format!("key style {style}, which the first start records")),
        None => {}
    }
    Ok(())
}

/// What a server without an append-only file keeps, and the advice. An old snapshot is worse than nothing: it brings keys
/// back that were deleted since, such as those of sessions that ended.
async fn without_append_only_file(
    redis: &mut RoutedConnection,
    info: &str,
) -> anyhow::Result<(String, &'static str)> {
    let configured: RedisResult<HashMap<String, String>> = redis::cmd("CONFIG")
        .arg("GET")
        .arg("save")
        .query_async(redis)
        .await;
    let number = |name| info_field(info, name).and_then(|value| value.parse::<i64>().ok());
    let (now, _): (i64, i64) = redis::cmd("TIME").query_async(redis).await?;
    let last = number("rdb_last_save_time").unwrap_or_default();
    // A server gives its start as the time of the last save until it has saved; from version 7 on it also counts its saves.
    let started = now - number("uptime_in_seconds").unwrap_or_default();
    let has_saved = number("rdb_saves").map_or(last > started + 1, |saves| saves > 0);
    // The user needs no right to read the settings. Without it, what the server has done tells.
    let is_saving = match configured {
        Ok(settings) => settings.get("save").is_some_and(|save| !save.is_empty()),
        Err(_) => has_saved,
    };
    if !is_saving {
        return Ok((
            "Redis keeps nothing: no append-only file, and no snapshots".to_owned(),
            "its restart signs everybody out, and ends pending orders; set appendonly yes",
        ));
    }
    let newest = if has_saved {
        let changes = number("rdb_changes_since_last_save").unwrap_or_default();
        format!(
            "the last was made {} s ago, {changes} changes before now",
            now - last
        )
    } else {
        "and has made none since its start".to_owned()
    };
    Ok((
        format!("Redis keeps snapshots only; {newest}"),
        "its restart brings back keys that were deleted, such as ended sessions; set appendonly yes, or else save \"\"",
    ))
}

/// Says how the open sales without a recorded strategy are sold: by their counter, if there is one.
pub(super) async fn java_sales(
    findings: &Findings,
    store: &OrderStore,
    redis: &mut RoutedConnection,
    keys: &Keys,
) -> anyhow::Result<()> {
    for sale in store
        .open_sales(None)
        .await?
        .iter()
        .filter(|sale| sale.issued.is_none())
    {
        let id = sale.voucher_id;
        let counter = keys.stock(sale.voucher_id);
        if redis.exists(&counter).await? {
            findings.good(&format!(
                "sale {id}: a Java node published it; sold on the strategy stream, by {counter}"
            ));
        } else {
            findings.warn(
                &format!("sale {id}: a Java node published it, and {counter} is missing: sold by {}", sale.strategy),
                "if that node admits by a script, SET the counter to the sale's stock before anybody buys",
            );
        }
    }
    Ok(())
}
