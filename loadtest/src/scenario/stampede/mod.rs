//! The stampede: a hot key expires while two nodes' readers all want it at once (*breakdown*).
//!
//! Each round warms the key, measures the same burst on the warm key (what the tool and the machine
//! cost by themselves), lets the key expire for real, waits until copies in the nodes' memory are
//! gone too, and lets every reader go at one instant. Loads are counted by the service's metric,
//! and by the database's count of statements as a witness.
//!
//! A load of one row takes well below a millisecond, too little to tell which reader waited for it. So the
//! table is locked while the readers arrive ([`crate::reads::shops::TableLock`]): a reader that waits for
//! the load is answered after the table was unlocked, any other before.

use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use testkit::wait::poll;
use tokio::time::{Instant as TokioInstant, sleep, sleep_until};

use self::{
    check::{Round, check},
    report::{Line, Report},
};
use super::check_result::CheckResult;
use crate::{
    options::Instances,
    reads::{Answer, Nodes, Read, ReadStrategy, Readers, RedisKeys, ShopTable},
};
use workload::{Error, Target, latency::Latency};

pub mod check;
pub mod report;

/// Extra rounds for a read strategy that did not show what it has to show.
pub const EXTRA_ROUNDS: u32 = 4;
/// Time limit of one read.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Between the making of a burst and its beginning.
const LEAD: Duration = Duration::from_millis(100);
/// Reads by which each target is tried out: a proxy before two instances is found out by 15 of 16.
const PROBES: usize = 4;
/// Longest wait for rebuilds in the background.
const REBUILD_LIMIT: Duration = Duration::from_secs(5);
/// From one look for them to the next.
const REBUILD_PAUSE: Duration = Duration::from_millis(50);

/// Options of a stampede.
#[derive(Debug, Clone, Args)]
pub struct StampedeOptions {
    /// Readers per instance, each with a connection of its own
    #[arg(long, default_value_t = 1000, value_parser = value_parser!(u32).range(1..=30_000))]
    pub waiters: u32,
    /// Expiries per read strategy
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// The read strategies, by turns in each round
    #[arg(
        long,
        alias = "policies",
        value_delimiter = ',',
        value_name = "NAMES",
        default_value = "cache-aside,null-caching,mutex,logical-expiry,layered"
    )]
    pub read_strategies: Vec<ReadStrategy>,
    /// How long loads are made to last, in milliseconds, by locking the table of shops against
    /// readers; 0: as long as they take
    #[arg(long, default_value_t = 300, value_name = "MS", value_parser = value_parser!(u64).range(0..=800))]
    pub slow_load: u64,
    /// How long an instance may serve a copy from its memory, in milliseconds
    #[arg(long, default_value_t = 1000, value_name = "MS")]
    pub local_ttl_ms: u64,
    /// The hot shop
    #[arg(long, default_value_t = 1, value_name = "ID")]
    pub shop_id: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub instances: Instances,
}

/// What a run needs at hand.
struct Run<'a> {
    options: &'a StampedeOptions,
    keys: RedisKeys,
    table: ShopTable,
    nodes: Nodes,
    readers: Readers,
    query: Duration,
}

/// Runs all rounds of all read strategies.
///
/// # Errors
/// An [`Error`] of the set-up; a read strategy that breaks its promise is in the [`Report`].
pub async fn run(options: &StampedeOptions) -> Result<Report, Error> {
    let progress = options.instances.progress;
    let table = ShopTable::open(&options.instances.access.database_url).await?;
    let keys = RedisKeys::open(&options.instances.access).await?;
    table.name(options.shop_id).await?;
    let query = table.query_time(options.shop_id).await?;
    let mut nodes = Nodes::new(&options.instances.targets);
    nodes.layers().await?;
    let total = options.waiters as usize * options.instances.targets.len();
    progress.say(&format!("opening {total} connections"));
    let readers = Readers::open(&options.instances.targets, options.waiters, READ_LIMIT).await?;
    let mut run = Run { options, keys, table, nodes, readers, query };
    run.insist_on_lab().await?;

    let mut seen: Vec<StrategyRounds> =
        options.read_strategies.iter().map(|strategy| StrategyRounds::new(*strategy)).collect();
    for number in 1..=options.rounds {
        for seen in &mut seen {
            run.round(number, seen).await?;
        }
    }
    for seen in &mut seen {
        for extra in 1..=EXTRA_ROUNDS {
            if !matches!(seen.check(options), CheckResult::DidNotShow(_)) {
                break;
            }
            run.round(options.rounds + extra, seen).await?;
        }
    }
    run.keys.remove(&[options.shop_id]).await?;
    let lines: Vec<_> = seen.into_iter().map(|seen| seen.line(options)).collect();
    Ok(Report {
        scenario: "stampede",
        targets: options.instances.urls(),
        waiters: options.waiters as usize,
        shop_id: options.shop_id,
        slow_load_ms: options.slow_load,
        query_ms: query.as_secs_f64() * 1e3,
        lines,
    })
}

/// All rounds of one read strategy so far.
struct StrategyRounds {
    strategy: ReadStrategy,
    rounds: Vec<Round>,
    warm: Vec<Duration>,
    expired: Vec<Duration>,
}

impl StrategyRounds {
    fn new(strategy: ReadStrategy) -> Self {
        Self { strategy, rounds: Vec::new(), warm: Vec::new(), expired: Vec::new() }
    }

    fn check(&self, options: &StampedeOptions) -> CheckResult {
        check(self.strategy, &self.rounds, Duration::from_millis(options.slow_load))
    }

