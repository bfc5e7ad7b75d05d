//! Rolling restart: every instance in turn is asked to end (SIGTERM), waited for, started again and waited for until it is
//! ready, while buyers buy through a balancer at half of what the instances can do. No purchase may fail, and every reply
//! is checked against every row.
//!
//! Everything is private: a MariaDB, a Redis, the balancer and the instances, in a temporary folder, gone at the end.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, value_parser};
use testkit::{
    database_server::{DatabaseServer, Settings},
    process::TemporaryFolder,
    redis_server::{RedisServer, Role},
};
use tokio::time::{Instant, sleep};

use self::{
    balancer::{Balancer, socket},
    report::Behind,
};
use crate::{
    chaos::{
        instance::{Instance, server},
        test_cluster::{access, prepare, save_logs},
    },
    options::service,
    report::{CheckResult, Checked},
};
use workload::{
    Access, Error, Target, burst, generator::Record, order_rows::OrderRows, pending,
    pending::PendingSale, publish, sessions,
};

pub mod balancer;
pub mod load;
pub mod report;

/// Connections of the closed loop that finds the capacity.
const CAPACITY_CONNECTIONS: usize = 64;
/// How long that loop lasts; its first second, in which connections and caches warm up, does not count.
const CAPACITY: Duration = Duration::from_secs(4);
const WARM_UP: Duration = Duration::from_secs(1);
/// The load during the restarts, as a share of the capacity.
const SHARE: f64 = 0.5;
/// Between a restart and the next, so that a balancer asks the instance again. nginx skips one that refused 20 connections
/// for up to two seconds, and then until the first request that it sends there is answered.
const PAUSE: Duration = Duration::from_secs(3);
/// How long the tables must not change before the check, and the longest wait for what is in flight.
const QUIET: Duration = Duration::from_millis(500);
const END_LIMIT: Duration = Duration::from_secs(30);

/// Options of a rolling restart.
#[derive(Debug, Clone, Args)]
pub struct RollingOptions {
    /// Instances of the service
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u16).range(2..=16))]
    pub instances: u16,
    /// How often all of them are restarted, behind each balancer
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// What is in front of them: nginx, over TCP or Unix sockets, or a plain TCP balancer that asks for readiness
    /// (HAProxy, without retries)
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["nginx", "nginx-unix", "tcp"],
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
/// An [`Error`] of the set-up, also an instance that does not end or does not come back.
pub async fn run(options: &RollingOptions, said: impl Fn(&str)) -> Result<Checked, Error> {
    let folder = Arc::new(TemporaryFolder::new().map_err(server("temporary folder"))?);
    let database = DatabaseServer::start_in(folder.clone(), Settings::default()).await;
    let database = database.map_err(server("MariaDB"))?;
    let redis = RedisServer::start_in(folder.clone(), Role::Durable, Vec::new()).await;
    let redis = redis.map_err(server("Redis"))?;
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
) -> Result<Checked, Error> {
    let order_rows = OrderRows::open(&access.database_url).await?;
    let mut instances = start(access, &folder, options).await?;
    let targets: Vec<Target> = instances.iter().map(|instance| instance.target.clone()).collect();
    let RollingOptions { instances: count, rounds, strategy, .. } = options;
    let restarts = usize::from(*count) * *rounds as usize;
    let heading = format!("{count} instances, all restarted {rounds} times in turn, {strategy}.");
    let mut report = report::empty(heading);
    for &balancer in &options.balancers {
        let running = balancer.start(&targets, &options.deploy, folder.path()).await?;
        let target = std::slice::from_ref(&running.target);
        let buyers = sessions::signed_in(access, options.buyers as usize).await?;
        let buyers: Arc<[_]> = buyers.into();
        let voucher_id =
            publish::flash_sale(access, &target[0], &options.strategy, options.buyers).await?;
        let (mut records, mut used) = (Vec::new(), 0);
        let (capacity, rate) = match options.rate {
            Some(rate) => (None, rate),
            None => {
                let sale = (voucher_id, buyers.clone());
                let (connections, during) = (CAPACITY_CONNECTIONS, sleep(CAPACITY));
                records = load::run(&running.target, sale, connections, None, during).await?.1;
                // Each connection may have been given one more, and others have passed it.
                used = records.len() + connections;
                let capacity = capacity(&records);
                (Some(capacity), capacity * SHARE)
            }
        };
        said(&format!("behind {balancer}: {rate:.0} purchases a second"));
        // So that none is idle for longer than an instance that ends waits for it.
        let connections = options.connections.unwrap_or((rate as u16).clamp(1, 256));
        let restarting = restart(&mut instances, options.rounds, &said);
        let left: Arc<[_]> = buyers.get(used..).unwrap_or_default().into();
        let sale = (voucher_id, left.clone());
        let (drains, rolled) =
            load::run(&running.target, sale, connections.into(), Some(rate), restarting).await?;
        let drains = drains?;
        let buyers_left = rolled.len() < left.len();
        let before = records.len();
        records.extend(rolled);
        let limit = END_LIMIT;
        let sale = PendingSale { access, targets: target, buyers: &buyers, voucher_id, limit };
        pending::wait(sale, &order_rows, &mut records).await?;
        let (snapshot, unchanged) =
            order_rows.wait_until_unchanged(voucher_id, QUIET, END_LIMIT).await?;
        let (verdict, rolled) = (burst::judge(&records, &snapshot), &records[before..]);
        Behind { balancer, capacity, rate, drains, rolled, verdict, unchanged, buyers_left }
            .add_to(&mut report, restarts);
    }
    for instance in &mut instances {
        instance.end().await?;
    }
    if report.result() == CheckResult::Violation {
        report.note_logs(&save_logs(folder.path())?);
    }
    Ok(report)
}

/// Starts the instances; each listens on a Unix socket as well.
async fn start(
    access: &Access,
    folder: &TemporaryFolder,
    options: &RollingOptions,
) -> Result<Vec<Instance>, Error> {
    let mut instances = Vec::new();
    for number in 1..=options.instances {
        let mut instance = Instance::new(&options.program, number.into(), folder.path())?;
        let socket = socket(folder.path(), &instance.target);
        instance.environment = vec![
            ("BIND_UNIX", socket.display().to_string()),
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
fn capacity(records: &[Record]) -> f64 {
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
) -> Result<Vec<Duration>, Error> {
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
