//! Rolling restart: every instance in turn is asked to end (SIGTERM), waited for, started again and waited for until it is
//! ready, while buyers buy through a balancer at half of what the instances can do. No purchase may fail, and every reply
//! is checked against every row.
//!
//! Everything is private: a MariaDB, a Redis, the balancer and the instances, in a temporary folder, gone at the end.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, value_parser};
use testkit::{
    database_server::DatabaseServer,
    process::{TemporaryFolder, free_port},
    redis_server::{RedisServer, Role},
};
use tokio::time::{Instant, sleep};

use self::{
    balancer::{Balancer, socket},
    load::Load,
    report::Behind,
};
use crate::{
    chaos::{
        instance::Instance,
        test_cluster::{copy_logs, prepare, server},
    },
    options::service,
    report::{CheckResult, Checked},
};
use workload::{
    Access, Error, Target, burst, generator::Record, keys::KeyNames, latency::Latency,
    order_rows::OrderRows, pending, pending::PendingSale, publish, sessions,
};

pub mod balancer;
pub mod load;
pub mod report;

/// Connections of the closed loop that finds the capacity.
const CAPACITY_CONNECTIONS: usize = 64;
/// How long that loop lasts; its first second, in which connections and caches warm up, does not count.
const CAPACITY: Duration = Duration::from_secs(4);
const WARM_UP: Duration = Duration::from_secs(1);
/// Between a restart and the next, so that a balancer asks the instance again. nginx skips one that refused 20 connections
/// for up to two seconds, and then until the first request that it sends there is answered.
const PAUSE: Duration = Duration::from_secs(3);
/// The buyers' ids; those of other scenarios are smaller.
const FIRST_BUYER: u64 = 4_000_000_000;
/// Longest wait for what is in flight at the end.
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
    /// The load, as a share of the orders per second that all instances reach
    #[arg(long, default_value_t = 0.5, value_name = "SHARE")]
    pub share: f64,
    /// The load in purchases per second, instead of a share
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
    let database = DatabaseServer::start_in(folder.clone()).await.map_err(server("MariaDB"))?;
    let redis = RedisServer::start_in(folder.clone(), Role::Durable).await;
    let redis = redis.map_err(server("Redis"))?;
    let access = Access {
        database_url: database.url(),
        redis_url: redis.url(),
        admin_token: format!("{:032x}", rand::random::<u128>()),
        time_zone: chrono_tz::Asia::Shanghai,
        key_names: KeyNames::default(),
    };
    let program = std::path::absolute(&options.program)
        .map_err(|source| Error::File { path: options.program.clone(), source })?;
    prepare(&program, &access, folder.path())?;
    run_on(&access, folder, options, said).await
}

/// As [`run`], on a database and a Redis that exist, with all tables.
///
/// # Errors
/// As [`run`].
pub async fn run_on(
    access: &Access,
    folder: Arc<TemporaryFolder>,
    options: &RollingOptions,
    said: impl Fn(&str),
) -> Result<Checked, Error> {
    let order_rows = OrderRows::open(&access.database_url).await?;
    let mut fleet = Fleet::start(access, &folder, options).await?;
    let mut behind = Vec::new();
    for (number, &balancer) in options.balancers.iter().enumerate() {
        let running = balancer.start(&fleet.targets(), &options.deploy, folder.path()).await?;
        let first = FIRST_BUYER + number as u64 * u64::from(options.buyers);
        let buyers: Arc<[_]> = sessions::buyers(first, options.buyers as usize)?.into();
        sessions::open(access, &buyers).await?;
        let voucher_id =
            publish::flash_sale(access, &running.target, &options.strategy, options.buyers).await?;
        let load = Load::new(running.target.clone(), voucher_id, buyers);
        let mut restarts = fleet.under_load(&load, balancer, options, &said).await?;
        let sale = PendingSale {
            access,
            targets: std::slice::from_ref(&running.target),
            buyers: &load.buyers,
            voucher_id,
            limit: END_LIMIT,
        };
        pending::wait(sale, &order_rows, &mut restarts.records).await?;
        let quiet = Duration::from_millis(500);
        let (snapshot, unchanged) =
            order_rows.wait_until_unchanged(voucher_id, quiet, END_LIMIT).await?;
        restarts.behind.violations =
            burst::judge(&restarts.records, &snapshot).violations().into_iter().collect();
        restarts.behind.unchanged = unchanged;
        behind.push(restarts.behind);
    }
    fleet.end().await?;
    let mut logs = None;
    let RollingOptions { instances, rounds, strategy, .. } = options;
    let restarts = usize::from(*instances) * *rounds as usize;
    let checks: Vec<_> = behind.iter().flat_map(|it| it.checks(restarts)).collect();
    if CheckResult::worst(&checks) == CheckResult::Violation {
        let saved = folder.path().with_extension("logs");
        copy_logs(folder.path(), &saved)
            .map_err(|source| Error::File { path: saved.clone(), source })?;
        logs = Some(saved);
    }
    let heading =
        format!("{instances} instances, all restarted {rounds} times in turn, {strategy}.");
    Ok(report::report(heading, &behind, restarts, logs))
}

