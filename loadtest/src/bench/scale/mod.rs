//! Cost as it grows (`./dev bench --scale`): processor time of an order and of a refusal with more instances, open sales,
//! orders and sessions, each size beside the smallest, in interleaved rounds; memory; and a whole sale, with which the
//! capacity plan is compared.
//!
//! Things grow one after the other, so that only a few instances run at once.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use seckill_loadtest::plan::figures::{Figures, Level};
use seckill_loadtest::plan::{document, tables};
use workload::Access;
use workload::live::Progress;

use crate::bench::environment::{Buyers, Databases, Environment, MAIN};
use crate::bench::report::Conditions;
use crate::bench::runs::{Plan, Run, Runner, Stock};
use crate::bench::sales;
use crate::bench::servers::{self, Server};

mod growth;
mod memory;
mod one_instance;

/// Clients of the closed loop, spread over the instances.
const CLIENTS: usize = 512;
/// Buyers, where sessions are not what grows.
const BUYERS: usize = 100_000;
/// The smaller number of sessions; so many attempts are made in a run, each by another buyer.
const FEW_SESSIONS: usize = 10_000;

/// Tables that hold orders already.
const LARGE: Databases =
    Databases { database: "seckill_bench_large", redis: 10, keeps_orders: true };
const HUGE: Databases = Databases { database: "seckill_bench_huge", redis: 11, keeps_orders: true };
/// Few sessions, and many.
const FEW: Databases = Databases { database: "seckill_bench", redis: 12, keeps_orders: false };
const MANY: Databases = Databases { database: "seckill_bench", redis: 13, keeps_orders: false };

/// What to measure.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Rounds that count.
    pub rounds: usize,
    /// Duration of each run.
    pub duration: Duration,
    /// A tenth of the orders and sessions.
    pub quick: bool,
    /// Write docs/scale.json and the tables made of it.
    pub write: bool,
}

/// Servers that are asked, with what is behind them.
struct Size<'a> {
    /// How many there are of what grows.
    count: u64,
    environment: &'a Environment,
    buyers: &'a Buyers,
    servers: Vec<&'a Server>,
    /// Sales that are open at once.
    sales: u64,
}

/// Measures everything, and prints the tables.
///
/// # Errors
/// A server fails, or a run fails the audit.
pub async fn run(
    access: Access,
    seckill: PathBuf,
    folder: PathBuf,
    settings: &Settings,
) -> anyhow::Result<()> {
    let scale = Scale { access, seckill, folder, settings };
    let environment = scale.open(MAIN).await?;
    environment.delete_orders().await?;
    let buyers = Buyers::sign_in(&environment, BUYERS).await.context("signing in")?;
    let measured = tokio::select! {
        measured = scale.measure(&environment, &buyers) => measured,
        signal = tokio::signal::ctrl_c() => {
            signal.map_err(Into::into).and_then(|()| Err(anyhow::anyhow!("interrupted")))
        }
    };
    buyers.sign_out(&environment).await.context("signing out")?;
    for databases in [LARGE, HUGE] {
        environment.drop_database(databases).await?;
    }
    let figures = measured?;
    let text = serde_json::to_string_pretty(&figures)? + "\n";
    std::fs::write(scale.folder.join("scale.json"), &text)?;
    for (_, _, table) in tables::all(&figures)? {
        println!("{table}");
    }
    if settings.write {
        std::fs::write(document::path("scale.json"), &text)?;
        tables::write(&figures)?;
        println!(
            "Written: docs/scale.json, and the tables of docs/BENCHMARKS.md and docs/SCALING.md"
        );
    } else {
        println!("Figures: {}", scale.folder.join("scale.json").display());
    }
    Ok(())
}

fn say(text: &str) {
    Progress::Stderr.say(text);
}

struct Scale<'a> {
    access: Access,
    seckill: PathBuf,
    folder: PathBuf,
    settings: &'a Settings,
}

