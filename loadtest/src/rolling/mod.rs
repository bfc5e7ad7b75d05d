//! Rolling restart: every instance in turn is asked to end (SIGTERM), waited for, started again and waited for until it is
//! ready, while buyers buy through a balancer at half of what the instances can do. No purchase may fail, and every reply
//! is checked against every row.
//!
//! Everything is private: a MariaDB, a Redis, the balancer and the instances, in a temporary folder, gone at the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    slice,
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use clap::{Args, value_parser};
use testkit::{
    database_server::{DatabaseServer, Settings},
    process::TemporaryFolder,
    redis_server::{RedisServer, Role},
};
use tokio::time::{Instant, sleep};

use self::balancer::Balancer;
use crate::{
    chaos::{
        instance::Instance,
        test_cluster::{access, prepare, save_logs},
    },
    options::service,
    report::{Check, CheckResult, Checked, Table},
};
use workload::{
    Access, Target, burst,
    buyers::Buyer,
    driver::Connections,
    generator::{Attempt, Purchases, Record},
    latency::Latency,
    live::Live,
    order_rows::OrderRows,
    pending,
    pending::PendingSale,
    publish, sessions,
};

pub(crate) mod balancer;

/// Connections of the closed loop that finds the capacity.
const CAPACITY_CONNECTIONS: usize = 64;
/// How long that loop lasts; its first second, in which connections and caches warm up, does not count.
const CAPACITY: Duration = Duration::from_secs(4);
const WARM_UP: Duration = Duration::from_secs(1);
/// The load during the restarts, as a share of the capacity.
const SHARE: f64 = 0.5;
/// Purchases due at the same moment: after them most connections idle until the next, and so does what a balancer keeps open
/// to the instances.
const WAVE: usize = 32;
/// Time limit of one purchase.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Between a restart and the next, so that a balancer asks the instance again. nginx skips one that refused 20 connections
/// for up to two seconds, and then until the first request that it sends there is answered.
const PAUSE: Duration = Duration::from_secs(3);
/// How long the tables must not change before the check, and the longest wait for what is in flight.
const QUIET: Duration = Duration::from_millis(500);
const END_LIMIT: Duration = Duration::from_secs(30);

const COLUMNS: [&str; 9] = [
    "behind",
    ">capacity/s",
    ">load/s",
    ">drain ms",
    ">longest",
    ">purchases",
    ">p50 ms",
    ">p99 ms",
    ">max ms",
];

/// Options of a rolling restart.
#[derive(Debug, Clone, Args)]
pub struct RollingOptions {
    /// Instances of the service
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u16).range(2..=16))]
    pub instances: u16,
    /// How often all of them are restarted, behind each balancer
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// What is in front of them: nginx, or a plain TCP balancer that asks for readiness
    /// (HAProxy, without retries)
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["nginx", "tcp"],
          value_name = "NAMES")]
    pub balancers: Vec<Balancer>,
    /// The load in purchases per second [default: half of the orders per second that all instances reach]
    #[arg(long, value_name = "RATE")]
    pub rate: Option<f64>,
    /// Clients' connections [default: one for each purchase a second, at most 256]
    #[arg(long, value_parser = value_parser!(u16).range(1..=4000))]
    pub connections: Option<u16>,
    /// Buyers, each of whom buys once, behind each balancer
    #[arg(long, default_value_t = 400_000, value_parser = value_parser!(u32).range(1..=10_000_000))]
    pub buyers: u32,
    /// The sale's strategy
    #[arg(long, default_value = "reentrant-lock", value_name = "NAME")]
    pub strategy: String,
    /// The service's binary [default: `seckill` beside this one]
    #[arg(long = "seckill", value_name = "FILE", default_value_os_t = service(), hide_default_value = true)]
    pub program: PathBuf,
    /// The folder of the balancers' configurations, nginx.conf and tcp-balancer.cfg
    #[arg(long, value_name = "FOLDER", default_value = "deploy")]
    pub deploy: PathBuf,
    #[arg(skip)]
    #[allow(missing_docs)] // Added to the instances' environment, for tests.
    pub environment: Vec<(&'static str, String)>,
}

/// Starts the servers, and restarts the instances behind each balancer; `said` is told what goes on.
///
/// # Errors
/// Those of the set-up, also an instance that does not end or does not come back.
pub async fn run(options: &RollingOptions, said: impl Fn(&str)) -> Result<Checked> {
    let folder = Arc::new(TemporaryFolder::new()?);
    let database = DatabaseServer::start_in(folder.clone(), Settings::default()).await?;
    let redis = RedisServer::start_in(folder.clone(), Role::Durable, Vec::new()).await?;
    let access = access(database.url(), redis.url());
    prepare(&options.program, &access)?;
    run_on(&access, folder, options, said).await
}

