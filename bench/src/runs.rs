//! One measured run: a fresh sale, a volley on it, and the audit. A run that breaks a law fails the whole
//! benchmark, whatever its figures are.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use workload::checker::{self, Asked, Verdict};
use workload::latency::{Latency, Recorder};
use workload::reply::Reply;
use workload::{Target, publish};

use crate::client::{self, End, Fired, Volley};
use crate::ground::{Buyers, Ground, Pids};
use crate::stack::{self, Server};

/// What is put on sale in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stock {
    /// One for every buyer: every answer should be an order.
    ForAll,
    /// So many.
    Some(u32),
    /// One, so that all but the first buyer come too late.
    Gone,
    /// There is no sale: the target is a bare route.
    NoSale,
}

/// A run to be made.
#[derive(Clone)]
pub struct Plan<'a> {
    /// Its name in the report.
    pub name: &'static str,
    /// The sale's strategy, by the service's name for it.
    pub strategy: &'static str,
    /// Who is asked.
    pub servers: Vec<&'a Server>,
    /// What stands before the path, such as `/late`.
    pub prefix: &'static str,
    /// What is on sale.
    pub stock: Stock,
    /// Keep-alive connections.
    pub clients: usize,
    /// Attempts a second; `None`: a closed loop.
    pub rate: Option<f64>,
    /// Whether buyers come again after all had their turn.
    pub again: bool,
    /// How long attempts are made.
    pub lasting: Duration,
}

/// A run that was made and judged.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// See [`Plan::name`].
    pub name: &'static str,
    /// Which round it belonged to, from 1.
    pub round: usize,
    /// Clients.
    pub clients: usize,
    /// Orders a second, answered while attempts were being made.
    pub orders_per_s: f64,
    /// Answers of any kind, likewise.
    pub answers_per_s: f64,
    /// Latency of orders; of all answers where there is no sale to be had.
    pub latency: Latency,
    /// The same at 0, 50, 75, 90, … percent: [`CURVE`].
    pub curve_ms: Vec<f64>,
    /// Attempts by how they ended.
    pub outcomes: BTreeMap<String, u64>,
    /// Processor time of an answer; depends far less on what else the machine does than any rate.
    pub cpu: Cpu,
    /// Broken laws, by name; empty is clean.
    pub violations: Vec<String>,
    /// The attempts, for plots.
    #[serde(skip)]
    pub fired: Arc<Fired>,
}

/// Processor time of one answer, in µs.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Cpu {
    /// Of the processes asked (behind nginx: the instances).
    pub service_us: f64,
    /// Of the database.
    pub database_us: f64,
    /// Of Redis.
    pub redis_us: f64,
    /// Of this program.
    pub client_us: f64,
}

impl Cpu {
    /// Of all but this program.
    pub fn servers_us(&self) -> f64 {
        self.service_us + self.database_us + self.redis_us
    }
}

/// Where the percentile curves are drawn.
pub const CURVE: [f64; 12] =
    [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9999];

/// Makes runs.
pub struct Runner<'a> {
    /// Where.
    pub ground: &'a Ground,
    /// Who buys.
    pub buyers: &'a Buyers,
    /// The instance that publishes sales.
    pub publisher: Target,
    /// All runs so far.
    pub runs: Vec<Run>,
}

