//! The stampede: a hot key expires while two instances' readers all want it at once (*breakdown*).
//!
//! Each round warms the key, measures the same burst on the warm key (what the tool and the machine cost by themselves),
//! lets the key expire for real, waits until copies in the instances' memory are gone too, and lets every reader go at one
//! instant. Loads are counted by the service's metric, and by the database's count of statements as a witness.
//!
//! A load of one row takes well below a millisecond, too little to tell which reader waited for it. So the table is locked
//! while the readers arrive ([`super::shops::TableLock`]): a reader that waits for the load is answered after the table
//! was unlocked, any other before.

use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use testkit::wait::poll;
use tokio::time::{sleep, sleep_until};
use workload::{Error, Target, driver::Connections, latency::Latency, live::Progress};

use super::{
    keys::RedisKeys,
    metrics::{LOADS_RUNNING, Nodes},
    place::{Place, connect},
    reads::{Read, ReadStrategy, read_all},
    shops::{SHOP, ShopTable},
};
use crate::report::{Check, CheckResult, Checked};

/// What a reader with the mutex may wait beyond one load, and a reader with logical expiry at all, in milliseconds.
const GRACE_MS: f64 = 50.0;
/// Loads that show a stampede, as a share of the readers: 100 of 2,000.
const SHOWN_SHARE: f64 = 0.05;
/// Statements of other clients that the database may count during a round.
const OTHERS: u64 = 20;
/// How long an instance may serve a copy from its memory.
const LOCAL_TTL: Duration = Duration::from_secs(1);
/// Between the making of a burst and its beginning.
const LEAD: Duration = Duration::from_millis(100);
/// Reads by which each target is tried out: a proxy before two instances is found out by 15 of 16.
const PROBES: usize = 4;
/// Longest wait for rebuilds in the background, and the pause between two looks.
const REBUILD_LIMIT: Duration = Duration::from_secs(5);
const REBUILD_PAUSE: Duration = Duration::from_millis(50);

/// Options of a stampede.
#[derive(Debug, Clone, Args)]
pub struct StampedeOptions {
    /// Readers per instance, each with a connection of its own
    #[arg(long, default_value_t = 1000, value_parser = value_parser!(u32).range(1..=30_000))]
    waiters: u32,
    /// Expiries per read strategy
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// The read strategies, by turns in each round
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAMES",
        default_value = "cache-aside,null-caching,mutex,logical-expiry,layered"
    )]
    read_strategies: Vec<ReadStrategy>,
    /// How long loads are made to last, in milliseconds, by locking the table of shops against
    /// readers; 0: as long as they take
    #[arg(long, default_value_t = 300, value_name = "MS", value_parser = value_parser!(u64).range(0..=800))]
    slow_load: u64,
}

/// One expiry.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    /// Database loads, by the service's metric, over all instances.
    loads: u64,
    /// Prepared statements the database executed meanwhile, of whatever kind.
    statements: u64,
    /// Whether the key was fresh again afterwards.
    rebuilt: bool,
    /// From the beginning of the burst to the earliest possible end of a load, in milliseconds.
    load_ms: f64,
    /// The burst on the warm key, which shows what the burst itself takes.
    warm: Latency,
    /// The burst on the expired key.
    expired: Latency,
    /// Readers that did not get the shop, of both bursts.
    failed: u64,
}

impl Round {
    /// The longest wait, less what the same burst takes on the warm key, in milliseconds.
    fn wait_ms(&self) -> f64 {
        (self.expired.max_ms - self.warm.max_ms).max(0.0)
    }
}

/// What a run needs at hand.
struct Run<'a> {
    options: &'a StampedeOptions,
    place: &'a Place,
    keys: RedisKeys,
    table: ShopTable,
    nodes: Nodes,
    query: Duration,
}

