//! A run: publish a sale, generate purchases, measure, audit. A run that fails the audit ends the benchmark, whatever its
//! figures are.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use workload::batches::Batches;
use workload::buyers::Buyer;
use workload::latency::Latency;
use workload::order_rows::Snapshot;
use workload::{Target, checker, publish};

use crate::bench::environment::Environment;
use crate::bench::generator::{self, Attempt, Attempts, Load};
use crate::bench::options::say;
use crate::bench::run::Run;
use crate::bench::sales;
use crate::bench::servers::{Server, processor_s};
use crate::plan::figures::Cost;

/// How long the tables must not have changed before the audit.
const QUIET: Duration = Duration::from_millis(100);
/// Longest wait for that.
const LIMIT: Duration = Duration::from_secs(30);

/// What is on sale in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stock {
    /// One for every buyer: every answer should be an order.
    PerBuyer,
    Limited(u32),
    /// None, or one where a sale must have one: every answer is "sold out", but for the first in that case.
    SoldOut,
}

/// The settings of a run.
#[derive(Clone)]
pub struct Plan<'a> {
    pub name: &'static str,
    /// Database, Redis and buyers.
    pub environment: &'a Environment,
    /// The instance that publishes the sale.
    pub publisher: &'a Target,
    /// The sale's strategy, by the service's name for it.
    pub strategy: &'static str,
    /// The servers that get the requests.
    pub servers: Vec<&'a Server>,
    pub stock: Stock,
    /// What is asked for instead of buying, such as `GET /shop/1`: nothing is on sale.
    pub instead: Option<&'static str>,
    /// So many sales of `group-commit` are written into the tables, instead of one that is published.
    pub sales: Option<u64>,
    /// Only a part of the buyers comes: their number, and a turn, each of which has other buyers.
    pub part: Option<(usize, usize)>,
    /// Keep-alive connections.
    pub clients: usize,
    /// Attempts per second of an open loop; `None` is a closed loop.
    pub rate: Option<f64>,
    /// How long attempts are made.
    pub duration: Duration,
}

impl<'a> Plan<'a> {
    /// A closed loop of 256 clients on a sale by `strategy`, with stock for every buyer.
    pub fn new(strategy: &'static str, environment: &'a Environment, server: &'a Server) -> Self {
        Self {
            name: strategy,
            environment,
            publisher: &server.target,
            strategy,
            servers: vec![server],
            stock: Stock::PerBuyer,
            instead: None,
            sales: None,
            part: None,
            clients: 256,
            rate: None,
            duration: environment.args.duration(),
        }
    }

    /// Makes the run.
    pub async fn run(&self) -> anyhow::Result<Run> {
        let buyers = self.buyers();
        let sales = self.publish(buyers.len()).await?;
        let paths = match &sales {
            Some(sales) => sales
                .clone()
                .map(|id| format!("POST /voucher-order/seckill/{id}"))
                .collect(),
            None => self.instead.into_iter().map(str::to_owned).collect(),
        };
        let targets: Vec<Target> = self
            .servers
            .iter()
            .map(|server| server.target.clone())
            .collect();
        let load = Load {
            targets: targets.clone(),
            paths,
            buyers,
            connections: self.clients,
            duration: self.duration,
            rate: self.rate,
            repeat: self.counts_every_answer() && self.part.is_none(),
        };
        let batches = Batches::read(&targets).await;
        let before = self.processor_s();
        let attempts = tokio::task::spawn_blocking(move || generator::generate(load)).await??;
        let after = self.processor_s();
        let count = attempts.list.len().max(1) as f64;
        let [service_us, database_us, redis_us, client_us] =
            [0, 1, 2, 3].map(|index| (after[index] - before[index]) * 1e6 / count);
        let cpu = Cost {
            service_us,
            database_us,
            redis_us,
            client_us,
        };
        if let Some(sales) = sales {
            self.audit(sales.clone(), &attempts).await?;
            self.environment.clear(sales).await?;
        }
        let batch = Batches::read(&targets).await.average_since(&batches);
        let run = self.figures(&attempts, cpu, batch);
        say(&format!("    {run}"));
        let is_read = self.instead.is_some_and(|path| path.starts_with("GET "));
        let got_only_shops = run.outcomes.keys().eq(["HTTP_200"]);
        ensure!(
            !is_read || got_only_shops,
            "not only shops were read: {:?}",
            run.outcomes
        );
        Ok(run)
    }