/// As [`run`], on a database and a Redis that exist, with all tables.
pub async fn run_on(
    access: &Access,
    folder: Arc<TemporaryFolder>,
    options: &RollingOptions,
    said: impl Fn(&str),
) -> Result<Checked> {
    let order_rows = OrderRows::open(&access.database_url).await?;
    let mut instances = start(access, &folder, options).await?;
    let targets: Vec<Target> = instances.iter().map(|instance| instance.target.clone()).collect();
    let RollingOptions { instances: count, rounds, strategy, .. } = options;
    let mut report = Checked {
        scenario: "rolling",
        heading: format!("{count} instances, all restarted {rounds} times in turn, {strategy}."),
        figures: vec![Table::new(&COLUMNS, Vec::new())],
        notes: String::new(),
        checks: Vec::new(),
    };
    for &balancer in &options.balancers {
        let (_running, target) = balancer.start(&targets, &options.deploy, folder.path()).await?;
        let buyers: Arc<[Buyer]> =
            sessions::signed_in(access, options.buyers as usize).await?.into();
        let voucher_id = publish::flash_sale(access, &target, strategy, options.buyers).await?;
        let (mut records, mut used, mut capacity) = (Vec::new(), 0, None);
        let rate = match options.rate {
            Some(rate) => rate,
            None => {
                let sale = (voucher_id, buyers.clone());
                records = buy(&target, sale, CAPACITY_CONNECTIONS, None, sleep(CAPACITY)).await?.1;
                // Each connection may have been given one more, and others have passed it.
                used = records.len() + CAPACITY_CONNECTIONS;
                *capacity.insert(orders_per_s(&records)) * SHARE
            }
        };
        said(&format!("behind {balancer}: {rate:.0} purchases a second"));
        // So that none is idle for longer than an instance that ends waits for it.
        let connections = options.connections.unwrap_or((rate as u16).clamp(1, 256));
        let restarting = restart(&mut instances, *rounds, &said);
        let left: Arc<[Buyer]> = buyers.get(used..).unwrap_or_default().into();
        let sale = (voucher_id, left.clone());
        let (drains, rolled) =
            buy(&target, sale, connections.into(), Some(rate), restarting).await?;
        let (drains, before) = (drains?, records.len());
        records.extend(rolled);
        let (targets, limit) = (slice::from_ref(&target), END_LIMIT);
        let sale = PendingSale { access, targets, buyers: &buyers, voucher_id, limit };
        pending::wait(sale, &order_rows, &mut records).await?;
        let (snapshot, unchanged) =
            order_rows.wait_until_unchanged(voucher_id, QUIET, END_LIMIT).await?;
        let (verdict, rolled) = (burst::judge(&records, &snapshot), &records[before..]);
        let (restarts, rates) = (instances.len() * *rounds as usize, (capacity, rate));
        add(&mut report, balancer, rates, (&drains, restarts), rolled);
        let what = |what: &str| format!("{balancer}: {what}");
        let yes = |name: &str, holds: bool| {
            Check::new(what(name), if holds { "yes" } else { "no" }, "yes", holds).needed()
        };
        report.checks.push(yes("buyers for all (else more --buyers)", rolled.len() < left.len()));
        report.checks.push(yes("tables stand still", unchanged));
        let violations = verdict.violations().into_iter();
        let violations = violations.map(|(name, count)| Check::new(what(name), count, 0, false));
        report.checks.extend(violations);
    }
    for instance in &mut instances {
        instance.end().await?;
    }
    if report.result() == CheckResult::Violation {
        report.note_logs(&save_logs(folder.path())?);
    }
    Ok(report)
}

