//! Overload: what still gets through when several times as much comes in as can be done.
//!
//! First the peak: a closed loop that keeps the service busy, whose orders per second count. Then an
//! open loop at a multiple of that: purchases are due at fixed times whatever the service does, and
//! latency counts from then. Every attempt is a buyer's first in its sale, and every sale has enough
//! for all, so nothing but the service's own bounds can refuse it. New sales are published as the old
//! ones are used up.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use self::{
    judge::judge,
    pump::{Pump, Shot},
};
use super::standing::{Outcome, Standing};
use crate::reads::Nodes;
use workload::{
    Error, Target,
    burst::{self, BurstOptions},
    checker, descriptors,
    latency::Latency,
    ledger::Ledger,
    reply::Reply,
};

pub mod judge;
mod pump;
mod show;

/// Connections of the closed loop that finds the peak.
const PEAK_CONNECTIONS: usize = 256;
/// Connections of the open loop when none are asked for: more than there are places in the service, or
/// it could refuse nobody.
const CONNECTIONS: usize = 4096;
/// Left out of each measurement: connections and caches warm up.
const WARM_UP: Duration = Duration::from_secs(1);

/// An overload to run.
#[derive(Debug, Clone)]
pub struct OverloadOptions {
    /// Who buys what, and where; its stock and tries do not matter here.
    pub burst: BurstOptions,
    /// How long each of the two loads lasts.
    pub duration: Duration,
    /// The open loop's rate, as a multiple of the peak's orders per second.
    pub factor: f64,
    /// The instances, asked for their memory.
    pub nodes: Vec<Target>,
}

/// One load, as the clients saw it.
#[derive(Debug, Clone, Serialize)]
pub struct Load {
    /// Attempts per second that were meant to be made; `None` in a closed loop.
    pub offered_per_s: Option<f64>,
    /// Attempts made.
    pub requests: u64,
    /// Due, but never made, because all connections were busy to the end.
    pub unsent: u64,
    /// Orders per second, by when their answers came, without the warm-up.
    pub orders_per_s: f64,
    /// Attempts that became orders.
    pub accepted: u64,
    /// Attempts that were told to come back later.
    pub refused: u64,
    /// Refusals that did not say when.
    pub without_retry_after: u64,
    /// Attempts of a user whose last one, in another sale, was still under way: too few buyers.
    pub busy: u64,
    /// Everything else: no answer, or one that is neither.
    pub failed: u64,
    /// Attempts by the reply they got.
    pub replies: BTreeMap<String, u64>,
    /// Latency of the orders: from the due time in an open loop.
    pub latency_accepted: Latency,
    /// Latency of the refusals.
    pub latency_refused: Latency,
    /// Largest memory of all instances together, bytes, before and during the load.
    pub memory: Option<(u64, u64)>,
}

/// An overload that was run and judged.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Always `overload`.
    pub scenario: &'static str,
    /// The sales' strategy.
    pub strategy: String,
    /// The base URLs fired at.
    pub targets: Vec<String>,
    /// Users who bought.
    pub buyers: usize,
    /// Sales used.
    pub sales: usize,
    /// The open loop's rate as a multiple of the peak.
    pub factor: f64,
    /// The closed loop.
    pub peak: Load,
    /// The open loop.
    pub overload: Load,
    /// Orders per second under overload, as a share of the peak.
    pub goodput: f64,
    /// Broken laws of the checker, over all sales.
    pub violations: BTreeMap<&'static str, i64>,
    /// The judgement.
    pub standing: Standing,
    /// What it amounts to.
    pub outcome: Outcome,
}

/// Finds the peak, overloads, judges.
///
/// # Errors
/// A [`Error`] of the set-up.
pub async fn run(options: &OverloadOptions) -> Result<Report, Error> {
    let burst = &options.burst;
    let ledger = Ledger::open(&burst.access.database_url).await?;
    let connections = burst.connections.unwrap_or(CONNECTIONS).max(burst.targets.len());
    descriptors::reserve(connections)?;
    let buyers = burst::prepare(burst).await?;
    let mut pump = Pump::open(burst, buyers.clone(), connections).await?;
    let mut nodes = Nodes::new(&options.nodes);

    burst.progress.say("finding the peak");
    let closed = pump.closed(PEAK_CONNECTIONS.min(connections), options.duration);
    let (shots, memory) = watched(&mut nodes, closed).await;
    let peak = load(&shots?, None, options.duration, memory);
    let rate = (peak.orders_per_s * options.factor).max(1.0);
    burst
        .progress
        .say(&format!("the peak is {:.0} orders/s; now {rate:.0} purchases/s", peak.orders_per_s));
    let (shots, memory) = watched(&mut nodes, pump.open_loop(rate, options.duration)).await;
    let overload = load(&shots?, Some(rate), options.duration, memory);

    let goodput = overload.orders_per_s / peak.orders_per_s.max(1e-6);
    let (sales, asked) = pump.end();
    let violations = check(burst, &ledger, &sales, asked).await?;
    let mut report = Report {
        scenario: "overload",
        strategy: burst.strategy.clone(),
        targets: burst.targets.iter().map(Target::to_string).collect(),
        buyers: buyers.len(),
        sales: sales.len(),
        factor: options.factor,
        peak,
        overload,
        goodput,
        violations,
        standing: Standing::Holds,
        outcome: Outcome::Clean,
    };
    report.standing = judge(&report);
    report.outcome = Outcome::of([&report.standing]);
    Ok(report)
}