/// The instances.
struct Fleet(Vec<Instance>);

/// What was seen behind one balancer.
struct Restarts {
    behind: Behind,
    records: Vec<Record>,
}

impl Fleet {
    async fn start(
        access: &Access,
        folder: &TemporaryFolder,
        options: &RollingOptions,
    ) -> Result<Self, Error> {
        let program = std::path::absolute(&options.program)
            .map_err(|source| Error::File { path: options.program.clone(), source })?;
        let mut instances = Vec::new();
        for number in 1..=options.instances {
            let port = free_port().map_err(server("instance"))?;
            let target: Target = format!("http://127.0.0.1:{port}").parse()?;
            let socket = socket(folder.path(), &target);
            let mut instance = Instance {
                program: program.clone(),
                log: folder.path().join(format!("instance-{number}.log")),
                target,
                environment: vec![
                    ("BIND_UNIX", socket.display().to_string()),
                    ("DATABASE_URL", access.database_url.clone()),
                    ("REDIS_URL", access.redis_url.clone()),
                    ("ADMIN_TOKEN", access.admin_token.clone()),
                    // Many instances share a small server.
                    ("DATABASE_CONNECTIONS", "16".to_owned()),
                    ("READ_CONNECTIONS", "4".to_owned()),
                    ("UNLIMITED_CLIENTS", "127.0.0.0/8".to_owned()),
                    ("RUST_LOG", "info".to_owned()),
                ],
                process: None,
            };
            instance.environment.extend(options.environment.iter().cloned());
            instance.restart().await?;
            instance.ready().await?;
            instances.push(instance);
        }
        Ok(Self(instances))
    }

    fn targets(&self) -> Vec<Target> {
        self.0.iter().map(|instance| instance.target.clone()).collect()
    }

    async fn end(&mut self) -> Result<(), Error> {
        for instance in &mut self.0 {
            instance.end().await?;
        }
        Ok(())
    }

    /// Finds the capacity, then restarts all instances at a share of it.
    async fn under_load(
        &mut self,
        load: &Arc<Load>,
        balancer: Balancer,
        options: &RollingOptions,
        said: &impl Fn(&str),
    ) -> Result<Restarts, Error> {
        let (mut records, mut capacity) = (Vec::new(), None);
        let rate = match options.rate {
            Some(rate) => rate,
            None => {
                let (_, closed) = load.run(CAPACITY_CONNECTIONS, None, sleep(CAPACITY)).await?;
                let counted = |record: &&Record| {
                    let end = record.answered;
                    record.observed.reply.is_success() && end >= WARM_UP && end <= CAPACITY
                };
                let orders = closed.iter().filter(counted).count() as f64;
                records.extend(closed);
                let found = orders / CAPACITY.saturating_sub(WARM_UP).as_secs_f64();
                capacity = Some(found);
                found * options.share
            }
        };
        said(&format!("behind {balancer}: {rate:.0} purchases a second"));
        let begin = Instant::now();
        let restarting = async {
            let mut drains = Vec::new();
            for round in 1..=options.rounds {
                for instance in &mut self.0 {
                    sleep(PAUSE).await;
                    let asked = Instant::now();
                    instance.end().await?;
                    drains.push(asked.elapsed());
                    instance.restart().await?;
                    instance.ready().await?;
                }
                said(&format!(
                    "behind {balancer}: round {round} of {}, {:.0} s",
                    options.rounds,
                    begin.elapsed().as_secs_f64()
                ));
            }
            sleep(PAUSE).await;
            Ok::<_, Error>(drains)
        };
        // So that none is idle for longer than an instance that ends waits for it.
        let connections = options.connections.unwrap_or((rate as u16).clamp(1, 256));
        let (drains, rolled) = load.run(usize::from(connections), Some(rate), restarting).await?;
        let mut drains = drains?;
        drains.sort_unstable();
        let behind = Behind {
            balancer,
            capacity,
            rate,
            drains,
            requests: rolled.len() as u64,
            failed: report::failures(&rolled),
            latency: Latency::of(rolled.iter().map(|record| record.latency())),
            violations: Default::default(),
            unchanged: false,
            buyers_left: !load.is_used_up(),
        };
        records.extend(rolled);
        Ok(Restarts { behind, records })
    }
}
