//! One round: a sale, faults in its middle, and the check.
//!
//! It is checked twice. First when all servers are back: then a "sold out" that was replied while stock is left is
//! false. Then the rest is sold to buyers without an order and to new ones, and everything is checked again: what
//! cannot be bought is stranded.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures_util::future::try_join_all;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use super::{
    buyers::{self, Attempt, Outcome, Workload},
    faults::{self, Fault, INSTANCES, Planned},
    redis_data::RedisData,
    test_cluster::TestCluster,
    verdict::RoundVerdict,
};
use workload::{
    Error,
    buyers::Buyer,
    order_rows::{OrderRows, Snapshot},
    pending::{self, PendingSale},
    publish, sessions,
};

/// How long the sale lasts.
const SALE: Duration = Duration::from_millis(1_500);
/// From one wave of buyers to the next.
const WAVE: Duration = Duration::from_millis(100);
/// Time limit of one attempt.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long the tables must not change before the check.
const QUIET: Duration = Duration::from_millis(250);
/// How long they may take to.
const UNCHANGED_LIMIT: Duration = Duration::from_secs(15);
/// How long the sale of the rest may take. A lock that was left behind has run out by then.
const REST: Duration = Duration::from_secs(15);
/// Buyers' ids begin here, and each round has its own: a lock left behind affects no other round.
const FIRST_BUYER: u64 = 1_000_000_000;
/// Ids a round has at most.
const IDS: u64 = 100_000;

/// What a round is drawn from, and what it needs.
#[derive(Debug, Clone)]
pub struct RoundOptions {
    /// The run's seed.
    pub seed: u64,
    /// Which round, from 1.
    pub number: u32,
    /// The sale's strategy.
    pub strategy: String,
    /// How many rounds this strategy had before.
    pub turn: u32,
    /// Buyers during the sale, three attempts each.
    pub buyers: usize,
}

/// A round that was run and checked.
#[derive(Debug, Clone, Serialize)]
pub struct Round {
    /// Which round, from 1.
    pub number: u32,
    /// The sale's strategy.
    pub strategy: String,
    /// The sale's voucher.
    pub voucher_id: u64,
    /// How many were issued.
    pub stock: u32,
    /// What was done to the servers.
    pub faults: Vec<Planned>,
    /// Attempts by the reply they got, those of the rest's buyers too.
    pub replies: BTreeMap<String, u64>,
    /// Orders that their buyers wanted cancelled.
    pub cancelled: usize,
    /// How many were still left when all servers were back.
    pub rest: i64,
    /// The worse of the two verdicts.
    pub verdict: RoundVerdict,
    /// How long it all took, in seconds.
    pub seconds: f64,
    /// Every request and reply, for checking again.
    #[serde(skip)]
    pub outcome: Outcome,
}

/// Runs a round on servers that work, and leaves them working.
///
/// # Errors
/// An [`Error`] of the set-up. Violations are no error: see [`Round::verdict`].
pub async fn run(
    cluster: &TestCluster,
    order_rows: &OrderRows,
    options: &RoundOptions,
) -> Result<Round, Error> {
    let started = Instant::now();
    let rng = &mut StdRng::seed_from_u64(mix(options.seed, options.number));
    let stock = rng.random_range(options.buyers / 4..options.buyers * 5 / 4).max(1);
    let admits_first = options.strategy == "stream";
    let faults = faults::draw(rng, options.turn as usize, SALE, WAVE, admits_first);
    let cancel_share = if rng.random_bool(0.5) { 0.1 } else { 0.0 };
    let attempts = buyers::draw(rng, options.buyers, INSTANCES, (SALE, WAVE), cancel_share);

    let first = FIRST_BUYER + u64::from(options.number) * IDS;
    // Enough to buy the rest, should all the others have got none or be unable to buy.
    let buyers: Arc<[Buyer]> = sessions::buyers(first, options.buyers + stock)?.into();
    sessions::open(&cluster.access, &buyers).await?;
    let stock_u32 = u32::try_from(stock).unwrap_or(u32::MAX);
    let target = &cluster.targets[options.number as usize % cluster.targets.len()];
    let voucher_id =
        publish::flash_sale(&cluster.access, target, &options.strategy, stock_u32).await?;

    let workload = Workload {
        targets: cluster.targets.clone(),
        voucher_id,
        buyers: buyers.clone(),
        timeout: TIMEOUT,
        connections: 48,
    };
    let begin = Instant::now();
    let injecting = inject(cluster, &buyers, begin, &faults);
    let (injected, bought) = tokio::join!(injecting, buyers::run(&workload, begin, &attempts));
    injected?;
    let mut outcome = bought?;
    cluster.ready().await?;

    let snapshot = wait_until_stable(cluster, order_rows, &workload, &mut outcome).await?;
    let before = RoundVerdict::of(&outcome, &snapshot);
    let rest = snapshot.sale.stock_left;
    let snapshot = sell_rest(cluster, order_rows, &workload, &mut outcome, snapshot).await?;
    let mut verdict = RoundVerdict::of(&outcome, &snapshot);
    verdict.unsold = snapshot.sale.stock_left.max(0);
    if verdict.is_clean() && !before.is_clean() {
        verdict = before;
    }
    sessions::end(&cluster.access, &buyers).await?;

    let mut replies = BTreeMap::new();
    for record in &outcome.records {
        *replies.entry(record.observed.reply.label().to_owned()).or_default() += 1;
    }
    Ok(Round {
        number: options.number,
        strategy: options.strategy.clone(),
        voucher_id,
        stock: stock_u32,
        faults,
        replies,
        cancelled: outcome.cancelled.len(),
        rest,
        verdict,
        seconds: started.elapsed().as_secs_f64(),
        outcome,
    })
}

