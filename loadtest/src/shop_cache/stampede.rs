//! The stampede: a hot key expires while two instances' readers all want it at once (*breakdown*).
//!
//! In each round all readers read at one instant, twice. The first burst is on the warm key, and shows what the tool and the
//! machine cost by themselves. The second is after the key has expired and the instances have dropped their copies in memory.
//!
//! A load of one row takes well below a millisecond, too little to tell which reader waited for it. So the table is locked
//! while the readers arrive ([`ShopTable::lock`](super::shops::ShopTable::lock)): a reader that waits for the load is
//! answered after the table was unlocked, any other before.

use std::time::{Duration, Instant};

use clap::Args;
use testkit::wait::until;
use tokio::time::{sleep, sleep_until};
use workload::{Error, driver::Connections, live::Progress};

use super::{
    reads::{Answer, Read, ReadStrategy, read_all},
    shops::unlock,
    stage::{BYPASSED, Case, Counts, Stage},
};
use crate::report::{Check, Checked};

/// Readers of each instance, each with a connection of its own.
const READERS: u32 = 1000;
/// Expiries per read strategy.
const ROUNDS: u32 = 5;
/// How long the table is locked from the beginning of a burst, so that loads last as long.
const SLOW_LOAD: Duration = Duration::from_millis(300);
/// What a reader with the mutex may wait beyond one load, in milliseconds.
const GRACE_MS: f64 = 50.0;
/// So many loads in one expiry show a stampede.
const STAMPEDE_LOADS: u64 = 100;
/// After this time no instance has a copy in its memory any more: it may serve one for a second.
const COPIES_GONE_AFTER: Duration = Duration::from_millis(1200);
/// Time to prepare a burst, before the instant at which all readers are let go.
const LEAD: Duration = Duration::from_millis(100);
/// Longest wait for a rebuild in the background.
const REBUILD_LIMIT: Duration = Duration::from_secs(5);

/// Options of a stampede.
#[derive(Debug, Args)]
pub struct Options {
    /// The read strategies, one after the other
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAMES",
        default_value = "cache-aside,null-caching,mutex,logical-expiry,layered"
    )]
    read_strategies: Vec<ReadStrategy>,
}

/// One expiry.
#[derive(Debug, Clone, Copy)]
struct Round {
    /// Counted from the burst until the key was rebuilt.
    counts: Counts,
    /// Whether the key was fresh again afterwards.
    rebuilt: bool,
    /// From the beginning of the burst to the earliest possible end of a load, in milliseconds.
    load_ms: f64,
    /// The slowest read of the burst on the warm key, which shows what the burst itself takes.
    warm_ms: f64,
    /// The slowest read of the burst on the expired key.
    expired_ms: f64,
    /// Readers that did not get the shop, in both bursts.
    failed: u64,
}

impl Case for Options {
    const SHOPS: u64 = 1;

    async fn run(&self, stage: &Stage) -> Result<Checked, Error> {
        stage.progress.say("opening connections");
        let mut readers = stage.connect(READERS).await?;
        let mut checks = Vec::new();
        'rounds: for strategy in self.read_strategies.iter().copied() {
            let mut rounds = Vec::new();
            for _ in 0..ROUNDS {
                let running = round(stage, &mut readers, strategy);
                let Some(round) = stage.stop.run_until_cancelled(running).await else {
                    if !rounds.is_empty() {
                        checks.extend(check(strategy, &rounds));
                    }
                    break 'rounds;
                };
                rounds.push(round?);
            }
            checks.extend(check(strategy, &rounds));
        }
        Ok(Checked {
            scenario: "cache stampede",
            heading: format!(
                "A shop's key expires under {READERS} readers on each of {}.",
                stage.urls()
            ),
            figures: Vec::new(),
            notes: format!(
                "Latency runs from the instant at which all readers are let go, so it holds what the burst costs this tool and\n\
                 this machine, as the same burst on the warm key shows. The wait is what is longer.\n\
                 The table of shops is locked for {} ms from then on, so that loads last as long.",
                SLOW_LOAD.as_millis()
            ),
            checks,
        })
    }
}

