//! `/metrics`: values change, and the dashboard and the alert rules use the names that are printed. Prometheus itself reads it
//! in `./dev test compose`.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::api::get;
use crate::support::stack::{Stack, buy};
use crate::support::{eventually, read};

/// A page: its series with their labels, as they are printed.
struct Page(BTreeMap<String, f64>);

impl Page {
    async fn fetch(base: &str) -> Self {
        let mut series = BTreeMap::new();
        let page = get(base, "/metrics").text().await;
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let (labelled_name, value) = line.rsplit_once(' ').expect("a series and a value");
            let value: f64 = value.parse().expect(line);
            assert!(value.is_finite(), "{line}");
            assert_eq!(
                series.insert(labelled_name.to_owned(), value),
                None,
                "twice: {line}"
            );
        }
        Page(series)
    }

    fn get(&self, series: &str) -> f64 {
        *self.0.get(series).unwrap_or_else(|| panic!("no {series}"))
    }

    /// The names of the labels of all series of this name.
    fn labels(&self, name: &str) -> Option<BTreeSet<&str>> {
        let mut series_of_name = self
            .0
            .keys()
            .filter(|series| series.split('{').next() == Some(name))
            .peekable();
        series_of_name.peek()?;
        Some(
            series_of_name
                .flat_map(|series| labels(series))
                .map(|(label, _)| label)
                .collect(),
        )
    }
}

/// The labels of a series with their values in quotes; none has a comma.
fn labels(series: &str) -> Vec<(&str, &str)> {
    let (_, labels) = series.split_once('{').unwrap_or((series, "}"));
    let labels = labels.strip_suffix('}').expect(series);
    let pairs = labels.split(',').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').expect(series))
        .collect()
}

const ARGS: [&str; 5] = [
    "--lab",
    "--database-connections",
    "4",
    "--group-in-flight",
    "1",
];

fn held(page: &Page, kind: &str) -> f64 {
    page.get(&format!("seckill_locks_held{{kind=\"{kind}\"}}"))
}

#[tokio::test]
async fn values_change_and_dashboard_and_rules_query_what_is_there() {
    let stack = Stack::start(1, &ARGS).await;
    let users = stack.users(2).await;
    for strategy in strategies::Strategy::ALL {
        let sale = stack.publish(1, strategy.name()).await;
        stack.buy(&users[0], sale).await.bought();
        stack.buy(&users[1], sale).await.refused(200, "SOLD_OUT");
    }
    stack
        .buy(&users[0], 999_999)
        .await
        .refused(200, "VOUCHER_NOT_FOUND");
    get(stack.url(), "/shop/1").send().await.data();
    let url = stack.url();
    let kinds = ["reentrant", "setnx", "process"];
    eventually("all locks are released", async || {
        let page = Page::fetch(url).await;
        kinds.into_iter().all(|kind| held(&page, kind) == 0.0)
    })
    .await;
    let page = Page::fetch(url).await;
    for kind in kinds {
        let lock_figure = |what: &str| page.get(&format!("seckill_lock_{what}{{kind=\"{kind}\"}}"));
        let outcome =
            format!("seckill_lock_acquires_total{{kind=\"{kind}\",outcome=\"acquired\"}}");
        let acquired = page.get(&outcome);
        assert!(
            acquired >= 1.0 && lock_figure("hold_seconds_sum") > 0.0,
            "{kind}"
        );
        assert_eq!(
            [
                lock_figure("wait_seconds_count"),
                lock_figure("hold_seconds_count")
            ],
            [acquired; 2],
            "{kind}"
        );
        let ordered = format!("strategy=\"{kind}-lock\",outcome=\"ordered\"");
        assert_eq!(
            page.get(&format!("seckill_purchases_total{{{ordered}}}")),
            1.0,
            "{kind}"
        );
    }
    for (series, value) in [
        // No sale was found, so the strategy is not known.
        (
            "seckill_purchases_total{strategy=\"unknown\",outcome=\"other\"}",
            1.0,
        ),
        (
            "seckill_purchase_duration_seconds_count{strategy=\"group-commit\"}",
            2.0,
        ),
        // Printed before the first such purchase; otherwise Prometheus would not see that one as an increase.
        (
            "seckill_purchases_total{strategy=\"stream\",outcome=\"outcome_unknown\"}",
            0.0,
        ),
        ("seckill_replies_total{status=\"500\"}", 0.0),
        ("seckill_ready", 1.0),
        ("seckill_group_batch_orders_sum", 1.0),
        ("seckill_database_connections_max", 4.0),
    ] {
        assert_eq!(page.get(series), value, "{series}");
    }
    for (series, least) in [
        ("seckill_session_lookups_total{answered_by=\"redis\"}", 2.0),
        ("seckill_session_lookups_total{answered_by=\"memory\"}", 1.0),
        ("seckill_sessions_in_memory", 2.0),
        ("seckill_http_connections_open", 1.0),
        ("seckill_database_connections{state=\"idle\"}", 1.0),
        ("seckill_database_connection_hold_seconds_count", 9.0),
        (
            "seckill_database_connection_hold_seconds_sum",
            f64::MIN_POSITIVE,
        ),
        ("process_resident_memory_bytes", 1e6),
    ] {
        assert!(page.get(series) >= least, "{series}: {}", page.get(series));
    }
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let age = now.as_secs_f64() - page.get("process_start_time_seconds");
    assert!((0.0..600.0).contains(&age), "{age} s");
    assert_queries_are_answered(&page);
}