impl Scale<'_> {
    async fn open(&self, databases: Databases) -> anyhow::Result<Environment> {
        let Self { access, seckill, folder, .. } = self;
        let opened =
            Environment::prepare(access.clone(), seckill.clone(), folder.clone(), databases).await;
        let environment = opened.context("preparing")?;
        sales::prepare(&environment.pool).await?;
        Ok(environment)
    }

    async fn measure(&self, main: &Environment, buyers: &Buyers) -> anyhow::Result<Figures> {
        let began = Instant::now();
        let (answers, sale) = self.one_instance(main, buyers).await?;
        let commit_ms = sales::commit_time(&main.pool).await?.as_secs_f64() * 1e3;
        let mut memory = self.memory(main, buyers).await?;
        let mut growth = self.instances(main, buyers).await?;
        growth.extend(self.sales(main, buyers).await?);
        let (levels, order_database) = self.orders(main, buyers).await?;
        growth.extend(levels);
        let (levels, session_redis) = self.sessions().await?;
        growth.extend(levels);
        (memory.order_database, memory.session_redis) = (order_database, session_redis);
        let Settings { rounds, duration, .. } = *self.settings;
        let conditions = Conditions::gather(main, (rounds, duration), began.elapsed()).await?;
        let (cores, conditions) = (conditions.cores, conditions.text());
        let quick = self.settings.quick;
        Ok(Figures { conditions, quick, cores, growth, answers, commit_ms, memory, sale })
    }

    async fn instances(&self, main: &Environment, buyers: &Buyers) -> anyhow::Result<Vec<Level>> {
        say("instances");
        let mut servers = Vec::new();
        for number in 1..=8 {
            servers.push(servers::instance(main, &format!("scale-{number}"), &[]).await?);
        }
        let size = |count: usize| Size {
            count: count as u64,
            environment: main,
            buyers,
            servers: servers.iter().take(count).collect(),
            sales: 1,
        };
        self.growth("instances", &[1, 2, 4, 8].map(size)).await
    }

    async fn sales(&self, main: &Environment, buyers: &Buyers) -> anyhow::Result<Vec<Level>> {
        say("open sales");
        let mut servers = Vec::new();
        for number in 1..=3 {
            servers.push(servers::instance(main, &format!("scale-{number}"), &[]).await?);
        }
        let size = |(sales, server)| Size {
            count: sales,
            environment: main,
            buyers,
            servers: vec![server],
            sales,
        };
        let sizes: Vec<_> = [1, 100, 10_000].into_iter().zip(&servers).map(size).collect();
        self.growth("open sales", &sizes).await
    }

    /// With more orders in the table; also the bytes of an order.
    async fn orders(
        &self,
        main: &Environment,
        buyers: &Buyers,
    ) -> anyhow::Result<(Vec<Level>, f64)> {
        let counts =
            if self.settings.quick { [100_000, 1_000_000] } else { [1_000_000, 10_000_000] };
        let mut full = Vec::new();
        for (databases, count) in [LARGE, HUGE].into_iter().zip(counts) {
            say(&format!("making {count} orders"));
            let environment = self.open(databases).await?;
            sales::past_orders(&environment.pool, count).await?;
            let buyers = Buyers::sign_in(&environment, BUYERS).await?;
            let server = servers::instance(&environment, databases.database, &[]).await?;
            full.push((count, environment, buyers, server));
        }
        let first = servers::instance(main, "scale-1", &[]).await?;
        let size = |count, environment, buyers, server| Size {
            count,
            environment,
            buyers,
            servers: vec![server],
            sales: 1,
        };
        let mut sizes = vec![size(0, main, buyers, &first)];
        for (count, environment, buyers, server) in &full {
            sizes.push(size(*count, environment, buyers, server));
        }
        let levels = self.growth("orders in the table", &sizes).await?;
        for (_, environment, buyers, _) in &full {
            buyers.sign_out(environment).await?;
        }
        let [_, (_, huge, ..)] = &full[..] else { return Ok((levels, f64::NAN)) };
        Ok((levels, sales::bytes_per_order(&huge.pool).await?))
    }

    /// With more sessions in Redis; also the bytes of one.
    async fn sessions(&self) -> anyhow::Result<(Vec<Level>, f64)> {
        let many = if self.settings.quick { 100_000 } else { 1_000_000 };
        let mut full = Vec::new();
        let mut bytes = f64::NAN;
        for (databases, count) in [(FEW, FEW_SESSIONS), (MANY, many)] {
            say(&format!("opening {count} sessions"));
            let environment = self.open(databases).await?;
            let before = environment.redis_memory().await?;
            let buyers = Buyers::sign_in(&environment, count).await?;
            bytes = (environment.redis_memory().await? - before) / count as f64;
            let server = servers::instance(&environment, &format!("scale-{count}"), &[]).await?;
            full.push((environment, buyers, server));
        }
        let sizes: Vec<_> = full
            .iter()
            .map(|(environment, buyers, server)| Size {
                count: buyers.users.len() as u64,
                environment,
                buyers,
                servers: vec![server],
                sales: 1,
            })
            .collect();
        let levels = self.growth("sessions", &sizes).await?;
        for (environment, buyers, _) in &full {
            buyers.sign_out(environment).await?;
        }
        Ok((levels, bytes))
    }

    /// One run on new sales: orders, or refusals of sales without stock.
    async fn answers(&self, size: &Size<'_>, round: usize, is_order: bool) -> anyhow::Result<Run> {
        // Where sessions are what grows, each is asked for once a run.
        let part = (size.buyers.users.len() <= FEW_SESSIONS || size.environment.is(MANY))
            .then(|| size.buyers.part(FEW_SESSIONS, 2 * round + usize::from(is_order)));
        let buyers = part.as_ref().unwrap_or(size.buyers);
        if part.is_some() {
            // Sessions that the instance remembers are not asked for.
            tokio::time::sleep(Duration::from_millis(900)).await;
        }
        let stock = if is_order { u32::try_from(buyers.users.len())? } else { 0 };
        let sales = sales::open(&size.environment.pool, size.sales, stock).await?;
        let plan = Plan {
            name: if is_order { "order" } else { "sold out" },
            servers: size.servers.clone(),
            stock: if is_order { Stock::PerBuyer } else { Stock::SoldOut },
            clients: CLIENTS,
            repeat: !is_order && part.is_none(),
            ..Plan::new("group-commit", size.servers[0], self.settings.duration)
        };
        let publisher = size.servers[0].target.clone();
        let environment = size.environment;
        let mut runner = Runner { environment, buyers, publisher, runs: Vec::new() };
        runner.run_on(&plan, round, Some(sales)).await
    }
}
