//! `GET /metrics`: counters, gauges and histograms as Prometheus text. Names are stable and carry their units; `page.rs`
//! puts `seckill_` before all but those of the process. The HELP texts are the reference: what is counted, and what a value
//! that stands out means. All but readiness is read from this process's memory. Readiness is probed, so that it is true
//! even if nobody else asks for it. If Redis or the database does not answer, a scrape takes a second longer.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use tokio_util::task::TaskTracker;

use crate::connection::mysql::Database;
use crate::health::{Health, Readiness};
use crate::http::admission::Guards;
use crate::http::middleware::ReplyCounts;
use crate::order::purchase::PurchaseService;
use crate::order::strategy::group_commit::queue::QUEUE;
use crate::session::MAX_IN_MEMORY;
use crate::shop::Shops;
use crate::user::code::Codes;
use cache::{Cache, CacheConfig};
use lock;

mod page;

use page::Page;

/// The sources of the metrics.
#[derive(Clone)]
#[allow(missing_docs)] // the parts under their names
pub struct Metrics {
    pub health: Health,
    pub replies: Arc<ReplyCounts>,
    pub shops: Shops,
    pub cache: Cache,
    pub purchases: PurchaseService,
    pub guards: Arc<Guards>,
    pub codes: Codes,
    pub database: Database,
    /// The connections of reads.
    pub reads: Database,
    /// The connections on which orders are paid and cancelled.
    pub changes: Database,
    /// Open connections of clients, a task each.
    pub connections: TaskTracker,
    /// When the process began to serve.
    pub started: SystemTime,
}

/// Counters of a cache that form one family, `cache_hits_total`, each with its layer.
const LAYERS: [(&str, &str); 4] = [
    ("local_hits", "memory"),
    ("redis_hits", "redis"),
    ("null_hits", "null"),
    ("filtered", "filter"),
];

/// The metrics, as Prometheus text.
#[utoipa::path(
    get, path = "/metrics", tag = "service",
    responses((
        status = 200, body = String, content_type = "text/plain", description = "Counters, gauges, histograms."
    )),
)]
pub async fn get(State(metrics): State<Metrics>) -> impl IntoResponse {
    let readiness = metrics.health.readiness().await;
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4")],
        metrics.text(&readiness),
    )
}

impl Metrics {
    fn text(&self, readiness: &Readiness) -> String {
        let mut page = Page::default();
        self.service(&mut page, readiness);
        self.purchases(&mut page);
        self.locks(&mut page);
        self.groups(&mut page);
        self.stream(&mut page);
        self.caches(&mut page);
        self.connections(&mut page);
        self.process(&mut page);
        page.text()
    }

    /// Readiness, and all replies.
    fn service(&self, page: &mut Page, readiness: &Readiness) {
        let help = "1 while this instance can sell, as /health/ready says. 0: a server is not \
                    available, or the instance is draining.";
        page.gauge("ready", help)
            .sample(&[], u8::from(readiness.success));
        let help = "1 while this server answers within a second; the database also takes writes. \
                    0 for longer than a failover: nothing is sold.";
        page.gauge("server_available", help)
            .sample(&[("server", "database")], u8::from(readiness.database))
            .sample(&[("server", "redis")], u8::from(readiness.redis));
        let help = "Replies to requests of all routes, by status. 500: a bug, whose request id is \
                    in the log. 503: overload, or a server that is not available.";
        let mut family = page.counter("replies_total", help);
        for (status, count) in self.replies.by_status() {
            family.sample(&[("status", status)], count);
        }
    }

