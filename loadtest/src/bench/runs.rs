//! Measured runs: publish a sale, generate purchases, measure, audit. A run that fails the audit ends the benchmark,
//! whatever its figures are.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;
use workload::checker::{self, ObservedReply};
use workload::comparison::batches::Batches;
use workload::latency::{Latency, Recorder};
use workload::reply::{CONNECTION_LOST, Reply};
use workload::{Target, publish};

use crate::bench::environment::{Buyers, Environment};
use crate::bench::generator::{self, Attempt, Attempts, Load, Outcome};
use crate::bench::sales;
use crate::bench::servers::{Server, processor_s};

/// What is on sale in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stock {
    /// One for every buyer: every answer should be an order.
    PerBuyer,
    /// This many.
    Limited(u32),
    /// One, so that every answer but the first is "sold out".
    SoldOut,
    /// Nothing: a shop is read, or the target is a bare route.
    NoSale,
}

/// The settings of a run.
#[derive(Clone)]
pub struct Plan<'a> {
    /// Name in the report.
    pub name: &'static str,
    /// The sale's strategy, by the service's name for it.
    pub strategy: &'static str,
    /// The servers that get the requests.
    pub servers: Vec<&'a Server>,
    /// Prefix of the path, such as `/sold-out`.
    pub prefix: &'static str,
    /// The shop that is read, instead of buying.
    pub shop: Option<u64>,
    /// What is on sale.
    pub stock: Stock,
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
    pub fn new(strategy: &'static str, server: &'a Server, duration: Duration) -> Self {
        Self {
            name: strategy,
            strategy,
            servers: vec![server],
            prefix: "",
            shop: None,
            stock: Stock::PerBuyer,
            clients: 256,
            rate: None,
            repeat: false,
            duration,
        }
    }
}

/// The figures of a run that passed the audit.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// See [`Plan::name`].
    pub name: &'static str,
    /// The round that it belongs to, from 1; 0 for those that no ratio is about.
    pub round: usize,
    /// Clients.
    pub clients: usize,
    /// Orders per second, answered while attempts were being made.
    pub orders_per_s: f64,
    /// Answers of any kind, likewise.
    pub answers_per_s: f64,
    /// Latency of orders; of all answers where nothing is on sale.
    pub latency: Latency,
    /// Attempts by outcome.
    pub outcomes: BTreeMap<String, u64>,
    /// Processor time of one answer; depends far less on the machine's other load than any rate.
    pub cpu: Cpu,
    /// Orders in a commit of `group-commit`, on average over the instances asked.
    pub batch: Option<f64>,
    /// The attempts.
    #[serde(skip)]
    pub attempts: Arc<Attempts>,
}

/// Processor time of one answer, in µs.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Cpu {
    /// Of the processes asked (behind nginx: the instances too).
    pub service_us: f64,
    /// Of the database.
    pub database_us: f64,
    /// Of Redis.
    pub redis_us: f64,
    /// Of this program.
    pub client_us: f64,
}

impl Cpu {
    /// Of everything.
    pub fn all_us(&self) -> f64 {
        self.servers_us() + self.client_us
    }

    /// Of all but this program.
    pub fn servers_us(&self) -> f64 {
        self.service_us + self.database_us + self.redis_us
    }
}

/// Makes runs and keeps their figures.
pub struct Runner<'a> {
    /// Database, Redis and files.
    pub environment: &'a Environment,
    /// The buyers.
    pub buyers: &'a Buyers,
    /// The instance that publishes sales.
    pub publisher: Target,
    /// All runs so far.
    pub runs: Vec<Run>,
}

