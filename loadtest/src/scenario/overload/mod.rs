//! Overload: what still gets through when several times as much comes in as can be done.
//!
//! First the peak: a closed loop that keeps the service busy, whose orders per second count. Then an
//! open loop at a multiple of that: purchases are due at fixed times whatever the service does, and
//! latency counts from then. Every attempt is a buyer's first in its sale, and every sale has enough
//! for all, so nothing but the service's own limits can refuse it. New sales are published as the old
//! ones are used up.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use self::{
    check::check,
    generator::{Attempt, Generator},
    report::{Load, Report},
};
use super::check_result::CheckResult;
use crate::reads::Nodes;
use workload::{
    Error, Target,
    burst::{self, BurstOptions},
    checker, descriptors,
    latency::Latency,
    order_rows::OrderRows,
    reply::Reply,
};

pub mod check;
mod generator;
pub mod report;

/// Connections of the closed loop that finds the peak.
const PEAK_CONNECTIONS: usize = 256;
/// Connections of the open loop when none are asked for: more than the service admits at once,
/// or it would refuse nothing.
const CONNECTIONS: usize = 4096;
/// Left out of each measurement: connections and caches warm up.
const WARM_UP: Duration = Duration::from_secs(1);

/// An overload to run.
#[derive(Debug, Clone)]
pub struct OverloadOptions {
    /// The buyers, their targets and the strategy; its stock and tries do not matter here.
    pub burst: BurstOptions,
    /// How long each of the two loads lasts.
    pub duration: Duration,
    /// The open loop's rate, as a multiple of the peak's orders per second.
    pub factor: f64,
    /// The instances, asked for their memory.
    pub nodes: Vec<Target>,
}

/// Finds the peak, overloads, checks.
///
/// # Errors
/// An [`Error`] of the set-up.
pub async fn run(options: &OverloadOptions) -> Result<Report, Error> {
    let burst = &options.burst;
    let order_rows = OrderRows::open(&burst.access.database_url).await?;
    let connections = burst.connections.unwrap_or(CONNECTIONS).max(burst.targets.len());
    descriptors::reserve(connections)?;
    let buyers = burst::prepare(burst).await?;
    let mut generator = Generator::open(burst, buyers.clone(), connections).await?;
    let mut nodes = Nodes::new(&options.nodes);

    burst.progress.say("finding the peak");
    let closed = generator.closed(PEAK_CONNECTIONS.min(connections), options.duration);
    let (attempts, memory) = watched(&mut nodes, closed).await;
    let peak = load(&attempts?, None, options.duration, memory);
    let rate = (peak.orders_per_s * options.factor).max(1.0);
    burst
        .progress
        .say(&format!("the peak is {:.0} orders/s; now {rate:.0} purchases/s", peak.orders_per_s));
    let (attempts, memory) = watched(&mut nodes, generator.open_loop(rate, options.duration)).await;
    let overload = load(&attempts?, Some(rate), options.duration, memory);

    let goodput = overload.orders_per_s / peak.orders_per_s.max(1e-6);
    let (sales, asked) = generator.end();
    let violations = broken_invariants(burst, &order_rows, &sales, asked).await?;
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
        check: CheckResult::Holds,
    };
    report.check = check(&report);
    Ok(report)
}

/// Runs a load, and meanwhile watches the instances' memory; instances without that metric are left out.
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
fn load(
    attempts: &[Attempt],
    rate: Option<f64>,
    duration: Duration,
    memory: Option<(u64, u64)>,
) -> Load {
    let counted = |attempt: &&Attempt| attempt.ended >= WARM_UP && attempt.ended <= duration;
    let window = duration.saturating_sub(WARM_UP).as_secs_f64().max(1e-6);
    let of = |kind| attempts.iter().filter(move |attempt| Kind::of(attempt) == kind);
    let count = |kind| of(kind).count() as u64;
    let mut replies = BTreeMap::new();
    for attempt in attempts {
        *replies.entry(attempt.reply.label().to_owned()).or_default() += 1;
    }
    let requests = attempts.len() as u64;
    let due = rate.map_or(0, |rate| (rate * duration.as_secs_f64()) as u64);
    Load {
        offered_per_s: rate,
        requests,
        unsent: due.saturating_sub(requests),
        orders_per_s: of(Kind::Accepted).filter(counted).count() as f64 / window,
        accepted: count(Kind::Accepted),
        refused: count(Kind::Refused),
        without_retry_after: of(Kind::Refused).filter(|attempt| !attempt.retry_after).count()
            as u64,
        busy: count(Kind::Busy),
        failed: count(Kind::Failed),
        replies,
        latency_accepted: Latency::of(of(Kind::Accepted).map(|attempt| attempt.latency)),
        latency_refused: Latency::of(of(Kind::Refused).map(|attempt| attempt.latency)),
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
    fn of(attempt: &Attempt) -> Self {
        match &attempt.reply {
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

/// Checks every reply against every row, sale by sale; sums up the violations.
async fn broken_invariants(
    options: &BurstOptions,
    order_rows: &OrderRows,
    sales: &[u64],
    mut asked: Vec<Vec<checker::ObservedReply>>,
) -> Result<BTreeMap<&'static str, i64>, Error> {
    let mut broken = BTreeMap::new();
    asked.resize(sales.len(), Vec::new());
    for (voucher_id, asked) in sales.iter().zip(&asked).rev() {
        let quiet = Duration::from_millis(if asked.is_empty() { 0 } else { 200 });
        let (snapshot, _) =
            order_rows.wait_until_unchanged(*voucher_id, quiet, options.wait_limit).await?;
        for (invariant, count) in checker::judge(snapshot.sale, asked, &snapshot.rows).violations()
        {
            *broken.entry(invariant).or_default() += count;
        }
    }
    Ok(broken)
}
