//! `/metrics` as Prometheus reads it: every line follows the text format, values change, and the dashboard and the alert rules
//! use the names that are printed.

use crate::support::api::get;
use crate::support::eventually;
use crate::support::stack::{Stack, buy};
use std::collections::BTreeSet;
use std::path::Path;

pub mod page;

use page::Page;

#[tokio::test]
async fn every_line_follows_the_format_values_change_and_dashboard_and_rules_query_what_is_there() {
    let args = ["--lab", "--database-connections", "4", "--group-in-flight", "1"];
    let stack = Stack::start(1, &args).await;
    let users = stack.users(2).await;
    for strategy in workload::ladder::Strategy::ALL {
        let sale = stack.publish(1, strategy.name()).await;
        stack.buy(&users[0], sale).await.bought();
        stack.buy(&users[1], sale).await.refused(200, "SOLD_OUT");
    }
    stack.buy(&users[0], 999_999).await.refused(200, "VOUCHER_NOT_FOUND");
    get(stack.url(), "/shop/1").send().await.data();
    let url = stack.url();
    eventually("all locks are released", async || {
        let page = Page::of(url).await;
        let held = |kind| page.get("seckill_locks_held", &[("kind", kind)]);
        ["reentrant", "setnx", "process"].into_iter().all(|kind| held(kind) == 0.0)
    })
    .await;
    let page = Page::of(url).await;
    for (kind, strategy) in
        [("reentrant", "reentrant-lock"), ("setnx", "setnx-lock"), ("process", "process-lock")]
    {
        let of = [("kind", kind)];
        let acquired =
            page.get("seckill_lock_acquires_total", &[("kind", kind), ("outcome", "acquired")]);
        assert!(acquired >= 1.0, "{kind}");
        assert_eq!(page.get("seckill_lock_wait_seconds_count", &of), acquired, "{kind}");
        assert_eq!(page.get("seckill_lock_hold_seconds_count", &of), acquired, "{kind}");
        assert!(page.get("seckill_lock_hold_seconds_sum", &of) > 0.0, "{kind}");
        let ordered = [("strategy", strategy), ("outcome", "ordered")];
        assert_eq!(page.get("seckill_purchases_total", &ordered), 1.0, "{strategy}");
    }
    // Its sale was not read, so that its strategy is not known.
    let unread = [("strategy", "unknown"), ("outcome", "other")];
    assert_eq!(page.get("seckill_purchases_total", &unread), 1.0);
    assert_eq!(
        page.get("seckill_purchase_duration_seconds_count", &[("strategy", "group-commit")]),
        2.0
    );
    assert_eq!(page.get("seckill_group_batch_orders_sum", &[]), 1.0);
    assert!(page.get("seckill_session_lookups_total", &[("answered_by", "redis")]) >= 2.0);
    assert!(page.get("seckill_session_lookups_total", &[("answered_by", "memory")]) >= 1.0);
    assert!(page.get("seckill_sessions_in_memory", &[]) >= 2.0);
    assert!(page.get("seckill_http_connections_open", &[]) >= 1.0);
    assert!(page.get("seckill_database_connections", &[("state", "idle")]) >= 1.0);
    assert!(page.get("seckill_database_connection_hold_seconds_count", &[]) >= 9.0);
    assert!(page.get("seckill_database_connection_hold_seconds_sum", &[]) > 0.0);
    assert!(page.get("process_resident_memory_bytes", &[]) > 1e6);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let age = now.as_secs_f64() - page.get("process_start_time_seconds", &[]);
    assert!((0.0..600.0).contains(&age), "{age} s");
    queries_are_answered(&page);

    // A held lock, a queue and a busy pool are measured.
    let grouped = stack.publish(50, "group-commit").await;
    let locked = stack.publish(50, "reentrant-lock").await;
    let users = stack.users(6).await;
    let before = Page::of(url).await;
    let holders = [stack.lock_sale(grouped).await, stack.lock_sale(locked).await];
    let sales = [locked, grouped, grouped, grouped].into_iter().zip(&users);
    let stuck: Vec<_> = sales.map(|(sale, user)| stack.start_buying(user, sale)).collect();
    eventually("the lock, the queue and the pool are measured", async || {
        let page = Page::of(url).await;
        let queued = page.get("seckill_group_purchases_waiting", &[])
            + page.get("seckill_group_purchases_in_flight", &[]);
        page.get("seckill_locks_held", &[("kind", "reentrant")]) == 1.0
            && queued == 3.0
            && page.get("seckill_group_batches_in_flight", &[]) == 1.0
            && page.get("seckill_database_connections", &[("state", "in_use")]) >= 2.0
            && page.get("seckill_purchases_in_flight", &[]) >= 1.0
    })
    .await;
    // The same user once more: the lock is busy.
    buy(url, &users[0], locked).await.refused(200, "LOCK_BUSY");
    let page = Page::of(url).await;
    let busy = [("kind", "reentrant"), ("outcome", "busy")];
    let tries = |page: &Page| page.get("seckill_lock_acquires_total", &busy);
    assert_eq!(tries(&page) - tries(&before), 1.0);
    assert_eq!(page.get("seckill_database_connections_max", &[]), 4.0);
    for holder in holders {
        holder.rollback().await.expect("a rollback");
    }
    for purchase in stuck {
        purchase.await.expect("an answer");
    }
    eventually("nothing is left", async || {
        let page = Page::of(url).await;
        let names = [
            "seckill_group_purchases_waiting",
            "seckill_group_purchases_in_flight",
            "seckill_purchases_in_flight",
        ];
        page.get("seckill_locks_held", &[("kind", "reentrant")]) == 0.0
            && names.into_iter().all(|name| page.get(name, &[]) == 0.0)
    })
    .await;
}

