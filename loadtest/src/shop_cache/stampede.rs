//! The stampede: a hot key expires while two instances' readers all want it at once (*breakdown*).
//!
//! Each round lets every reader go at one instant, twice: on the warm key, which shows what the tool and the machine cost by
//! themselves, and once the key has expired and copies in the instances' memory are gone too.
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
/// Loads that show a stampede.
const SHOWN: u64 = 100;
/// Beyond this no instance serves a copy from its memory, which it may for a second.
const FORGOTTEN: Duration = Duration::from_millis(1200);
/// Between the making of a burst and its beginning.
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
    /// The slowest on the expired key.
    expired_ms: f64,
    /// Readers that did not get the shop, of both bursts.
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
    // Stored anew as the strategy does it, and in the memory of each instance.
    stage.keys.remove(&[shop]).await?;
    sleep(FORGOTTEN).await;
    if stage
        .read_each(strategy, vec![shop; stage.nodes.len()])
        .await?
        .loads
        == 0
    {
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
    sleep(FORGOTTEN).await;
    readers.open().await?;

    let bursting = burst_on_expired_key(stage, readers, strategy, ids);
    let (burst, counts) = stage.counting(bursting).await?;
    let failed = warm
        .iter()
        .chain(&burst.reads)
        .filter(|read| read.answer != Answer::Shop);
    let failed = failed.count() as u64;
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
    /// By how much the slowest on the expired key took longer than that on the warm one.
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
    let what = |what: &str| format!("{strategy}: {what}");
    let ms = |ms: f64| format!("{ms:.0} ms");
    let longest = |time_ms: fn(&Round) -> f64| rounds.iter().map(time_ms).fold(0.0, f64::max);
    let sum = |count: fn(&Round) -> u64| rounds.iter().map(count).sum::<u64>();
    let loads: Vec<_> = rounds.iter().map(|round| round.counts.loads).collect();
    let per_expiry = |allowed: &str, holds| {
        Check::new(
            what("loads per expiry"),
            format!("{loads:?}"),
            allowed,
            holds,
        )
    };
    let warm = longest(|round| round.warm_ms);
    let wait = longest(Round::wait_ms);
    let waits = Check::shown(
        what("longest wait"),
        format!("{wait:.0} ms beyond {warm:.0} ms"),
    );
    // A stampede must show where nothing prevents it.
    if matches!(
        strategy,
        ReadStrategy::CacheAside | ReadStrategy::NullCaching
    ) {
        let shown = loads.iter().any(|loads| *loads >= SHOWN);
        return vec![per_expiry(&format!("once {SHOWN}"), shown).needed(), waits];
    }
    let hidden = what("statements of the database without a load");
    let mut checks = vec![
        per_expiry("1 each", loads.iter().all(|loads| *loads == 1)),
        Check::none(hidden, sum(|round| round.counts.unexplained)),
        Check::none(
            what("keys not rebuilt"),
            sum(|round| u64::from(!round.rebuilt)),
        ),
        Check::none(what("readers without the shop"), sum(|round| round.failed)),
        waits,
    ];
    if strategy == ReadStrategy::Mutex {
        let beyond = longest(|round| round.wait_ms() - round.load_ms);
        let what = what("longest wait beyond the load");
        checks.push(Check::new(
            what,
            ms(beyond),
            ms(GRACE_MS),
            beyond <= GRACE_MS,
        ));
    }
    if strategy == ReadStrategy::LogicalExpiry {
        let what = what("expiries with a reader answered after the load");
        checks.push(check_late_answers(what, rounds));
    }
    let counts = Counts {
        bypassed: sum(|round| round.counts.bypassed),
        ..Counts::default()
    };
    counts.with_redis_in_time(&what(BYPASSED), checks)
}

/// Who did not wait was answered before the load could be done. Where the warm burst takes as long, nothing can be told.
fn check_late_answers(what: String, rounds: &[Round]) -> Check {
    let late: Vec<_> = rounds
        .iter()
        .filter(|round| round.expired_ms >= round.load_ms)
        .collect();
    let check = Check::none(what, late.len() as u64);
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

    /// Loads of 301 ms; the warm burst takes 60 ms, the slowest read of the expired key so many more.
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
        let mut witnessed = good;
        witnessed.counts.unexplained = 1;
        let mut slow_redis = round(5, 20.0);
        slow_redis.counts.bypassed = 4;
        let slow_machine = Round {
            warm_ms: 290.0,
            expired_ms: 310.0,
            ..good
        };
        let mut cases = vec![
            // 301 ms are the load's, 50 are granted.
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
            // Slow once, and on the warm key.
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
                (strategy, witnessed, Violation),
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