/// Adds what was seen behind a balancer: orders per second in a closed loop, unless the rate was given, and in the load; how
/// long each of so many instances took to end, the longest last; and the purchases made meanwhile.
fn add(
    report: &mut Checked,
    balancer: Balancer,
    (capacity, rate): (Option<f64>, f64),
    (drains, restarts): (&[Duration], usize),
    rolled: &[Record],
) {
    let drain = |at: usize| drains.get(at).map_or(0, Duration::as_millis).to_string();
    let latency = Latency::of(rolled.iter().map(Record::latency));
    let mut cells = vec![
        balancer.to_string(),
        capacity.map_or("–".to_owned(), |rate| format!("{rate:.0}")),
        format!("{rate:.0}"),
        drain(drains.len() / 2),
        drain(drains.len().saturating_sub(1)),
        rolled.len().to_string(),
    ];
    cells.extend([latency.p50_ms, latency.p99_ms, latency.max_ms].map(|ms| format!("{ms:.1}")));
    report.figures[0].rows.push(cells);

    // By the reply that was no order, the seconds in which such purchases were due.
    let mut failed: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for record in rolled.iter().filter(|record| !record.observed.reply.is_success()) {
        failed.entry(record.observed.reply.label()).or_default().push(record.due.as_secs());
    }
    for (reply, due) in &failed {
        let (count, seconds) = (due.len(), due.iter().collect::<BTreeSet<_>>());
        let line = format!("{balancer}: {reply} {count}, due in seconds {seconds:?}\n");
        report.notes.push_str(&line);
    }

    let what = |what: &str| format!("{balancer}: {what}");
    let (failed, drained) = (failed.values().map(Vec::len).sum::<usize>(), drains.len());
    report.checks.extend([
        Check::none(what("purchases that failed"), failed as u64),
        Check::new(what("restarts"), drained, restarts, drained == restarts).needed(),
        Check::new(what("purchases"), rolled.len(), "at least 1", !rolled.is_empty()).needed(),
    ]);
}

/// Has each buyer buy once, on `connections`, until `during` ends: `rate` times a second, in waves, or each as soon as one
/// has its last answer. Returns the value of `during` and every attempt, timed from the begin.
async fn buy<T>(
    target: &Target,
    (voucher_id, buyers): (u64, Arc<[Buyer]>),
    connections: usize,
    rate: Option<f64>,
    during: impl Future<Output = T>,
) -> Result<(T, Vec<Record>)> {
    let mut connections = Connections::new(slice::from_ref(target), connections, TIMEOUT)?;
    let due = |buyer| {
        let wave = buyer / WAVE * WAVE;
        rate.map(|rate| Duration::from_secs_f64(wave as f64 / rate.max(1e-3)))
    };
    let attempts = (0..buyers.len())
        .map(|buyer| Attempt { buyer, attempt: 0, due: due(buyer), then: () })
        .collect();
    let begin = std::time::Instant::now();
    let purchases = Purchases { voucher_id, buyers, attempts, begin, traced: false };
    let live = Arc::new(Live::default());
    let until = async {
        let value = during.await;
        live.stop.cancel();
        value
    };
    let (made, value) = tokio::join!(purchases.make(&mut connections, &live, |_, _| ()), until);
    Ok((value, made?))
}

/// Starts the instances.
async fn start(
    access: &Access,
    folder: &TemporaryFolder,
    options: &RollingOptions,
) -> Result<Vec<Instance>> {
    let mut instances = Vec::new();
    for number in 1..=options.instances {
        let mut instance = Instance::new(&options.program, number.into(), folder.path())?;
        instance.environment = vec![
            ("DATABASE_URL", access.database_url.clone()),
            ("REDIS_URL", access.redis_url.clone()),
            ("ADMIN_TOKEN", access.admin_token.clone()),
            // Many instances share a small server.
            ("DATABASE_CONNECTIONS", "16".to_owned()),
            ("READ_CONNECTIONS", "4".to_owned()),
            ("UNLIMITED_CLIENTS", "127.0.0.0/8".to_owned()),
            ("RUST_LOG", "info".to_owned()),
        ];
        instance.environment.extend(options.environment.iter().cloned());
        instance.restart().await?;
        instance.ready().await?;
        instances.push(instance);
    }
    Ok(instances)
}

/// Orders per second of a closed loop.
fn orders_per_s(records: &[Record]) -> f64 {
    let counted = |record: &&Record| {
        let end = record.answered;
        record.observed.reply.is_success() && end >= WARM_UP && end <= CAPACITY
    };
    let orders = records.iter().filter(counted).count() as f64;
    orders / CAPACITY.saturating_sub(WARM_UP).as_secs_f64()
}

/// Restarts every instance in turn, `rounds` times; returns how long each took to end, the longest last.
async fn restart(
    instances: &mut [Instance],
    rounds: u32,
    said: &impl Fn(&str),
) -> Result<Vec<Duration>> {
    let begin = Instant::now();
    let mut drains = Vec::new();
    for round in 1..=rounds {
        for instance in &mut *instances {
            sleep(PAUSE).await;
            let asked = Instant::now();
            instance.end().await?;
            drains.push(asked.elapsed());
            instance.restart().await?;
            instance.ready().await?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        said(&format!("round {round} of {rounds}, {seconds:.0} s"));
    }
    sleep(PAUSE).await;
    drains.sort_unstable();
    Ok(drains)
}
