//! Rolling restart: every instance in turn is asked to end (SIGTERM), waited for, started again and waited for until it is
//! ready, while buyers buy through a balancer at half of what the instances can do. No purchase may fail, and every reply
//! is checked against every row.
//!
//! Everything is private: a MariaDB, a Redis, the balancer and the instances, in a temporary folder, gone at the end.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Result;
use clap::{Args, value_parser};
use tokio::time::{Instant, sleep};

use self::balancer::Balancer;
use crate::{
    burst::checks,
    chaos::{Layout, test_cluster::TestCluster},
    options::service,
    report::{Check, CheckResult, Checked, Table},
    spread::Spread,
};
use workload::{
    Environment,
    burst::{self, BurstOptions, Report},
    buyers::Buyer,
    latency,
    order_rows::OrderRows,
    sessions,
};

pub(crate) mod balancer;

/// An instance's settings besides addresses. Each has few connections, because many instances share a small server.
const SETTINGS: [(&str, &str); 4] = [
    ("DATABASE_CONNECTIONS", "16"),
    ("READ_CONNECTIONS", "4"),
    ("UNLIMITED_CLIENTS", "127.0.0.0/8"),
    ("RUST_LOG", "info"),
];
/// The sale's strategy.
const STRATEGY: &str = "reentrant-lock";
/// Connections of the closed loop that finds the capacity.
const CAPACITY_CONNECTIONS: usize = 64;
/// How long that loop lasts.
const CAPACITY: Duration = Duration::from_secs(4);
/// The load during the restarts, as a share of the capacity.
const SHARE: f64 = 0.5;
/// Purchases due at the same moment. Until the next ones are due most connections are idle, also those that a balancer keeps
/// open to the instances.
const WAVE: usize = 32;
/// Connections of the load at most.
const MOST_CONNECTIONS: usize = 256;
/// Time limit of one purchase.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Pause between two restarts, so that the balancer uses the restarted instance again. nginx skips an instance that refused
/// 20 connections for up to two seconds, and then until the first request that it sends there is answered.
const PAUSE: Duration = Duration::from_secs(3);
/// Failed purchases that the report names.
const EXAMPLES: usize = 10;

/// The table's columns after those of the latency.
const COLUMNS: [&str; 3] = [">load/s", ">drain ms", ">longest"];

/// Options of a rolling restart.
#[derive(Debug, Clone, Args)]
pub struct RollingOptions {
    /// Instances of the service
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u16).range(2..=16))]
    pub instances: u16,
    /// How often all of them are restarted, behind each balancer
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// The load in purchases per second [default: half of the orders per second that all instances reach]
    #[arg(long, value_name = "RATE")]
    pub rate: Option<f64>,
    /// Buyers, each of whom buys once, behind each balancer
    #[arg(long, default_value_t = 400_000, value_parser = value_parser!(u32).range(1..=10_000_000))]
    pub buyers: u32,
    /// The service's binary [default: `seckill` beside this one]
    #[arg(long = "seckill", value_name = "FILE", default_value_os_t = service(), hide_default_value = true)]
    pub program: PathBuf,
    #[arg(skip)]
    #[allow(missing_docs)] // Added to the instances' environment, for tests.
    pub environment: Vec<(&'static str, &'static str)>,
}

/// Starts the servers, and restarts the instances behind each balancer.
///
/// # Errors
/// Errors of the set-up, and an instance that does not end or does not come back.
pub async fn run(options: &RollingOptions) -> Result<Checked> {
    let settings = &[&SETTINGS[..], &options.environment[..]].concat();
    let program = &options.program;
    let count = options.instances.into();
    let cluster = TestCluster::start(program, Layout::default(), &[], count, settings).await?;
    cluster.run(false, 0).await?;
    cluster.keep_logs(run_on(&cluster, options).await)
}

async fn run_on(cluster: &TestCluster, options: &RollingOptions) -> Result<Checked> {
    let buyers: Arc<[Buyer]> = sessions::signed_in(&cluster.access, options.buyers as usize)
        .await?
        .into();
    let RollingOptions {
        instances, rounds, ..
    } = *options;
    let mut report = Checked {
        scenario: "rolling",
        heading: format!(
            "{instances} instances, all restarted {rounds} times in turn, {STRATEGY}."
        ),
        figures: vec![Table::new(
            &[&latency::COLUMNS[..], &COLUMNS[..]].concat(),
            Vec::new(),
        )],
        notes: String::new(),
        checks: Vec::new(),
    };
    for balancer in [Balancer::Nginx, Balancer::Tcp] {
        restart_behind(balancer, cluster, options, &buyers, &mut report).await?;
    }
    for instance in &cluster.instances {
        instance.lock().await.end().await?;
    }
    Ok(report)
}

