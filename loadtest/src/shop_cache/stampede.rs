//! The stampede: a hot key expires while two instances' readers all want it at once (*breakdown*).
//!
//! A load of one row takes well below a millisecond, too little to tell which reader waited for it. So the table is locked
//! while the readers arrive ([`ShopTable::lock`](super::shops::ShopTable::lock)): a reader that waits for the load is
//! answered after the table was unlocked, any other before.

use std::time::{Duration, Instant};

use testkit::wait::until;
use tokio::time::{sleep, sleep_until};
use workload::{Error, driver::Connections};

use super::{
    reads::Answer,
    stage::{Stage, UNEXPLAINED},
};
use crate::{
    report::{Check, Checked},
    spread::median,
};

/// Readers of each instance, each with a connection of its own.
const READERS: u32 = 1000;
/// Expiries per read strategy.
const ROUNDS: usize = 5;
/// How long the table is locked from the beginning of a burst, so that loads last as long.
const SLOW_LOAD: Duration = Duration::from_millis(500);
/// So many loads in one expiry show a stampede.
const STAMPEDE_LOADS: u64 = 100;
/// After this time no instance has a copy in its memory any more: it may serve one for a second.
const COPIES_GONE_AFTER: Duration = Duration::from_millis(1200);
/// Time to prepare a burst, before the instant at which all readers are let go.
const LEAD: Duration = Duration::from_millis(100);
/// Longest wait for a rebuild in the background.
const REBUILD_LIMIT: Duration = Duration::from_secs(5);

const LOGICAL_EXPIRY: &str = "logical-expiry";
/// The read strategies, by the service's names for them, and what each promises when a hot key expires. `None`: nothing, so
/// a stampede must show. Else: one load, and that all readers are answered before so many loads would end.
const STRATEGIES: [(&str, Option<f64>); 5] = [
    ("cache-aside", None),
    ("null-caching", None),
    ("mutex", Some(2.0)),
    (LOGICAL_EXPIRY, Some(1.0)),
    ("layered", Some(2.0)),
];

/// One expiry.
#[derive(Debug, Clone, Copy)]
struct Round {
    /// Loads from the burst until the key was rebuilt.
    loads: u64,
    /// Statements of the database beyond those.
    unexplained: u64,
    /// From the beginning of the burst to the last answer, as a multiple of a load's time.
    last_answer: f64,
    /// Readers that did not get the shop; and one more where the key was not fresh again afterwards.
    failed: u64,
}

pub async fn run(stage: &Stage) -> Result<Checked, Error> {
    let mut readers = stage.connect(READERS).await?;
    let mut checks = Vec::new();
    for (strategy, promise) in STRATEGIES {
        let mut rounds = Vec::new();
        while rounds.len() < ROUNDS {
            let expiring = expire_under(&mut readers, stage, strategy);
            let Some(round) = stage.stop.run_until_cancelled(expiring).await else {
                break;
            };
            let round = round?;
            let Round {
                loads, last_answer, ..
            } = round;
            stage.progress.say(&format!(
                "{strategy}: {loads} loads, last answer after {last_answer:.2} loads"
            ));
            rounds.push(round);
        }
        if !rounds.is_empty() {
            checks.extend(check(strategy, promise, &rounds));
        }
    }
    Ok(Checked {
        scenario: "cache stampede",
        heading: format!(
            "A shop's key expires under {READERS} readers on each of {}.",
            stage.urls()
        ),
        figures: Vec::new(),
        notes: format!(
            "The table of shops is locked for the first {} ms, so that a load lasts as long. A reader that waits for the load\n\
             is answered after 1.00 loads or more; on a slow machine also one that does not.",
            SLOW_LOAD.as_millis()
        ),
        checks,
    })
}