fn project(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The queries of the alert rules, and of the dashboard's panels.
fn queries() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let rules = project("deploy/prometheus/alerts.yml");
    for line in rules.lines() {
        if let Some(query) = line.trim_start().strip_prefix("expr: ") {
            found.push(("alerts.yml".to_owned(), query.to_owned()));
        }
    }
    assert_eq!(found.len(), rules.matches("- alert:").count(), "one line a query");
    let dashboard = project("deploy/grafana/dashboards/seckill.json");
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert!(panel["type"] == "row" || !targets.is_empty(), "{title} shows nothing");
        for target in targets {
            found.push((title.to_owned(), target["expr"].as_str().unwrap().to_owned()));
        }
    }
    found
}

/// The dashboard and the rules query what is printed: each series, and each label before a value, `by` and `on`.
fn queries_are_answered(page: &Page) {
    let queries = queries();
    assert!(queries.len() > 30, "{}", queries.len());
    for (file, query) in queries {
        let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let is_series = |word: &&str| word.starts_with("seckill_") || word.starts_with("process_");
        let series: BTreeSet<&str> = words.filter(is_series).collect();
        assert!(!series.is_empty() || query.contains("up{"), "{file}: no series in {query}");
        let mut known: BTreeSet<&str> = ["instance", "job", "le"].into();
        for name in series {
            let family = page.family(name).unwrap_or_else(|| panic!("{file}: {name} in {query}"));
            known.extend(family.labels());
        }
        let within = |open: &'static str, close: char| {
            query.split(open).skip(1).filter_map(move |rest| rest.split(close).next())
        };
        let matched = within("{", '}').flat_map(|pairs| pairs.split(','));
        let matched = matched.filter_map(|pair| pair.split(['=', '!']).next());
        let grouped =
            within(" by (", ')').chain(within(" on (", ')')).flat_map(|it| it.split(", "));
        for label in matched.chain(grouped) {
            assert!(known.contains(label.trim()), "{file}: label {label} in {query}");
        }
    }
}
