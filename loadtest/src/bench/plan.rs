//! A run: publish a sale, generate purchases, measure, audit. One that fails the audit ends the benchmark, whatever its
//! figures are.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::plan::figures::Cost;
use anyhow::{Context, ensure};
use workload::batches::Batches;
use workload::buyers::Buyer;
use workload::latency::Latency;
use workload::{Target, publish};

use crate::bench::audit;
use crate::bench::environment::Environment;
use crate::bench::generator::{self, Attempts, Load, Outcome};
use crate::bench::run::Run;
use crate::bench::sales;
use crate::bench::servers::{Server, processor_s};
use crate::bench::settings::say;

/// What is on sale in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stock {
    /// One for every buyer: every answer should be an order.
    PerBuyer,
    Limited(u32),
    /// One, so that every answer but the first is "sold out".
    SoldOut,
    /// Nothing: a shop is read, or the target is a bare route.
    NoSale,
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
    /// Prefix of the path, such as `/sold-out`.
    pub prefix: &'static str,
    /// The shop that is read, instead of buying.
    pub shop: Option<u64>,
    pub stock: Stock,
    /// So many sales of `group-commit`, written into the tables instead of one that is published.
    pub sales: Option<u64>,
    /// Only so many buyers, spread over all; others for every turn.
    pub part: Option<(usize, usize)>,
    /// Keep-alive connections.
    pub clients: usize,
    /// Attempts per second of an open loop; `None` is a closed loop.
    pub rate: Option<f64>,
    /// Whether buyers try again after all of them had their turn.
    pub repeat: bool,
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
            prefix: "",
            shop: None,
            stock: Stock::PerBuyer,
            sales: None,
            part: None,
            clients: 256,
            rate: None,
            repeat: false,
            duration: environment.settings.duration,
        }
    }

    /// Makes the run. Its figures, and every attempt.
    pub async fn run(&self) -> anyhow::Result<(Run, Attempts)> {
        let environment = self.environment;
        let all = &environment.buyers;
        let buyers: Arc<[Buyer]> = match self.part {
            Some((count, turn)) => {
                let step = (all.len() / count.max(1)).max(1);
                all.iter().skip(turn % step).step_by(step).take(count).cloned().collect()
            }
            None => all.clone(),
        };
        let sales = self.publish(&buyers).await?;
        let asked: Vec<Target> = self.servers.iter().map(|server| server.target.clone()).collect();
        let batches = Batches::read(&asked).await;
        let before = self.processor_s();
        let attempts = self.generate(&buyers, sales.as_ref()).await?;
        let after = self.processor_s();
        let count = attempts.list.len().max(1) as f64;
        let [service_us, database_us, redis_us, client_us] =
            [0, 1, 2, 3].map(|at| (after[at] - before[at]) * 1e6 / count);
        if let Some(sales) = sales {
            let audited = audit::check(environment, &buyers, sales.clone(), &attempts);
            audited.await.with_context(|| self.name.to_owned())?;
            environment.delete_orders().await?;
            environment.delete_claims(sales).await?;
        }
        let all_count = matches!(self.stock, Stock::SoldOut | Stock::NoSale);
        let counted = attempts
            .list
            .iter()
            .filter(|attempt| all_count || matches!(attempt.outcome, Outcome::Ordered(_)));
        let latencies = counted.map(|attempt| Duration::from_micros(attempt.latency_us.into()));
        let run = Run {
            name: self.name,
            clients: self.clients,
            // The order in a bare route's reply does not exist.
            orders_per_s: match self.stock {
                Stock::NoSale => 0.0,
                _ => attempts.orders_per_s(),
            },
            answers_per_s: attempts.answers_per_s(),
            latency: Latency::of(latencies),
            outcomes: attempts.outcomes(),
            cpu: Cost { service_us, database_us, redis_us, client_us },
            batch: Batches::read(&asked).await.average_since(&batches),
        };
        say(&format!("    {run}"));
        let is_read = run.outcomes.keys().eq(["HTTP_200"]);
        ensure!(self.shop.is_none() || is_read, "not only shops were read: {:?}", run.outcomes);
        Ok((run, attempts))
    }

    /// Opens the sales; their vouchers' ids.
    async fn publish(&self, buyers: &[Buyer]) -> anyhow::Result<Option<RangeInclusive<u64>>> {
        let stock = match self.stock {
            Stock::NoSale => return Ok(None),
            // As much as a sale on it can have.
            Stock::PerBuyer if self.strategy == "unit-rows" => 10_000,
            Stock::PerBuyer => u32::try_from(buyers.len())?,
            Stock::Limited(stock) => stock,
            // A published sale has at least one.
            Stock::SoldOut => u32::from(self.sales.is_none()),
        };
        if let Some(count) = self.sales {
            return Ok(Some(sales::open(&self.environment.pool, count, stock).await?));
        }
        let access = &self.environment.settings.access;
        let id = publish::flash_sale(access, self.publisher, self.strategy, stock).await?;
        Ok(Some(id..=id))
    }

    /// Processor time used so far, in seconds: the processes asked, the database, Redis, this program.
    fn processor_s(&self) -> [f64; 4] {
        let asked = self.servers.iter().map(|server| server.processor_s()).sum();
        let [database, redis] = self.environment.pids.map(|pid| pid.map_or(0.0, processor_s));
        [asked, database, redis, processor_s(std::process::id())]
    }

    async fn generate(
        &self,
        buyers: &Arc<[Buyer]>,
        sales: Option<&RangeInclusive<u64>>,
    ) -> anyhow::Result<Attempts> {
        let digits = sales.map_or(1, |sales| sales.end().to_string().len());
        // Of one length, as the generator wants it: an id may begin with zeros.
        let path = |id| match self.shop {
            Some(shop) => format!("GET /shop/{shop}"),
            None => format!("POST {}/voucher-order/seckill/{id:0digits$}", self.prefix),
        };
        let load = Load {
            targets: self.servers.iter().map(|server| server.address).collect(),
            paths: sales.cloned().unwrap_or(1..=1).map(path).collect(),
            buyers: buyers.clone(),
            connections: self.clients,
            duration: self.duration,
            rate: self.rate,
            repeat: self.repeat,
        };
        tokio::task::spawn_blocking(move || generator::generate(&load)).await?
    }
}
