//! Penetration: a crawler asks for ids that do not exist, which no cache of values can answer. Behind the Bloom filter only
//! its false positives reach the database.

use std::{iter, time::Duration};

use testkit::wait::poll;
use workload::Error;

use super::{
    reads::{Answer, Read, Strategy, absent, answered},
    stage::{Counts, Stage, UNEXPLAINED},
};
use crate::report::{Check, Checked};

const STRATEGY: Strategy = Some("layered");
const REQUESTS: usize = 100_000;
/// One of so many absent ids may pass the service's filter.
const FALSE_POSITIVE: u64 = 100;
/// Requests that show whether the filter is filled.
const PROBE: usize = 500;
/// Longest wait for a filter that is being filled.
const FILTER_WAIT: Duration = Duration::from_secs(15);
/// Pause before asking it again.
const FILTER_PAUSE: Duration = Duration::from_millis(200);

pub async fn run(stage: &Stage) -> Result<Checked, Error> {
    await_filter(stage).await?;
    let ids = iter::repeat_with(absent).take(REQUESTS).collect();
    let (reads, counts) = stage.read_once(STRATEGY, ids).await?;
    Ok(Checked {
        scenario: "cache penetration",
        heading: format!("Random absent ids, asked of {} in turn.", stage.urls()),
        figures: Vec::new(),
        notes: format!(
            "One of {FALSE_POSITIVE} may pass the filter, if it holds as many shops as it was made for; of fewer shops fewer."
        ),
        checks: check(&reads, counts),
    })
}

/// Asks for absent ids until no more of them are loaded than pass a filter that is filled.
async fn await_filter(stage: &Stage) -> Result<(), Error> {
    let answers = poll(FILTER_WAIT, FILTER_PAUSE, async || {
        let ids = iter::repeat_with(absent).take(PROBE).collect();
        let (reads, counts) = stage.read_once(STRATEGY, ids).await?;
        let is_filled = counts.loads <= allowed_loads(&reads);
        Ok::<_, Error>(is_filled.then_some(()))
    });
    answers.await?.ok_or_else(|| {
        Error::Usage(format!(
            "no Bloom filter answers on one of {}: is it switched off there?",
            stage.urls()
        ))
    })
}

fn allowed_loads(reads: &[Read]) -> u64 {
    reads.len() as u64 / FALSE_POSITIVE
}

fn check(reads: &[Read], counts: Counts) -> Vec<Check> {
    vec![
        answered(reads, &[Answer::Absent]),
        Check::at_most("loads", counts.loads, allowed_loads(reads)),
        Check::none(UNEXPLAINED, counts.unexplained),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CheckResult;

    #[test]
    fn one_load_too_many_hidden_statements_and_a_wrong_answer_are_found() {
        for (last, loads, unexplained, expected) in [
            (Answer::Absent, 10, 0, CheckResult::Holds),
            (Answer::Absent, 11, 0, CheckResult::Violation),
            (Answer::Absent, 10, 1, CheckResult::Violation),
            (Answer::Shop, 10, 0, CheckResult::Violation),
        ] {
            let answers = iter::repeat_n(Answer::Absent, 999).chain([last]);
            let reads: Vec<_> = answers.map(Read::answered).collect();
            let counts = Counts {
                loads,
                unexplained,
                ..Counts::default()
            };
            let found = CheckResult::worst(&check(&reads, counts));
            assert_eq!(found, expected, "{last:?}, {counts:?}");
        }
    }
}