    /// Whether latencies are those of all answers, not of orders only.
    fn counts_every_answer(&self) -> bool {
        self.stock == Stock::SoldOut || self.instead.is_some()
    }

    fn figures(&self, attempts: &Attempts, cpu: Cost, batch: Option<f64>) -> Run {
        let counts_every_answer = self.counts_every_answer();
        let list = attempts.list.iter();
        let orders = list.clone().filter(|attempt| attempt.is_order());
        let counted = list
            .clone()
            .filter(|attempt| counts_every_answer || attempt.is_order());
        Run {
            name: self.name,
            clients: self.clients,
            // A bare route replies with an order that does not exist.
            orders_per_s: match self.instead {
                Some(_) => 0.0,
                None => attempts.per_s(Attempt::is_order),
            },
            answers_per_s: attempts.answers_per_s(),
            latency: Latency::from_durations(counted.map(|attempt| attempt.latency)),
            ends: [
                Latency::from_durations(orders.map(|attempt| attempt.end)),
                Latency::from_durations(list.map(|attempt| attempt.end)),
            ],
            outcomes: attempts.outcomes(),
            cpu,
            batch,
        }
    }

    fn buyers(&self) -> Arc<[Buyer]> {
        let all = &self.environment.buyers;
        let Some((count, turn)) = self.part else {
            return all.clone();
        };
        let step = (all.len() / count.max(1)).max(1);
        all.iter()
            .skip(turn % step)
            .step_by(step)
            .take(count)
            .cloned()
            .collect()
    }

    /// Opens the sales; returns their vouchers' ids, `None` if nothing is on sale.
    async fn publish(&self, buyers: usize) -> anyhow::Result<Option<RangeInclusive<u64>>> {
        if self.instead.is_some() {
            return Ok(None);
        }
        let stock = match self.stock {
            // The most that a sale on this strategy can have.
            Stock::PerBuyer if self.strategy == "unit-rows" => 10_000,
            Stock::PerBuyer => u32::try_from(buyers)?,
            Stock::Limited(stock) => stock,
            // A sale that is published must have at least one.
            Stock::SoldOut => u32::from(self.sales.is_none()),
        };
        if let Some(count) = self.sales {
            return Ok(Some(
                sales::open(&self.environment.pool, count, stock).await?,
            ));
        }
        let access = &self.environment.access;
        let id = publish::flash_sale(access, self.publisher, self.strategy, stock).await?;
        Ok(Some(id..=id))
    }

    /// Waits until the tables no longer change, and compares every reply with every row. `sales` are in the order of the
    /// attempts' paths.
    async fn audit(&self, sales: RangeInclusive<u64>, attempts: &Attempts) -> anyhow::Result<()> {
        let mut replies = vec![Vec::new(); sales.clone().count()];
        for attempt in &attempts.list {
            replies[attempt.path].push(&attempt.observed);
        }
        // Some of those that were confirmed may still wait in the stream.
        let confirmed = attempts
            .list
            .iter()
            .filter(|attempt| attempt.is_order())
            .count();
        let rows = &self.environment.order_rows;
        let (snapshots, unchanged) = rows
            .wait_until_unchanged(sales.clone(), confirmed, QUIET, LIMIT)
            .await?;
        let name = self.name;
        ensure!(unchanged, "{name}: the tables still change after {LIMIT:?}");
        for ((id, replies), Snapshot { sale, rows }) in sales.zip(replies).zip(&snapshots) {
            let found = checker::judge(*sale, replies, rows).violations();
            ensure!(
                found.is_empty(),
                "{name}: sale {id} failed the audit: {found:?}"
            );
        }
        Ok(())
    }

    /// Processor time used so far, in seconds: the processes asked, the database, Redis, this program.
    fn processor_s(&self) -> [f64; 4] {
        let service = self.servers.iter().map(|server| server.processor_s()).sum();
        let [database, redis] = self.environment.pids.map(processor_s);
        [service, database, redis, processor_s(std::process::id())]
    }
}
