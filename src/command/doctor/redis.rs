//! `doctor`: Redis, and the open sales that a Java node published.

use redis::AsyncCommands;

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
    let of = |name| info_field(&info, name).unwrap_or_default();
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
    if findings.end(rights::check(redis).await).is_some() {
        findings.good("the user has the rights that are needed");
    }
    match findings.end(is_recorded(redis, style).await) {
        Some(true) => findings.good(&format!("key style {style}, as recorded")),
        Some(false) => findings.good(&format!("key style {style}, which the first start records")),
        None => {}
    }
    Ok(())
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
        let (id, counter) = (sale.voucher_id, keys.stock(sale.voucher_id));
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