/// Runs all rounds of all read strategies.
pub(super) async fn run(options: &StampedeOptions, place: &Place) -> Result<Checked, Error> {
    let (table, keys) = place.open().await?;
    table.name(SHOP).await?;
    let query = table.query_time(SHOP).await?;
    let nodes = Nodes::new(&place.targets);
    place.progress.say("opening connections");
    let mut readers = place.connect(options.waiters).await?;
    let mut run = Run { options, place, keys, table, nodes, query };
    run.insist_on_lab().await?;
    let mut seen: Vec<(ReadStrategy, Vec<Round>)> =
        options.read_strategies.iter().map(|strategy| (*strategy, Vec::new())).collect();
    for _ in 0..options.rounds {
        for (strategy, rounds) in &mut seen {
            rounds.push(run.round(&mut readers, *strategy).await?);
        }
    }
    run.keys.remove(&[SHOP]).await?;
    let load = match options.slow_load {
        0 => format!("A load takes {:.2} ms.", query.as_secs_f64() * 1e3),
        ms => format!(
            "The table of shops is locked for {ms} ms from then on, so that loads last as long."
        ),
    };
    let rounds = seen.iter().flat_map(|(_, rounds)| rounds);
    let warm_ms = rounds.map(|round| round.warm.max_ms).fold(0.0, f64::max);
    Ok(Checked {
        scenario: "cache stampede",
        heading: format!(
            "Shop {} expires under {} readers on each of {}.",
            SHOP,
            options.waiters,
            place.urls()
        ),
        figures: Vec::new(),
        notes: format!(
            "Latency runs from the instant at which all readers are let go, so it holds what the burst costs this tool and\n\
             this machine: up to {warm_ms:.0} ms, as the same burst on the warm key shows. The wait is what is longer.\n{load}"
        ),
        checks: seen
            .iter()
            .flat_map(|(strategy, rounds)| check(*strategy, rounds, options))
            .collect(),
    })
}

