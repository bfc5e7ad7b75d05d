//! Penetration: a crawler asks for ids that do not exist, which no cache of values can answer.
//!
//! Two passes over random ids that are in no table:
//! 1. `layered`, behind the Bloom filter, every id once: what the filter lets through is loaded.
//! 2. `null-caching`, every id several times, lap after lap, while the filter is kept away by deleting it over and over: each
//!    id may be loaded once per null's time to live. Two reads of one id are a whole lap apart, so they cannot share a load.

use std::{iter, time::Duration};

use clap::Args;
use testkit::wait::poll;
use workload::{Error, driver::Connections};

use super::{
    reads::{Answer, Read, ReadStrategy, absent, answered, read_all},
    stage::{BYPASSED, CONNECTIONS, Case, Counts, Stage, disturbed},
};
use crate::report::{Check, Checked};

/// Requests of each pass.
const REQUESTS: usize = 100_000;
/// How often each id is asked for in the pass without the filter.
const LAPS: usize = 10;
/// The rate of false positives of the service's filter.
const FALSE_POSITIVES: f64 = 0.01;
/// How long the service caches a null, in seconds.
const NULL_TTL: u64 = 120;
/// The pause between two removals of the filters, so that next to nothing is filtered.
const REMOVE_EVERY: Duration = Duration::from_millis(5);
/// Longest wait for a filter that is being filled.
const FILTER_WAIT: Duration = Duration::from_secs(15);
/// Pause before asking it again.
const FILTER_PAUSE: Duration = Duration::from_millis(200);

/// A penetration has no options of its own.
#[derive(Debug, Args)]
pub struct Options;

impl Case for Options {
    const SHOPS: u64 = 0;

    async fn run(&self, stage: &Stage) -> Result<Checked, Error> {
        await_filter(stage).await?;
        let mut readers = stage.connect(CONNECTIONS).await?;
        let mut checks = pass(stage, &mut readers, ReadStrategy::Layered, REQUESTS).await?;
        if !stage.stop.is_cancelled() {
            let filters = stage.keys.filters().await?;
            let passing = pass(
                stage,
                &mut readers,
                ReadStrategy::NullCaching,
                REQUESTS / LAPS,
            );
            let null_checks = disturbed(passing, REMOVE_EVERY, async || {
                stage.keys.unlink(&filters).await
            })
            .await?;
            checks.extend(null_checks);
        }
        Ok(Checked {
            scenario: "cache penetration",
            heading: format!("Random absent ids, asked of {} in turn.", stage.urls()),
            figures: Vec::new(),
            notes: format!(
                "layered may load its filter's rate of false positives, {FALSE_POSITIVES} of all requests; the filter reaches\n\
                 that rate only with as many shops as it was made for. null-caching may load each id once per {NULL_TTL} s."
            ),
            checks,
        })
    }
}

/// Asks each instance for absent ids until the filters of all of them answer.
async fn await_filter(stage: &Stage) -> Result<(), Error> {
    let instances = stage.nodes.len();
    let answered = poll(FILTER_WAIT, FILTER_PAUSE, async || {
        let ids = iter::repeat_with(absent).take(instances).collect();
        let counts = stage.read_each(ReadStrategy::Layered, ids).await?;
        let is_over = counts.filtered >= instances as u64 || stage.stop.is_cancelled();
        Ok::<_, Error>(is_over.then_some(()))
    });
    answered.await?.ok_or_else(|| {
        Error::Usage(format!(
            "no Bloom filter answers on one of {}: is it switched off there?",
            stage.urls()
        ))
    })
}

/// Makes [`REQUESTS`] requests for `distinct` ids, lap after lap.
async fn pass(
    stage: &Stage,
    readers: &mut Connections,
    strategy: ReadStrategy,
    distinct: usize,
) -> Result<Vec<Check>, Error> {
    let ids: Vec<_> = iter::repeat_with(absent).take(distinct).collect();
    let ids = ids.into_iter().cycle().take(REQUESTS).collect();
    readers.open().await?;
    let progress = stage.progress;
    let stop = &stage.stop;
    let reading = read_all(readers, strategy, ids, None, progress, stop);
    let (reads, counts) = stage.counting(reading).await?;
    Ok(check(strategy, distinct as u64, counts, &reads))
}

/// Checks a pass over `distinct` ids by its counts and answers.
fn check(strategy: ReadStrategy, distinct: u64, counts: Counts, reads: &[Read]) -> Vec<Check> {
    let label = |what: &str| format!("{strategy}: {what}");
    let Counts {
        filtered,
        loads,
        unexplained,
        time,
        ..
    } = counts;
    let is_filtered = strategy == ReadStrategy::Layered;
    let allowed_loads = if is_filtered {
        (FALSE_POSITIVES * reads.len() as f64) as u64
    } else {
        distinct * (1 + time.as_secs() / NULL_TTL)
    };
    let mut checks = vec![
        answered(label("answers"), reads, &[Answer::Absent]),
        Check::at_most(label("loads"), loads, allowed_loads),
        Check::none(
            label("statements of the database without a load"),
            unexplained,
        ),
    ];
    if !is_filtered {
        let what = label("answered by the filter before a null");
        checks.push(Check::at_most(what, filtered, reads.len() as u64 / 2).needed());
    }
    counts.with_redis_in_time(&label(BYPASSED), checks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CheckResult;

    #[test]
    fn one_load_too_many_hidden_loads_wrong_answers_and_filtered_reads_are_found() {
        use CheckResult::{Holds, Unclear, Violation};
        use ReadStrategy::{Layered, NullCaching};
        for (strategy, loads, unexplained, filtered, last, expected) in [
            (Layered, 10, 0, 900, Answer::Absent, Holds),
            (Layered, 11, 0, 900, Answer::Absent, Violation),
            (Layered, 10, 1, 900, Answer::Absent, Violation),
            (Layered, 10, 0, 900, Answer::ServerError, Violation),
            (NullCaching, 100, 0, 500, Answer::Absent, Holds),
            (NullCaching, 101, 0, 500, Answer::Absent, Violation),
            (NullCaching, 100, 1, 500, Answer::Absent, Violation),
            (NullCaching, 100, 0, 500, Answer::Shop, Violation),
            (NullCaching, 100, 0, 501, Answer::Absent, Unclear),
        ] {
            // 1,000 reads of 100 ids.
            let answers = iter::repeat_n(Answer::Absent, 999).chain([last]);
            let reads: Vec<_> = answers.map(Read::answered).collect();
            let counts = Counts {
                filtered,
                loads,
                unexplained,
                ..Counts::default()
            };
            let result = |counts| CheckResult::worst(&check(strategy, 100, counts, &reads));
            assert_eq!(result(counts), expected, "{strategy}: {counts:?}, {last:?}");
            // With a Redis that is too slow nothing is proved.
            let slow_redis = Counts {
                bypassed: 1,
                ..counts
            };
            assert_ne!(result(slow_redis), Violation, "{slow_redis:?}");
        }
    }
}