/// One seed for each round of a run.
fn mix(seed: u64, number: u32) -> u64 {
    seed ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Injects all faults, each at its time. Buyers sign in again when Redis has lost their sessions.
async fn inject(
    cluster: &TestCluster,
    buyers: &[Buyer],
    begin: Instant,
    faults: &[Planned],
) -> Result<(), Error> {
    let injecting = faults.iter().map(async |planned| {
        if planned.what == Fault::KillRedis(RedisData::Old) {
            sleep_until(begin + planned.at / 2).await;
            cluster.take_snapshot().await?;
        }
        cluster.inject(begin, *planned).await?;
        if planned.what.makes_redis_forget() {
            cluster.sign_in_again(buyers).await?;
        }
        Ok::<_, Error>(())
    });
    try_join_all(injecting).await.map(drop)
}

/// Waits until what is pending is decided and the tables no longer change.
async fn wait_until_stable(
    cluster: &TestCluster,
    order_rows: &OrderRows,
    workload: &Workload,
    outcome: &mut Outcome,
) -> Result<Snapshot, Error> {
    let scene = PendingSale {
        access: &cluster.access,
        targets: &cluster.targets,
        buyers: &workload.buyers,
        voucher_id: workload.voucher_id,
        limit: UNCHANGED_LIMIT,
    };
    pending::wait(scene, order_rows, &mut outcome.records).await?;
    let (snapshot, still) =
        order_rows.wait_until_unchanged(workload.voucher_id, QUIET, UNCHANGED_LIMIT).await?;
    if still {
        return Ok(snapshot);
    }
    Err(Error::server("the tables", format!("still change {UNCHANGED_LIMIT:?} after the sale")))
}

/// Sells what is left, to buyers without an order and to new buyers, until nothing is or time is up.
async fn sell_rest(
    cluster: &TestCluster,
    order_rows: &OrderRows,
    workload: &Workload,
    outcome: &mut Outcome,
    mut snapshot: Snapshot,
) -> Result<Snapshot, Error> {
    let begin = Instant::now();
    let mut number = 3;
    while snapshot.sale.stock_left > 0 && begin.elapsed() < REST {
        let have: HashSet<u64> = snapshot.rows.iter().map(|row| row.user_id).collect();
        let left = usize::try_from(snapshot.sale.stock_left).unwrap_or(0);
        let without = |(_, buyer): &(usize, &Buyer)| !have.contains(&buyer.user_id);
        let attempts: Vec<Attempt> = workload
            .buyers
            .iter()
            .enumerate()
            .filter(without)
            // Some may have to wait for a lock that a killed instance left behind: others buy instead.
            .take(left + left / 4 + 8)
            .map(|(buyer, _)| Attempt {
                due: Duration::ZERO,
                buyer,
                attempt: number,
                target: buyer % cluster.targets.len(),
                cancels: false,
            })
            .collect();
        let bought = buyers::run(workload, Instant::now(), &attempts).await?;
        outcome.records.extend(bought.records);
        number += 1;
        snapshot = wait_until_stable(cluster, order_rows, workload, outcome).await?;
    }
    Ok(snapshot)
}