/// Lets the key expire under all readers, who read the shop at one instant while the table is locked.
async fn expire_under(
    readers: &mut Connections,
    stage: &Stage,
    strategy: &'static str,
) -> Result<Round, Error> {
    let shop = stage.shops[0];
    stage.keys.remove(&[shop]).await?;
    sleep(COPIES_GONE_AFTER).await;
    if strategy == LOGICAL_EXPIRY {
        // Its key never leaves: a read stores the shop anew, and then its time is over.
        stage.read_once(Some(strategy), vec![shop]).await?;
        stage.keys.expire_logically(shop).await?;
        sleep(COPIES_GONE_AFTER).await;
    }
    readers.open().await?;
    let ids = vec![shop; readers.count()];
    let bursting = async {
        stage.table.lock().await?;
        let begin = Instant::now() + LEAD;
        let reading = stage.read(readers, Some(strategy), ids, Some(begin));
        let (reads, load_time) = tokio::try_join!(reading, async {
            sleep_until((begin + SLOW_LOAD).into()).await;
            stage.table.unlock().await?;
            Ok(begin.elapsed())
        })?;
        // Also loads in the background are counted.
        let is_rebuilt = until(REBUILD_LIMIT, async || {
            stage.keys.is_fresh(shop).await.unwrap_or(false)
        })
        .await;
        Ok::<_, Error>((reads, load_time, is_rebuilt))
    };
    let ((reads, load_time, is_rebuilt), counts) = stage.counting(bursting).await?;
    let failed = reads.iter().filter(|read| read.answer != Answer::Shop);
    let slowest = reads.iter().map(|read| read.latency).max();
    Ok(Round {
        loads: counts.loads,
        unexplained: counts.unexplained,
        last_answer: slowest.unwrap_or_default().div_duration_f64(load_time),
        failed: failed.count() as u64 + u64::from(!is_rebuilt),
    })
}

/// Checks all rounds of a read strategy: each by what the strategy promises about an expiry.
fn check(strategy: &str, promise: Option<f64>, rounds: &[Round]) -> Vec<Check> {
    let loads: Vec<_> = rounds.iter().map(|round| round.loads).collect();
    let last_answer = median(rounds.iter().map(|round| round.last_answer));
    let last_answer_text = format!("after {last_answer:.2} loads");
    let loads_name = format!("{strategy}: loads per expiry");
    let loads_text = format!("{loads:?}");
    let last_answer_name = format!("{strategy}: last answer (median)");
    let Some(within) = promise else {
        let is_shown = loads.iter().any(|loads| *loads >= STAMPEDE_LOADS);
        let allowed = format!("once {STAMPEDE_LOADS}");
        return vec![
            Check::new(loads_name, loads_text, allowed, is_shown).needed(),
            Check::shown(last_answer_name, last_answer_text),
        ];
    };
    let is_one_each = loads.iter().all(|loads| *loads == 1);
    let is_in_time = last_answer <= within;
    let unexplained = rounds.iter().map(|round| round.unexplained).sum();
    let failed = rounds.iter().map(|round| round.failed).sum();
    vec![
        Check::new(loads_name, loads_text, "1 each", is_one_each),
        Check::none(format!("{strategy}: {UNEXPLAINED}"), unexplained),
        Check::none(format!("{strategy}: readers without the shop"), failed),
        // Later answers prove nothing: the machine may be slow.
        Check::new(last_answer_name, last_answer_text, within, is_in_time).needed(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CheckResult;

    #[test]
    fn each_strategy_is_held_to_what_it_promises() {
        use CheckResult::{Holds, Shown, Unclear, Violation};
        let round = |loads, unexplained, last_answer, failed| Round {
            loads,
            unexplained,
            last_answer,
            failed,
        };
        let good = round(1, 0, 0.2, 0);
        for (promise, round, expected) in [
            // The median of these two rounds is half of what they add up to.
            (Some(2.0), round(1, 0, 3.8, 0), Holds),
            (Some(2.0), round(1, 0, 3.9, 0), Unclear),
            (Some(2.0), round(2, 0, 0.2, 0), Violation),
            (Some(2.0), round(0, 0, 0.2, 0), Violation),
            (Some(2.0), round(1, 1, 0.2, 0), Violation),
            (Some(2.0), round(1, 0, 0.2, 3), Violation),
            // Nobody waits for the load.
            (Some(1.0), round(1, 0, 1.8, 0), Holds),
            (Some(1.0), round(1, 0, 1.9, 0), Unclear),
            // A stampede must show where nothing prevents it.
            (None, round(100, 0, 1.6, 0), Shown),
            (None, round(99, 0, 1.6, 0), Unclear),
        ] {
            let found = CheckResult::worst(&check("", promise, &[good, round]));
            assert_eq!(found, expected, "{promise:?}: {round:?}");
        }
    }
}