/// Runs a load, and meanwhile watches the instances' memory; instances that tell none are let be.
async fn watched<T>(nodes: &mut Nodes, load: impl Future<Output = T>) -> (T, Option<(u64, u64)>) {
    const MEMORY: &str = "process_resident_memory_bytes";
    let before = nodes.sum(MEMORY).await.ok();
    let mut most = before;
    let mut load = std::pin::pin!(load);
    let mut tick = interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let done = loop {
        tokio::select! {
            done = &mut load => break done,
            _ = tick.tick() => most = most.max(nodes.sum(MEMORY).await.ok()),
        }
    };
    most = most.max(nodes.sum(MEMORY).await.ok());
    (done, before.zip(most))
}

/// What the clients saw.
fn load(shots: &[Shot], rate: Option<f64>, duration: Duration, memory: Option<(u64, u64)>) -> Load {
    let counted = |shot: &&Shot| shot.ended >= WARM_UP && shot.ended <= duration;
    let window = duration.saturating_sub(WARM_UP).as_secs_f64().max(1e-6);
    let of = |kind| shots.iter().filter(move |shot| Kind::of(shot) == kind);
    let count = |kind| of(kind).count() as u64;
    let mut replies = BTreeMap::new();
    for shot in shots {
        *replies.entry(shot.reply.label().to_owned()).or_default() += 1;
    }
    let requests = shots.len() as u64;
    let due = rate.map_or(0, |rate| (rate * duration.as_secs_f64()) as u64);
    Load {
        offered_per_s: rate,
        requests,
        unsent: due.saturating_sub(requests),
        orders_per_s: of(Kind::Accepted).filter(counted).count() as f64 / window,
        accepted: count(Kind::Accepted),
        refused: count(Kind::Refused),
        without_retry_after: of(Kind::Refused).filter(|shot| !shot.retry_after).count() as u64,
        busy: count(Kind::Busy),
        failed: count(Kind::Failed),
        replies,
        latency_accepted: Latency::of(of(Kind::Accepted).map(|shot| shot.latency)),
        latency_refused: Latency::of(of(Kind::Refused).map(|shot| shot.latency)),
        memory,
    }
}

/// What became of an attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Accepted,
    Refused,
    Busy,
    Failed,
}

impl Kind {
    fn of(shot: &Shot) -> Self {
        match &shot.reply {
            Reply::Ordered(_) => Self::Accepted,
            Reply::Refused(code) => match code.as_ref() {
                "OVERLOADED" | "TOO_MANY_REQUESTS" | "UNAVAILABLE" => Self::Refused,
                "LOCK_BUSY" => Self::Busy,
                _ => Self::Failed,
            },
            _ => Self::Failed,
        }
    }
}

/// Holds every reply against every row, sale by sale; sums up the laws that were broken.
async fn check(
    options: &BurstOptions,
    ledger: &Ledger,
    sales: &[u64],
    mut asked: Vec<Vec<checker::Asked>>,
) -> Result<BTreeMap<&'static str, i64>, Error> {
    let mut broken = BTreeMap::new();
    asked.resize(sales.len(), Vec::new());
    for (voucher_id, asked) in sales.iter().zip(&asked).rev() {
        let quiet = Duration::from_millis(if asked.is_empty() { 0 } else { 200 });
        let (snapshot, _) = ledger.settle(*voucher_id, quiet, options.settle).await?;
        for (law, count) in checker::judge(snapshot.sale, asked, &snapshot.rows).violations() {
            *broken.entry(law).or_default() += count;
        }
    }
    Ok(broken)
}

/// Who buys.
type Buyers = Arc<[workload::buyers::Buyer]>;