/// Lets the key expire under all readers.
async fn round(
    stage: &Stage,
    readers: &mut Connections,
    strategy: ReadStrategy,
) -> Result<Round, Error> {
    let shop = stage.shops[0];
    // One read by each instance stores the shop anew, in the strategy's own form, and fills the instances' memory.
    stage.keys.remove(&[shop]).await?;
    sleep(COPIES_GONE_AFTER).await;
    let filling_counts = stage
        .read_each(strategy, vec![shop; stage.nodes.len()])
        .await?;
    if filling_counts.loads == 0 {
        let detail = "a load was not counted: --nodes must be the instances, not a proxy";
        return Err(Error::Usage(detail.to_owned()));
    }
    readers.open().await?;
    let ids = vec![shop; readers.count()];
    let begin = Some(Instant::now() + LEAD);
    let silent = Progress::Silent;
    let stop = &stage.stop;
    let warm = read_all(readers, strategy, ids.clone(), begin, silent, stop).await?;

    if strategy == ReadStrategy::LogicalExpiry {
        stage.keys.expire_logically(shop).await?;
    } else {
        stage.keys.expire(shop).await?;
    }
    sleep(COPIES_GONE_AFTER).await;
    readers.open().await?;

    let bursting = burst_on_expired_key(stage, readers, strategy, ids);
    let (burst, counts) = stage.counting(bursting).await?;
    let failed = warm
        .iter()
        .chain(&burst.reads)
        .filter(|read| read.answer != Answer::Shop)
        .count() as u64;
    let loads = counts.loads;
    let round = Round {
        counts,
        rebuilt: burst.rebuilt,
        load_ms: burst.load_time.as_secs_f64() * 1e3,
        warm_ms: slowest_ms(&warm),
        expired_ms: slowest_ms(&burst.reads),
        failed,
    };
    let wait_ms = round.wait_ms();
    stage.progress.say(&format!(
        "{strategy}: {loads} loads, longest wait {wait_ms:.0} ms"
    ));
    Ok(round)
}

/// What came of a burst on the expired key.
struct ExpiredBurst {
    reads: Vec<Read>,
    /// From its beginning until the table was unlocked: no load ends earlier.
    load_time: Duration,
    /// Whether the key was fresh again afterwards.
    rebuilt: bool,
}

/// Lets all readers go while the table is locked, unlocks it, and waits until the key is rebuilt.
async fn burst_on_expired_key(
    stage: &Stage,
    readers: &mut Connections,
    strategy: ReadStrategy,
    ids: Vec<u64>,
) -> Result<ExpiredBurst, Error> {
    let shop = stage.shops[0];
    let lock = stage.table.lock().await?;
    let begin = Instant::now() + LEAD;
    let reading = read_all(
        readers,
        strategy,
        ids,
        Some(begin),
        Progress::Silent,
        &stage.stop,
    );
    let (reads, load_time) = tokio::try_join!(reading, async {
        sleep_until((begin + SLOW_LOAD).into()).await;
        unlock(lock).await?;
        Ok::<_, Error>(begin.elapsed())
    })?;
    let rebuilt = until(REBUILD_LIMIT, async || {
        stage.keys.is_fresh(shop).await.is_ok_and(|fresh| fresh)
    })
    .await;
    Ok(ExpiredBurst {
        reads,
        load_time,
        rebuilt,
    })
}

impl Round {
    /// By how much the slowest read of the expired key took longer than the slowest read of the warm key.
    fn wait_ms(&self) -> f64 {
        (self.expired_ms - self.warm_ms).max(0.0)
    }
}

fn slowest_ms(reads: &[Read]) -> f64 {
    reads
        .iter()
        .map(|read| read.latency)
        .max()
        .unwrap_or_default()
        .as_secs_f64()
        * 1e3
}

/// Checks all rounds of a read strategy: each by what the strategy promises about an expiry.
fn check(strategy: ReadStrategy, rounds: &[Round]) -> Vec<Check> {
    let name_of = |check: &str| format!("{strategy}: {check}");
    let ms = |ms: f64| format!("{ms:.0} ms");
    let longest_ms = |time_ms: fn(&Round) -> f64| rounds.iter().map(time_ms).fold(0.0, f64::max);
    let sum = |count: fn(&Round) -> u64| rounds.iter().map(count).sum::<u64>();
    let loads: Vec<_> = rounds.iter().map(|round| round.counts.loads).collect();
    let per_expiry = |allowed: &str, holds| {
        Check::new(
            name_of("loads per expiry"),
            format!("{loads:?}"),
            allowed,
            holds,
        )
    };
    let longest_warm_ms = longest_ms(|round| round.warm_ms);
    let longest_wait_ms = longest_ms(Round::wait_ms);
    let longest_wait = Check::shown(
        name_of("longest wait"),
        format!("{longest_wait_ms:.0} ms beyond {longest_warm_ms:.0} ms"),
    );
    // A stampede must show where nothing prevents it.
    if matches!(
        strategy,
        ReadStrategy::CacheAside | ReadStrategy::NullCaching
    ) {
        let is_shown = loads.iter().any(|loads| *loads >= STAMPEDE_LOADS);
        let allowed = format!("once {STAMPEDE_LOADS}");
        return vec![per_expiry(&allowed, is_shown).needed(), longest_wait];
    }
    let mut checks = vec![
        per_expiry("1 each", loads.iter().all(|loads| *loads == 1)),
        Check::none(
            name_of("statements of the database without a load"),
            sum(|round| round.counts.unexplained),
        ),
        Check::none(
            name_of("keys not rebuilt"),
            sum(|round| u64::from(!round.rebuilt)),
        ),
        Check::none(
            name_of("readers without the shop"),
            sum(|round| round.failed),
        ),
        longest_wait,
    ];
    if strategy == ReadStrategy::Mutex {
        let beyond_load_ms = longest_ms(|round| round.wait_ms() - round.load_ms);
        checks.push(Check::new(
            name_of("longest wait beyond the load"),
            ms(beyond_load_ms),
            ms(GRACE_MS),
            beyond_load_ms <= GRACE_MS,
        ));
    }
    if strategy == ReadStrategy::LogicalExpiry {
        let name = name_of("expiries with a reader answered after the load");
        checks.push(check_late_answers(name, rounds));
    }
    // Without Redis an instance loads by itself, on purpose: then these checks cannot prove a violation.
    let bypassed_only = Counts {
        bypassed: sum(|round| round.counts.bypassed),
        ..Counts::default()
    };
    bypassed_only.with_redis_in_time(&name_of(BYPASSED), checks)
}