impl Runner<'_> {
    /// Publishes a sale and returns its voucher's id.
    ///
    /// # Errors
    /// The service refuses, such as an unknown strategy.
    pub async fn publish(&self, strategy: &str, stock: u32) -> anyhow::Result<u64> {
        Ok(publish::flash_sale(&self.environment.access, &self.publisher, strategy, stock).await?)
    }

    /// Makes one run of round `round` on a new sale.
    ///
    /// # Errors
    /// As of [`Runner::run_on`]; publishing fails.
    pub async fn run(&mut self, plan: &Plan<'_>, round: usize) -> anyhow::Result<Run> {
        let stock = match plan.stock {
            Stock::NoSale => return self.run_on(plan, round, None).await,
            // As much as a sale on it can have.
            Stock::PerBuyer if plan.strategy == "unit-rows" => 10_000,
            Stock::PerBuyer => u32::try_from(self.buyers.users.len())?,
            Stock::Limited(stock) => stock,
            Stock::SoldOut => 1,
        };
        let voucher = self.publish(plan.strategy, stock).await?;
        self.run_on(plan, round, Some(voucher..=voucher)).await
    }

    /// Makes one run on existing sales, whose vouchers have these ids.
    ///
    /// # Errors
    /// A server cannot be reached, or the run fails the audit.
    pub async fn run_on(
        &mut self,
        plan: &Plan<'_>,
        round: usize,
        sales: Option<RangeInclusive<u64>>,
    ) -> anyhow::Result<Run> {
        let asked: Vec<Target> = plan.servers.iter().map(|server| server.target.clone()).collect();
        let batches = Batches::read(&asked).await;
        let before = self.processor_s(plan);
        let attempts = self.generate(plan, sales.as_ref()).await?;
        let after = self.processor_s(plan);
        let count = attempts.list.len().max(1) as f64;
        let spent_us = |at: usize| (after[at] - before[at]) * 1e6 / count;
        let [service_us, database_us, redis_us, client_us] = [0, 1, 2, 3].map(spent_us);
        let cpu = Cpu { service_us, database_us, redis_us, client_us };
        if let Some(sales) = sales {
            self.audit(sales.clone(), &attempts).await.with_context(|| plan.name.to_owned())?;
            self.environment.delete_orders().await?;
            self.environment.delete_claims(sales).await?;
        }
        let batch = Batches::read(&asked).await.since(&batches).average();
        let run = Run { batch, ..summary(plan, round, attempts, cpu) };
        self.runs.push(run.clone());
        Ok(run)
    }

    /// Processor time used so far, in seconds: the processes asked, the database, Redis, this program.
    fn processor_s(&self, plan: &Plan<'_>) -> [f64; 4] {
        let asked = plan.servers.iter().map(|server| server.processor_s()).sum();
        let [database, redis] = [self.environment.pids.database, self.environment.pids.redis]
            .map(|pid| pid.map_or(0.0, processor_s));
        [asked, database, redis, processor_s(std::process::id())]
    }

    async fn generate(
        &self,
        plan: &Plan<'_>,
        sales: Option<&RangeInclusive<u64>>,
    ) -> anyhow::Result<Attempts> {
        let digits = sales.map_or(1, |sales| sales.end().to_string().len());
        // Of one length, as the generator wants it: an id may begin with zeros.
        let path = |id| match plan.shop {
            Some(shop) => format!("GET /shop/{shop}"),
            None => format!("POST {}/voucher-order/seckill/{id:0digits$}", plan.prefix),
        };
        let load = Load {
            targets: plan.servers.iter().map(|server| server.address).collect(),
            paths: sales.cloned().unwrap_or(1..=1).map(path).collect(),
            tokens: self.buyers.tokens.clone(),
            connections: plan.clients,
            duration: plan.duration,
            rate: plan.rate,
            repeat: plan.repeat,
        };
        tokio::task::spawn_blocking(move || generator::generate(&load)).await?
    }

    /// Checks every reply against every row, once the tables no longer change.
    async fn audit(&self, sales: RangeInclusive<u64>, attempts: &Attempts) -> anyhow::Result<()> {
        let first = *sales.start();
        let mut replies: Vec<Vec<ObservedReply>> = vec![Vec::new(); sales.clone().count()];
        for (at, attempt) in attempts.list.iter().enumerate() {
            let user_id = self.buyers.users.get(attempt.buyer as usize).copied();
            let user_id = user_id.context("an attempt of an unknown buyer")?;
            let reply = reply(attempts, attempt.outcome);
            let observed = ObservedReply { user_id, attempt: u32::try_from(at)?, reply };
            replies.get_mut(attempt.path as usize).context("an unknown sale")?.push(observed);
        }
        let is_order = |attempt: &&Attempt| matches!(attempt.outcome, Outcome::Ordered(_));
        let confirmed = attempts.list.iter().filter(is_order).count();
        let rows = sales::wait_until_unchanged(&self.environment.pool, sales, confirmed).await?;
        let mut found = BTreeMap::new();
        for ((id, replies), (sale, rows)) in (first..).zip(&replies).zip(&rows) {
            for (name, count) in checker::judge(*sale, replies, rows).violations() {
                found.entry(name).or_insert((id, 0)).1 += count;
            }
        }
        let found: Vec<_> = found
            .into_iter()
            .map(|(name, (id, count))| format!("{name}: {count} (first in sale {id})"))
            .collect();
        ensure!(found.is_empty(), "failed the audit: {}", found.join(", "));
        Ok(())
    }
}

/// What a buyer was told, for the checker.
fn reply(attempts: &Attempts, outcome: Outcome) -> Reply {
    match outcome {
        Outcome::Ordered(id) => Reply::Ordered(id),
        Outcome::Lost => Reply::lost(CONNECTION_LOST),
        Outcome::Refused(code) => match attempts.code(code) {
            "ALREADY_ORDERED" => Reply::AlreadyOrdered(None),
            code if code == "OUTCOME_UNKNOWN" || code.starts_with("HTTP_5") => {
                Reply::lost(CONNECTION_LOST)
            }
            code => Reply::Refused(code.to_owned().into()),
        },
    }
}

fn summary(plan: &Plan<'_>, round: usize, attempts: Attempts, cpu: Cpu) -> Run {
    let all_count = matches!(plan.stock, Stock::SoldOut | Stock::NoSale);
    let mut recorder = Recorder::new(3);
    for attempt in &attempts.list {
        if all_count || matches!(attempt.outcome, Outcome::Ordered(_)) {
            recorder.record(Duration::from_micros(attempt.latency_us.into()));
        }
    }
    Run {
        name: plan.name,
        round,
        clients: plan.clients,
        // The order in a bare route's reply does not exist.
        orders_per_s: if plan.stock == Stock::NoSale { 0.0 } else { attempts.orders_per_s() },
        answers_per_s: attempts.answers_per_s(),
        latency: recorder.summary(),
        outcomes: attempts.outcomes(),
        cpu,
        batch: None,
        attempts: Arc::new(attempts),
    }
}