    /// Purchases by strategy and outcome, their durations, and refusals, also of other requests.
    fn purchases(&self, page: &mut Page) {
        let strategies = self.purchases.stats().by_strategy();
        let help = "Purchases answered, by strategy and outcome. internal: a bug, whose request \
                    id is in the log. outcome_unknown: look the order up. unavailable: a backing \
                    server does not answer. Strategy unknown: the sale was not found or not read.";
        let mut family = page.counter("purchases_total", help);
        for (strategy, counters) in &strategies {
            for (outcome, count) in counters.outcomes() {
                let outcome = outcome.to_lowercase();
                family.sample(&[("strategy", *strategy), ("outcome", &outcome)], count);
            }
        }
        let help = "Time from the admission of a purchase to its reply. Rises with \
                    seckill_database_connections in use (the database) or with seckill_lock_wait_seconds (Redis).";
        let mut family = page.histogram("purchase_duration_seconds", help);
        for (strategy, counters) in &strategies {
            let took = counters.took.counted();
            if took.count > 0 {
                family.counted(&[("strategy", *strategy)], &took);
            }
        }
        let help = "Purchases admitted and not answered yet. At --max-purchases further ones are \
                    refused.";
        page.gauge("purchases_in_flight", help)
            .sample(&[], self.guards.purchases.in_flight());
        for (name, admission, help) in [
            (
                "purchases",
                &self.guards.purchases,
                "Purchases refused before they began, by reason. overloaded: add instances, or \
                 use a strategy that batches. user, address: a client is over its rate.",
            ),
            (
                "signed_in",
                &self.guards.signed_in,
                "Other requests of signed-in users refused before they began, by reason. overloaded: the \
                 database is slow, or --read-connections too few. user, address: a client is over its rate.",
            ),
        ] {
            let mut family = page.counter(&format!("{name}_refused_total"), help);
            for (reason, count) in admission.refused() {
                family.sample(&[("reason", reason)], count);
            }
        }
    }