/// A reader that does not wait is answered before the load can end. A later answer proves nothing on a slow machine: where the
/// warm burst took as long as the load, or where the wait is within [`GRACE_MS`].
fn check_late_answers(name: String, rounds: &[Round]) -> Check {
    let late: Vec<_> = rounds
        .iter()
        .filter(|round| round.expired_ms >= round.load_ms)
        .collect();
    let check = Check::none(name, late.len() as u64);
    let is_slow_machine = late
        .iter()
        .all(|round| round.wait_ms() <= GRACE_MS || round.warm_ms >= round.load_ms);
    if is_slow_machine {
        check.needed()
    } else {
        check
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CheckResult;

    /// The load takes 301 ms, the warm burst 60 ms, and the slowest read of the expired key `wait_ms` more than the warm burst.
    fn round(loads: u64, wait_ms: f64) -> Round {
        let counts = Counts {
            loads,
            ..Counts::default()
        };
        let expired_ms = 60.0 + wait_ms;
        Round {
            counts,
            rebuilt: true,
            load_ms: 301.0,
            warm_ms: 60.0,
            expired_ms,
            failed: 0,
        }
    }

    #[test]
    fn each_strategy_is_held_to_what_it_promises() {
        use CheckResult::{Shown, Unclear, Violation};
        use ReadStrategy::{CacheAside, Layered, LogicalExpiry, Mutex, NullCaching};
        let good = round(1, 20.0);
        let mut with_unexplained_statement = good;
        with_unexplained_statement.counts.unexplained = 1;
        let mut slow_redis = round(5, 20.0);
        slow_redis.counts.bypassed = 4;
        let slow_machine = Round {
            warm_ms: 290.0,
            expired_ms: 310.0,
            ..good
        };
        let mut cases = vec![
            // A reader may wait for the 301 ms of the load, and 50 ms more.
            (Mutex, round(1, 350.0), Shown),
            (Mutex, round(1, 352.0), Violation),
            // Nobody waits, as far as the machine is fast enough to tell.
            (LogicalExpiry, round(1, 242.0), Violation),
            (LogicalExpiry, slow_machine, Unclear),
            (
                LogicalExpiry,
                Round {
                    warm_ms: 400.0,
                    expired_ms: 500.0,
                    ..good
                },
                Unclear,
            ),
            // Only the warm burst was slow: no reader waited.
            (
                LogicalExpiry,
                Round {
                    warm_ms: 310.0,
                    expired_ms: 200.0,
                    ..good
                },
                Shown,
            ),
            // A stampede must show where nothing prevents it.
            (CacheAside, round(700, 240.0), Shown),
            (CacheAside, round(99, 240.0), Unclear),
            (NullCaching, round(2, 240.0), Unclear),
        ];
        for strategy in [Mutex, LogicalExpiry, Layered] {
            cases.extend([
                (strategy, good, Shown),
                (strategy, round(2, 20.0), Violation),
                (strategy, round(0, 20.0), Violation),
                (strategy, with_unexplained_statement, Violation),
                (
                    strategy,
                    Round {
                        rebuilt: false,
                        ..good
                    },
                    Violation,
                ),
                (strategy, Round { failed: 3, ..good }, Violation),
                (strategy, slow_redis, Unclear),
            ]);
        }
        for (strategy, round, expected) in cases {
            let found = CheckResult::worst(&check(strategy, &[good, round]));
            assert_eq!(found, expected, "{strategy}: {round:?}");
        }
    }
}