impl Run<'_> {
    /// Read strategies can only be told apart on a server that obeys the header, and loads only be counted where reads and
    /// metrics meet the same instance each time.
    async fn insist_on_lab(&mut self) -> Result<(), Error> {
        for target in self.place.targets.iter().flat_map(|target| [target; PROBES]) {
            let one = std::slice::from_ref(target);
            let mut node = Nodes::new(one);
            self.keys.remove(&[SHOP]).await?;
            let before = node.layers().await?;
            self.read_each(one, ReadStrategy::LogicalExpiry).await?;
            if !self.keys.is_fresh(SHOP, true).await? {
                return Err(Error::Usage(format!(
                    "{target} did not store a logical expiry when asked to by x-lab-cache: is it a \
                     server started with --lab, on the Redis of REDIS_URL?"
                )));
            }
            if node.layers().await?.since(before).loads() == 0 {
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
        sleep(LOCAL_TTL + Duration::from_millis(200)).await;
    }

    /// Reads the shop once on each target.
    async fn read_each(&self, targets: &[Target], strategy: ReadStrategy) -> Result<(), Error> {
        let mut one_each = connect(targets, 1).await?;
        for read in self.burst(&mut one_each, strategy, Instant::now()).await? {
            if !read.answer.is_shop(SHOP) {
                return Err(Error::Unreachable {
                    url: targets[read.target].to_string(),
                    what: "a read of the shop",
                    reason: format!("{:?}", read.answer),
                });
            }
        }
        Ok(())
    }

    /// A read of the shop on every connection, all at one instant.
    async fn burst(
        &self,
        connections: &mut Connections,
        strategy: ReadStrategy,
        begin: Instant,
    ) -> Result<Vec<Read>, Error> {
        let ids = vec![SHOP; connections.count()];
        read_all(connections, Some(strategy), ids, Some(begin), (Progress::Silent, "")).await
    }

    async fn round(
        &mut self,
        readers: &mut Connections,
        strategy: ReadStrategy,
    ) -> Result<Round, Error> {
        self.keys.remove(&[SHOP]).await?;
        self.forget_local().await;
        self.read_each(&self.place.targets, strategy).await?;
        readers.open().await?;
        let warm = self.burst(readers, strategy, Instant::now() + LEAD).await?;

        let logically = strategy == ReadStrategy::LogicalExpiry;
        if logically {
            self.keys.expire_logically(SHOP).await?;
        } else {
            self.keys.expire(SHOP).await?;
        }
        self.forget_local().await;
        readers.open().await?;

        let layers = self.nodes.layers().await?;
        let statements = self.table.statements().await?;
        let slow = Duration::from_millis(self.options.slow_load);
        let lock = if slow.is_zero() { None } else { Some(self.table.lock().await?) };
        let begin = Instant::now() + LEAD;
        let unlocking = async {
            let Some(lock) = lock else { return Ok(Duration::ZERO) };
            sleep_until((begin + slow).into()).await;
            lock.unlock().await?;
            Ok::<_, Error>(begin.elapsed())
        };
        let (reads, unlocked) = tokio::join!(self.burst(readers, strategy, begin), unlocking);
        let (reads, unlocked) = (reads?, unlocked?);
        let rebuilt = self.is_rebuilt(logically).await?;
        let latency = |reads: &[Read]| Latency::of(reads.iter().map(Read::latency));
        let round = Round {
            loads: self.nodes.layers().await?.since(layers).loads(),
            statements: self.table.statements().await?.saturating_sub(statements),
            rebuilt,
            load_ms: (unlocked + self.query).as_secs_f64() * 1e3,
            warm: latency(&warm),
            expired: latency(&reads),
            failed: warm.iter().chain(&reads).filter(|read| !read.answer.is_shop(SHOP)).count()
                as u64,
        };
        let (loads, wait) = (round.loads, round.wait_ms());
        self.place.progress.say(&format!("{strategy}: {loads} loads, longest wait {wait:.0} ms"));
        Ok(round)
    }

    /// Waits for rebuilds in the background; whether the key is fresh again.
    async fn is_rebuilt(&mut self, logically: bool) -> Result<bool, Error> {
        let mut fresh = false;
        poll(REBUILD_LIMIT, REBUILD_PAUSE, async || {
            fresh = self.keys.is_fresh(SHOP, logically).await?;
            let running = self.nodes.gauge(LOADS_RUNNING).await?;
            Ok::<_, Error>((fresh && running == 0).then_some(()))
        })
        .await?;
        Ok(fresh)
    }
}

/// Checks all rounds of a read strategy: each by what the strategy promises about an expiry.
fn check(strategy: ReadStrategy, rounds: &[Round], options: &StampedeOptions) -> Vec<Check> {
    let what = |what: &str| format!("{strategy}: {what}");
    let ms = |ms: f64| format!("{ms:.0} ms");
    let longest = |of: fn(&Round) -> f64| rounds.iter().map(of).fold(f64::MIN, f64::max);
    let wait = longest(Round::wait_ms);
    let waits = Check::shown(what("longest wait"), ms(wait));
    let each = |of: fn(&Round) -> u64| range(rounds.iter().map(of));
    let loads = Check::shown(what("loads per expiry"), each(|round| round.loads));
    // A stampede must show where nothing prevents it; a longer --slow-load shows more.
    if strategy == ReadStrategy::CacheAside {
        let readers = rounds.first().map_or(0, |round| round.expired.count);
        let enough = ((SHOWN_SHARE * readers as f64).ceil() as u64).max(2);
        let shown = rounds.iter().any(|round| round.loads >= enough);
        let (measured, allowed) = (&loads.measured, format!("once {enough}"));
        let check = Check::new(&loads.what, measured, allowed, shown);
        return vec![check.or(CheckResult::DidNotShow), waits];
    }
    if strategy == ReadStrategy::NullCaching {
        return vec![loads, waits];
    }
    let all = |holds: fn(&Round) -> bool| rounds.iter().all(holds);
    let failed = rounds.iter().map(|round| round.failed).sum();
    let mut checks = vec![
        Check::new(loads.what, loads.measured, 1, all(|round| round.loads == 1)),
        Check::new(
            what("statements of the database"),
            each(|round| round.statements),
            format!("1 + {OTHERS}"),
            all(|round| round.statements <= round.loads + OTHERS),
        ),
        Check::new(
            what("keys rebuilt"),
            rounds.iter().filter(|round| round.rebuilt).count(),
            rounds.len(),
            all(|round| round.rebuilt),
        ),
        Check::none(what("readers without the shop"), failed),
        waits,
    ];
    match strategy {
        ReadStrategy::Mutex => {
            let beyond = longest(|round| round.wait_ms() - round.load_ms);
            let what = what("longest wait beyond the load");
            checks.push(Check::new(what, ms(beyond.max(0.0)), ms(GRACE_MS), beyond <= GRACE_MS));
        }
        ReadStrategy::LogicalExpiry if options.slow_load == 0 => {
            let what = what("longest wait, with loads as fast as they are");
            checks.push(Check::new(what, ms(wait), ms(GRACE_MS), wait <= GRACE_MS));
        }
        // Answered before the load could be done. Where the warm burst takes as long, nothing can be told.
        ReadStrategy::LogicalExpiry => {
            let late = rounds.iter().filter(|round| round.expired.max_ms >= round.load_ms);
            let late: Vec<_> = late.collect();
            let check = Check::none(
                what("expiries with a reader answered after the load"),
                late.len() as u64,
            );
            let slow_machine = late.iter().all(|round| round.wait_ms() <= GRACE_MS);
            checks.push(if slow_machine { check.needed() } else { check });
        }
        _ => {}
    }
    checks
}

fn range(values: impl Iterator<Item = u64>) -> String {
    let values: Vec<_> = values.collect();
    match (values.iter().min(), values.iter().max()) {
        (Some(least), Some(most)) if least == most => most.to_string(),
        (Some(least), Some(most)) => format!("{least} to {most}"),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::defaults;

    fn latency(max_ms: f64) -> Latency {
        Latency { count: 2000, max_ms, ..Latency::default() }
    }

    /// One load of 301 ms; the warm burst takes 60 ms.
    fn round(loads: u64, max_ms: f64) -> Round {
        Round {
            loads,
            statements: loads,
            rebuilt: true,
            load_ms: 301.0,
            warm: latency(60.0),
            expired: latency(max_ms),
            failed: 0,
        }
    }

    /// The worst result of these rounds.
    fn result(strategy: ReadStrategy, rounds: &[Round], slow_load: u64) -> CheckResult {
        let options = StampedeOptions { slow_load, ..defaults() };
        let checks = check(strategy, rounds, &options);
        CheckResult::promised(&checks)
    }

    #[track_caller]
    fn violated(strategy: ReadStrategy, bad: Round) {
        let good = round(1, if strategy == ReadStrategy::LogicalExpiry { 80.0 } else { 350.0 });
        assert_eq!(result(strategy, &[good, good], 300), CheckResult::Holds, "{strategy}");
        assert_eq!(result(strategy, &[good, bad], 300), CheckResult::Violation, "{strategy}");
    }

    #[test]
    fn more_or_fewer_loads_than_one_are_found() {
        for strategy in [ReadStrategy::Mutex, ReadStrategy::LogicalExpiry, ReadStrategy::Layered] {
            violated(strategy, round(2, 80.0));
            violated(strategy, round(0, 80.0));
            violated(strategy, Round { statements: 500, ..round(1, 80.0) });
            violated(strategy, Round { rebuilt: false, ..round(1, 80.0) });
            violated(strategy, Round { failed: 3, ..round(1, 80.0) });
        }
    }

    #[test]
    fn a_reader_with_the_mutex_waits_for_one_load_and_50_ms() {
        // 60 ms are the burst's own, 301 the load's, 50 are granted.
        assert_eq!(result(ReadStrategy::Mutex, &[round(1, 410.0)], 300), CheckResult::Holds);
        violated(ReadStrategy::Mutex, round(1, 412.0));
    }

    #[test]
    fn nobody_waits_with_logical_expiry() {
        violated(ReadStrategy::LogicalExpiry, round(1, 302.0));
        let fast = |max| result(ReadStrategy::LogicalExpiry, &[round(1, max)], 0);
        assert_eq!((fast(100.0), fast(111.0)), (CheckResult::Holds, CheckResult::Violation));
        // A machine too slow to tell is not blamed on the service.
        let slow = Round { warm: latency(290.0), ..round(1, 310.0) };
        assert_eq!(result(ReadStrategy::LogicalExpiry, &[slow], 300), CheckResult::Unclear);
    }

    #[test]
    fn a_stampede_must_show_where_nothing_prevents_it() {
        let of = |strategy, loads| result(strategy, &[round(1, 80.0), round(loads, 300.0)], 300);
        assert_eq!(of(ReadStrategy::CacheAside, 700), CheckResult::Holds);
        assert_eq!(of(ReadStrategy::CacheAside, 99), CheckResult::DidNotShow);
        assert_eq!(of(ReadStrategy::NullCaching, 2), CheckResult::Shown);
    }
}