    fn line(self, options: &StampedeOptions) -> Line {
        Line {
            strategy: self.strategy,
            check: self.check(options),
            warm: Latency::of(self.warm),
            expired: Latency::of(self.expired),
            rounds: self.rounds,
        }
    }
}

impl Run<'_> {
    /// Read strategies can only be told apart on a server that obeys the header, and loads only be
    /// counted where reads and metrics meet the same instance each time.
    async fn insist_on_lab(&mut self) -> Result<(), Error> {
        let id = self.options.shop_id;
        for target in self.options.instances.targets.iter().flat_map(|target| [target; PROBES]) {
            let one = std::slice::from_ref(target);
            let mut node = Nodes::new(one);
            self.keys.remove(&[id]).await?;
            let before = node.layers().await?.loads;
            self.read_each(one, ReadStrategy::LogicalExpiry).await?;
            if !self.keys.is_fresh(id).await? {
                return Err(Error::Usage(format!(
                    "{target} did not store a logical expiry when asked to by x-lab-cache: is it a \
                     server started with --lab, on the Redis of REDIS_URL?"
                )));
            }
            if node.layers().await?.loads <= before {
                return Err(Error::Usage(format!(
                    "{target} did not count a load in its metrics: --targets must be the instances \
                     themselves, not a proxy before them"
                )));
            }
        }
        Ok(())
    }

    /// Until no instance can have a copy of the shop in its memory.
    async fn forget_local(&self) {
        sleep(Duration::from_millis(self.options.local_ttl_ms) + Duration::from_millis(200)).await;
    }

    /// Reads the shop once on each target.
    async fn read_each(&self, targets: &[Target], strategy: ReadStrategy) -> Result<(), Error> {
        let id = self.options.shop_id;
        let mut readers = Readers::open(targets, 1, READ_LIMIT).await?;
        for read in readers.burst(id, &strategy.read(id), Instant::now()).await? {
            if !matches!(read.answer, Answer::Found { id: found, .. } if found == id) {
                return Err(Error::Unreachable {
                    url: targets[read.target].to_string(),
                    what: "a read of the shop",
                    reason: format!("{:?}", read.answer),
                });
            }
        }
        Ok(())
    }

    async fn round(&mut self, number: u32, seen: &mut StrategyRounds) -> Result<(), Error> {
        let (strategy, id) = (seen.strategy, self.options.shop_id);
        let call = strategy.read(id);
        self.keys.remove(&[id]).await?;
        self.forget_local().await;
        self.read_each(&self.options.instances.targets, strategy).await?;

        self.readers.reopen().await?;
        let warm = self.readers.burst(id, &call, Instant::now() + LEAD).await?;

        if strategy == ReadStrategy::LogicalExpiry {
            if !self.keys.expire_logically(id).await? {
                return Err(Error::Usage(format!(
                    "cache:shop:{id} holds no logical expiry although it was read that way"
                )));
            }
        } else {
            self.keys.expire(id).await?;
        }
        self.forget_local().await;
        self.readers.reopen().await?;

        let layers = self.nodes.layers().await?;
        let statements = self.table.statements().await?;
        let slow = Duration::from_millis(self.options.slow_load);
        let lock = if slow.is_zero() { None } else { Some(self.table.lock().await?) };
        let begin = Instant::now() + LEAD;
        let unlocking = async {
            let Some(lock) = lock else { return Ok(Duration::ZERO) };
            sleep_until(TokioInstant::from_std(begin + slow)).await;
            lock.unlock().await?;
            Ok::<_, Error>(begin.elapsed())
        };
        let (reads, unlocked) = tokio::join!(self.readers.burst(id, &call, begin), unlocking);
        let (reads, unlocked) = (reads?, unlocked?);
        let rebuilt = self.wait_for_rebuild(strategy).await?;
        let loads = self.nodes.layers().await?.since(layers).loads;
        let statements = self.table.statements().await?.saturating_sub(statements);
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let wanted =
            |read: &&Read| matches!(read.answer, Answer::Found { id: found, .. } if found == id);
        let round = Round {
            loads,
            statements,
            rebuilt,
            load_ms: ms(unlocked + self.query),
            warm: Latency::of(warm.iter().map(Read::latency)),
            expired: Latency::of(reads.iter().map(Read::latency)),
            failed: (reads.len() - reads.iter().filter(wanted).count()) as u64,
            failed_warm: (warm.len() - warm.iter().filter(wanted).count()) as u64,
        };
        self.options.instances.progress.say(&format!(
            "round {number}, {strategy}: {loads} loads ({statements} statements), longest wait {:.0} ms, \
             {:.0} ms on the warm key",
            round.expired.max_ms, round.warm.max_ms
        ));
        seen.warm.extend(warm.iter().map(Read::latency));
        seen.expired.extend(reads.iter().map(Read::latency));
        seen.rounds.push(round);
        Ok(())
    }

    /// Waits for rebuilds in the background; returns whether the key is fresh again.
    async fn wait_for_rebuild(&mut self, strategy: ReadStrategy) -> Result<bool, Error> {
        let (id, mut fresh) = (self.options.shop_id, false);
        poll(REBUILD_LIMIT, REBUILD_PAUSE, async || {
            fresh = match strategy {
                ReadStrategy::LogicalExpiry => self.keys.is_fresh(id).await?,
                _ => self.keys.value(id).await?.is_some(),
            };
            let running = self.nodes.sum("seckill_cache_loads_running").await?;
            Ok::<_, Error>((fresh && running == 0).then_some(()))
        })
        .await?;
        Ok(fresh)
    }
}