/// Restarts the instances under load behind one balancer, and adds what was measured to the report.
async fn restart_behind(
    balancer: Balancer,
    cluster: &TestCluster,
    options: &RollingOptions,
    buyers: &Arc<[Buyer]>,
    report: &mut Checked,
) -> Result<()> {
    let TestCluster {
        access,
        order_rows,
        targets,
        folder,
        ..
    } = cluster;
    let (_running, target) = balancer.start(targets, folder.path()).await?;
    let sale = |connections: usize, spread: Duration| BurstOptions {
        buyers: options.buyers,
        stock: options.buyers,
        tries: 1,
        wave: WAVE,
        connections,
        spread,
        timeout: TIMEOUT,
        strategy: STRATEGY.to_owned(),
        ..BurstOptions::new(Environment::silent(access.clone(), vec![target.clone()]))
    };
    let mut sales = Vec::new();
    let rate = match options.rate {
        Some(rate) => rate,
        None => {
            let closed_loop = sale(CAPACITY_CONNECTIONS, Duration::ZERO);
            let (sold, ()) = sell(&closed_loop, order_rows, buyers, sleep(CAPACITY)).await?;
            let capacity = sold.orders_per_s;
            sales.push(sold);
            capacity * SHARE
        }
    };
    eprintln!("behind {balancer}: {rate:.0} purchases a second");
    // So few that each is used again before an instance that is ending closes idle connections.
    let connections = (rate as usize / 2).clamp(1, MOST_CONNECTIONS);
    let spread = Duration::from_secs_f64(f64::from(options.buyers) / rate.max(1e-3));
    let load = sale(connections, spread);
    let restarting = restart(cluster, options.rounds);
    let (sold, drains) = sell(&load, order_rows, buyers, restarting).await?;
    let drains = Spread::from_values(drains?.iter().map(|drain| drain.as_secs_f64() * 1e3));
    let (drain, longest) = drains.map_or((0.0, 0.0), |spread| (spread.median, spread.max));
    let mut cells = latency::row(&balancer.to_string(), &sold.latency);
    cells.extend([rate, drain, longest].map(|figure| format!("{figure:.0}")));
    report.figures[0].rows.push(cells);
    check_purchases(balancer, &sold, buyers.len(), report);
    sales.push(sold);
    for sold in &sales {
        let result = CheckResult::worst(&checks(sold));
        let broken = sold.verdict.violations();
        let holds = result == CheckResult::Holds;
        let what = label(balancer, "violations");
        let check = Check::new(what, format!("{broken:?}"), "[]", holds);
        report.checks.push(check.or(result));
    }
    Ok(())
}

/// Adds to the report which purchases failed, and whether there were buyers left for the whole time.
fn check_purchases(balancer: Balancer, sold: &Report, buyers: usize, report: &mut Checked) {
    let failed: Vec<_> = sold
        .records
        .iter()
        .filter(|record| !record.observed.reply.is_success())
        .collect();
    for record in failed.iter().take(EXAMPLES) {
        let reply = record.observed.reply.label();
        let second = record.due.as_secs();
        let note = format!("{reply}, due in second {second}\n");
        report.notes.push_str(&label(balancer, &note));
    }
    let what = label(balancer, "purchases that failed");
    report.checks.push(Check::none(what, failed.len() as u64));
    let made = sold.records.len();
    let what = label(balancer, "buyers, of --buyers");
    let enough = Check::new(what, made, buyers, made < buyers).needed();
    report.checks.push(enough);
}

fn label(balancer: Balancer, what: &str) -> String {
    format!("{balancer}: {what}")
}

/// Sells to each buyer once, until `during` ends; returns its value as well.
async fn sell<T>(
    options: &BurstOptions,
    order_rows: &OrderRows,
    buyers: &Arc<[Buyer]>,
    during: impl Future<Output = T>,
) -> Result<(Report, T)> {
    let voucher_id = burst::publish(options).await?;
    let selling = burst::run_on_sale(voucher_id, options, order_rows, buyers.clone());
    let (sold, value) = tokio::join!(selling, async {
        let value = during.await;
        options.live.stop.cancel();
        value
    });
    Ok((sold?, value))
}

/// Restarts every instance in turn, `rounds` times; returns how long each took to end.
async fn restart(cluster: &TestCluster, rounds: u32) -> Result<Vec<Duration>> {
    let begin = Instant::now();
    let mut drains = Vec::new();
    for round in 1..=rounds {
        for instance in &cluster.instances {
            sleep(PAUSE).await;
            let mut instance = instance.lock().await;
            drains.push(instance.end().await?);
            instance.restart().await?;
            instance.ready().await?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        eprintln!("round {round} of {rounds}, {seconds:.0} s");
    }
    sleep(PAUSE).await;
    Ok(drains)
}