#[tokio::test]
async fn a_held_lock_a_queue_and_a_busy_pool_are_measured() {
    let stack = Stack::start(1, &ARGS).await;
    let url = stack.url();
    let grouped = stack.publish(50, "group-commit").await;
    let locked = stack.publish(50, "reentrant-lock").await;
    let users = stack.users(6).await;
    let busy = "seckill_lock_acquires_total{kind=\"reentrant\",outcome=\"busy\"}";
    let before = Page::fetch(url).await.get(busy);
    let holders = [
        stack.lock_sale(grouped).await,
        stack.lock_sale(locked).await,
    ];
    let sales = [locked, grouped, grouped, grouped].into_iter().zip(&users);
    let stuck: Vec<_> = sales
        .map(|(sale, user)| stack.start_buying(user, sale))
        .collect();
    let queued = |page: &Page| {
        page.get("seckill_group_purchases_waiting") + page.get("seckill_group_purchases_in_flight")
    };
    eventually(
        "the lock, the queue and the pool are measured",
        async || {
            let page = Page::fetch(url).await;
            held(&page, "reentrant") == 1.0
                && queued(&page) == 3.0
                && page.get("seckill_group_batches_in_flight") == 1.0
                && page.get("seckill_database_connections{state=\"in_use\"}") >= 2.0
                && page.get("seckill_purchases_in_flight") >= 1.0
        },
    )
    .await;
    // The same user once more: the lock is busy.
    buy(url, &users[0], locked).await.refused(200, "LOCK_BUSY");
    assert_eq!(Page::fetch(url).await.get(busy) - before, 1.0);
    for holder in holders {
        holder.rollback().await.expect("a rollback");
    }
    for purchase in stuck {
        purchase.await.expect("an answer");
    }
    eventually("nothing is left", async || {
        let page = Page::fetch(url).await;
        held(&page, "reentrant") + queued(&page) + page.get("seckill_purchases_in_flight") == 0.0
    })
    .await;
}

/// The queries of the alert rules, and of the dashboard's panels.
fn queries() -> Vec<String> {
    let rules = read("deploy/prometheus/alerts.yml");
    let queries = rules
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("expr: "));
    let mut found: Vec<String> = queries.map(str::to_owned).collect();
    assert_eq!(
        found.len(),
        rules.matches("- alert:").count(),
        "one line a query"
    );
    let dashboard = read("deploy/grafana/dashboards/seckill.json");
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        let targets = panel["targets"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        assert!(
            panel["type"] == "row" || !targets.is_empty(),
            "{panel} shows nothing"
        );
        found.extend(
            targets
                .iter()
                .map(|target| target["expr"].as_str().unwrap().to_owned()),
        );
    }
    assert!(found.len() > 30, "{}", found.len());
    found
}

/// Asserts that what the dashboard and the rules query is printed: each series, and each label before a value, in `by` and in
/// `on`.
fn assert_queries_are_answered(page: &Page) {
    for query in queries() {
        let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let series: BTreeSet<&str> = words
            .filter(|word| word.starts_with("seckill_") || word.starts_with("process_"))
            .collect();
        assert!(
            !series.is_empty() || query.contains("up{"),
            "no series in {query}"
        );
        let mut known_labels: BTreeSet<&str> = ["instance", "job", "le"].into();
        for name in series {
            known_labels.extend(
                page.labels(name)
                    .unwrap_or_else(|| panic!("{name} in {query}")),
            );
        }
        let within = |open: &'static str, close: char| {
            query
                .split(open)
                .skip(1)
                .filter_map(move |opened| opened.split(close).next())
        };
        let matched = within("{", '}').flat_map(|pairs| pairs.split(','));
        let matched = matched.filter_map(|pair| pair.split(['=', '!']).next());
        let grouped = within(" by (", ')')
            .chain(within(" on (", ')'))
            .flat_map(|list| list.split(", "));
        for label in matched.chain(grouped) {
            assert!(
                known_labels.contains(label.trim()),
                "label {label} in {query}"
            );
        }
    }
}