impl Runner<'_> {
    /// Publishes a sale.
    pub async fn publish(&self, strategy: &str, stock: u32) -> anyhow::Result<u64> {
        Ok(publish::flash_sale(&self.ground.access, &self.publisher, strategy, stock).await?)
    }

    /// Makes one run of round `round` and judges it.
    pub async fn run(&mut self, plan: &Plan<'_>, round: usize) -> anyhow::Result<Run> {
        let voucher = match plan.stock {
            Stock::NoSale => None,
            Stock::ForAll => {
                let all = u32::try_from(self.buyers.users.len())?;
                Some(self.publish(plan.strategy, all).await?)
            }
            Stock::Some(stock) => Some(self.publish(plan.strategy, stock).await?),
            Stock::Gone => Some(self.publish(plan.strategy, 1).await?),
        };
        self.run_on(plan, round, voucher).await
    }

    /// Makes one run on a sale that exists.
    pub async fn run_on(
        &mut self,
        plan: &Plan<'_>,
        round: usize,
        voucher: Option<u64>,
    ) -> anyhow::Result<Run> {
        let before = self.cpu_s(plan);
        let fired = self.fire(plan, voucher).await?;
        let count = fired.shots.len().max(1) as f64;
        let spent: Vec<f64> = self
            .cpu_s(plan)
            .iter()
            .zip(before)
            .map(|(s, before)| (s - before) * 1e6 / count)
            .collect();
        let mut run = summary(plan, round, fired);
        if let [service_us, database_us, redis_us, client_us] = spent[..] {
            run.cpu = Cpu { service_us, database_us, redis_us, client_us };
        }
        if let Some(voucher) = voucher {
            let verdict = self.judge(voucher, &run.fired).await?;
            let broken = verdict.violations().into_iter();
            run.violations = broken.map(|(law, count)| format!("{law}: {count}")).collect();
            self.ground.forget_orders().await?;
        }
        self.runs.push(run.clone());
        Ok(run)
    }

    /// Processor time used so far, in seconds: the processes asked, the database, Redis, and we.
    fn cpu_s(&self, plan: &Plan<'_>) -> [f64; 4] {
        let asked = plan.servers.iter().map(|server| server.cpu_s()).sum();
        let of = |pid: Option<u32>| pid.map_or(0.0, stack::cpu_s);
        let Pids { database, redis } = self.ground.pids;
        [asked, of(database), of(redis), stack::cpu_s(std::process::id())]
    }

    async fn fire(&self, plan: &Plan<'_>, voucher: Option<u64>) -> anyhow::Result<Fired> {
        let targets: Vec<SocketAddr> = plan.servers.iter().map(|server| server.address).collect();
        let path = format!("{}/voucher-order/seckill/{}", plan.prefix, voucher.unwrap_or(1));
        let (tokens, plan) = (self.buyers.tokens.clone(), Settings::of(plan));
        let firing = tokio::task::spawn_blocking(move || {
            client::fire(&Volley {
                targets: &targets,
                path: &path,
                tokens: &tokens,
                connections: plan.clients,
                lasting: plan.lasting,
                rate: plan.rate,
                again: plan.again,
            })
        });
        firing.await?
    }

    /// Every reply against every row, once the tables stand still.
    async fn judge(&self, voucher: u64, fired: &Fired) -> anyhow::Result<Verdict> {
        let (quiet, limit) = (Duration::from_millis(150), Duration::from_secs(30));
        let (snapshot, settled) = self.ground.ledger.settle(voucher, quiet, limit).await?;
        anyhow::ensure!(settled, "the tables never stood still");
        let asked: Vec<Asked> = fired
            .shots
            .iter()
            .enumerate()
            .map(|(attempt, shot)| {
                let user_id = self.buyers.users.get(shot.buyer as usize).copied();
                let attempt = u32::try_from(attempt)?;
                Ok(Asked {
                    user_id: user_id.context("a buyer")?,
                    attempt,
                    reply: reply(fired, shot),
                })
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(checker::judge(snapshot.sale, &asked, &snapshot.rows))
    }
}

/// What of a plan is sent to the client's thread.
struct Settings {
    clients: usize,
    lasting: Duration,
    rate: Option<f64>,
    again: bool,
}

impl Settings {
    fn of(plan: &Plan<'_>) -> Self {
        let Plan { clients, lasting, rate, again, .. } = *plan;
        Self { clients, lasting, rate, again }
    }
}

fn reply(fired: &Fired, shot: &client::Shot) -> Reply {
    match shot.end {
        End::Ordered(id) => Reply::Ordered(id),
        End::Lost => Reply::lost(workload::reply::CONNECTION_LOST),
        End::Refused(code) => {
            let code = fired.codes.get(usize::from(code)).map_or("?", |code| code);
            match code {
                "ALREADY_ORDERED" => Reply::AlreadyOrdered(None),
                "UNAVAILABLE" | "OVERLOADED" => Reply::Refused(code.to_owned().into()),
                _ if code == "OUTCOME_UNKNOWN" || code.starts_with("HTTP_5") => {
                    Reply::lost(workload::reply::CONNECTION_LOST)
                }
                _ => Reply::Refused(code.to_owned().into()),
            }
        }
    }
}

fn summary(plan: &Plan<'_>, round: usize, fired: Fired) -> Run {
    let all_count = matches!(plan.stock, Stock::Gone | Stock::NoSale);
    let mut recorder = Recorder::new(3);
    for shot in &fired.shots {
        if all_count || matches!(shot.end, End::Ordered(_)) {
            recorder.record(Duration::from_micros(shot.latency_us.into()));
        }
    }
    Run {
        name: plan.name,
        round,
        clients: plan.clients,
        // What a bare route says is no order.
        orders_per_s: if plan.stock == Stock::NoSale { 0.0 } else { fired.orders_per_s() },
        answers_per_s: fired.answers_per_s(),
        latency: recorder.summary(),
        curve_ms: CURVE.iter().map(|quantile| recorder.at_ms(*quantile)).collect(),
        outcomes: fired.outcomes(),
        cpu: Cpu::default(),
        violations: Vec::new(),
        fired: Arc::new(fired),
    }
}

/// The stock of a sale, looked at every few milliseconds while `work` goes on: (seconds, left).
pub async fn watch_stock<T>(
    ground: &Ground,
    voucher: u64,
    work: impl Future<Output = T>,
) -> (T, Vec<(f64, i64)>) {
    let begin = Instant::now();
    let mut seen = Vec::new();
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return (done, seen),
            _ = tick.tick() => {
                let at = begin.elapsed().as_secs_f64();
                // One look that fails leaves a gap in the line, no more.
                if let Ok(left) = ground.stock(voucher).await {
                    seen.push((at, left));
                }
            }
        }
    }
}