    /// Locks by kind; a kind that was never used has zeros.
    fn locks(&self, page: &mut Page) {
        let context = self.purchases.context();
        let mut kinds = context.locks.stats();
        kinds.push(context.process_locks.stats());

        type Outcomes = fn(&lock::LockStats) -> Vec<(&'static str, u64)>;
        let mut counter = |name, help, label, outcomes: Outcomes| {
            let mut family = page.counter(name, help);
            for stats in &kinds {
                for (outcome, count) in outcomes(stats) {
                    family.sample(&[("kind", stats.kind), (label, outcome)], count);
                }
            }
        };
        let help = "Attempts to acquire a lock, by outcome. busy: a buyer with two attempts at \
                    once. failed: Redis. timed_out: a holder takes too long.";
        counter("lock_acquires_total", help, "outcome", |stats| {
            vec![
                ("acquired", stats.acquired),
                ("busy", stats.busy),
                ("timed_out", stats.timed_out),
                ("failed", stats.failed),
            ]
        });
        let help = "Renewals of leases, by outcome; a failed one is retried. Several failed in a \
                    row: Redis is slow or away, and a loss is near.";
        counter("lock_renewals_total", help, "outcome", |stats| {
            vec![("ok", stats.renewed), ("failed", stats.renewals_failed)]
        });
        let help = "Locks lost while held, by reason. expired: the key was deleted, or the \
                    process paused beyond its lease. taken: and another owner has it. \
                    unreachable: Redis was away beyond the lease. Orders stay correct: the \
                    database guards them.";
        counter("lock_losses_total", help, "reason", |stats| {
            vec![
                ("expired", stats.lost.expired),
                ("taken", stats.lost.taken),
                ("unreachable", stats.lost.unreachable),
            ]
        });

        type Times = fn(&lock::LockStats) -> &lock::DurationHistogram;
        let mut histogram = |name, help, times: Times| {
            let mut family = page.histogram(name, help);
            for stats in &kinds {
                family.counted(&[("kind", stats.kind)], times(stats));
            }
        };
        let help = "Time until a lock was acquired; without waiting, the round trip to Redis.";
        histogram("lock_wait_seconds", help, |stats| &stats.waited);
        let help = "Time from a lock's first acquisition to its last release or its loss: mostly \
                    work in the database.";
        histogram("lock_hold_seconds", help, |stats| &stats.held);

        type Number = fn(&lock::LockStats) -> u64;
        let mut gauge = |name, help, number: Number| {
            let mut family = page.gauge(name, help);
            for stats in &kinds {
                family.sample(&[("kind", stats.kind)], number(stats));
            }
        };
        let help = "Locks held by this process. Never falling: a guard is not dropped.";
        gauge("locks_held", help, |stats| stats.held_now);
        let help = "Calls that wait for a lock. Purchases only try Redis locks.";
        gauge("locks_waiting", help, |stats| stats.waiting_now);
        let help = "Channels of lock releases that this process is subscribed to.";
        page.gauge("lock_channels_subscribed", help)
            .sample(&[], context.locks.usage().channels);
    }

    /// Group commit: the queues, and a histogram of batch sizes.
    fn groups(&self, page: &mut Page) {
        let group_commit = &self.purchases.context().group_commit;
        let stats = group_commit.stats();
        let depth = group_commit.depth();
        let help = format!(
            "Purchases in the queues, not in a batch yet. At {QUEUE} further ones are refused: the commit is the limit."
        );
        page.gauge("group_purchases_waiting", &help)
            .sample(&[], depth.waiting);
        page.gauge(
            "group_purchases_in_flight",
            "Purchases in batches that are being committed.",
        )
        .sample(&[], depth.in_flight);
        let help = "Batches that are being committed. Above 0 and none ends: the database hangs.";
        page.gauge("group_batches_in_flight", help)
            .sample(&[], depth.batches);
        let help = "Batches that were split because one order could not be inserted; the log \
                    names its sale.";
        page.counter("group_splits_total", help)
            .sample(&[], stats.splits.load(Relaxed));
        let help = "Orders committed by one transaction. Small under load: something else than \
                    the commit is the limit.";
        page.histogram("group_batch_orders", help)
            .counted(&[], &stats.sizes.counted());
    }

    fn stream(&self, page: &mut Page) {
        let stats = self.purchases.context().stream.stats();
        for (name, help, value) in stats.counters() {
            page.counter(&format!("stream_{name}_total"), help)
                .sample(&[], value);
        }
        for (name, help, value) in stats.gauges() {
            page.gauge(&format!("stream_{name}"), help)
                .sample(&[], value);
        }
    }

    /// Reads by cache policy, and the state of the cache.
    fn caches(&self, page: &mut Page) {
        let policies = self
            .shops
            .stats()
            .map(|(cache, stats)| (cache, stats.named()));
        let layer_of = |name| LAYERS.iter().find(|(counter, _)| *counter == name);
        let help = "Reads answered without a load, by layer: memory, redis, null (a cached 'does \
                    not exist') or filter (Bloom). Many of the last two: somebody scans ids.";
        let mut family = page.counter("cache_hits_total", help);
        for (cache, counters) in &policies {
            for (name, _, value) in counters {
                if let Some((_, layer)) = layer_of(*name) {
                    family.sample(&[("cache", cache), ("layer", layer)], value);
                }
            }
        }
        for (at, (name, help, _)) in policies[0].1.iter().enumerate() {
            if layer_of(name).is_some() {
                continue;
            }
            let name = format!("cache_{name}_total");
            let mut family = page.counter(&name, help);
            for (cache, counters) in &policies {
                family.sample(&[("cache", cache)], counters[at].2);
            }
        }
        let stats = self.cache.stats();
        for (name, help, value) in stats.counts.named() {
            page.counter(&format!("cache_{name}_total"), help)
                .sample(&[], value);
        }
        let help = "Keys whose invalidation Redis has not confirmed yet. Other nodes may serve \
                    the old value until Redis is back or it expires.";
        page.gauge("cache_pending_invalidations", help)
            .sample(&[], stats.pending_invalidations);
        let help = "1 while the circuit breaker is open: Redis failed and is not used. Reads go \
                    on from the database, purchases with locks do not.";
        page.gauge("cache_breaker_open", help)
            .sample(&[], u8::from(stats.breaker_open));
        let help = "1 while memory is used: the subscription to invalidations is up. 0 for long: \
                    subscriptions fail.";
        page.gauge("cache_local_enabled", help)
            .sample(&[], u8::from(stats.local_enabled));
        let capacity = CacheConfig::default().local_capacity;
        let help = format!("Values in memory, at most {capacity}.");
        page.gauge("cache_local_entries", &help)
            .sample(&[], stats.local_entries);
        let help = "Loads running. At the bound further ones are refused: the database is slow.";
        page.gauge("cache_loads_running", help)
            .sample(&[], stats.loads_running);
    }

    /// Connections to the database, connections of clients, and sessions.
    fn connections(&self, page: &mut Page) {
        for (pool, name, connections, max_help) in [
            (
                &self.database.pool,
                "database_connections",
                "Open connections to the database, by state. All in_use for long: \
                 --database-connections, or slow statements.",
                "Upper bound of connections to the database; that of all nodes together must \
                 be below its max_connections.",
            ),
            (
                &self.reads.pool,
                "database_read_connections",
                "Open connections of reads to the database, by state. All in_use for long: \
                 slow or very many reads. Purchases do not wait for them.",
                "Upper bound of connections of reads to the database: --read-connections.",
            ),
            (
                &self.changes.pool,
                "database_change_connections",
                "Open connections on which orders are paid and cancelled, by state. All in_use for \
                 long: the row of a sale, or of orders, is locked. Purchases do not wait for them.",
                "Upper bound of connections on which orders are paid and cancelled.",
            ),
        ] {
            let [idle, in_use, max] = pool.usage();
            page.gauge(name, connections)
                .sample(&[("state", "idle")], idle)
                .sample(&[("state", "in_use")], in_use);
            page.gauge(&format!("{name}_max"), max_help)
                .sample(&[], max);
        }
        let help = "Time a purchase, or another write, held a connection to the database. \
                    database_connections_max divided by it is the most there can be a second.";
        page.histogram("database_connection_hold_seconds", help)
            .counted(&[], &self.database.pool.held().counted());
        let sessions = self.guards.sessions.stats();
        let help = "Session lookups, by the place that answered. Mostly redis for long: users \
                    with few requests each, or seckill_sessions_tracked is 0.";
        page.counter("session_lookups_total", help)
            .sample(&[("answered_by", "memory")], sessions.from_memory)
            .sample(&[("answered_by", "redis")], sessions.from_redis);
        let help = format!("Sessions in this process's memory, at most {MAX_IN_MEMORY}.");
        page.gauge("sessions_in_memory", &help)
            .sample(&[], sessions.in_memory);
        let help = "1 while Redis reports sessions that end, so that those in memory need no \
                    lookup. 0 for more than a minute: the log says why; always 0 on a cluster. \
                    Sessions are then looked up every 0.8 s.";
        page.gauge("sessions_tracked", help)
            .sample(&[], u8::from(sessions.tracked));
        let help = "Sign-in codes, by what the sender said. not_sent, refused, unknown: buyers \
                    are told 503; the log says why.";
        let mut family = page.counter("sign_in_codes_total", help);
        for (outcome, count) in self.codes.outcomes() {
            family.sample(&[("outcome", outcome)], count);
        }
        let help = "Open connections of clients. Far above the proxy's keep-alive: clients bypass \
                    it.";
        page.gauge("http_connections_open", help)
            .sample(&[], self.connections.len());
    }

    /// The process, under the names that Prometheus' client libraries use.
    fn process(&self, page: &mut Page) {
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        page.gauge(
            "process_start_time_seconds",
            "When the process began to serve, since 1970.",
        )
        .sample(&[], started.as_secs_f64());
        let help = "Resident memory of the process; Linux only. Rising without end is a bug.";
        let mut family = page.gauge("process_resident_memory_bytes", help);
        if let Some(bytes) = resident_memory() {
            family.sample(&[], bytes);
        }
        let help = "Always 1; the version is a label. Two at once: a deployment is under way.";
        page.gauge("build_info", help)
            .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    }
}

/// Resident memory in bytes; `None` where the system is not Linux.
fn resident_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kilobytes * 1024)
}
