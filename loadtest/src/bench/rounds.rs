//! Interleaved rounds: every side once, one after the other, then again (A B C A B C …), so that other load on the
//! machine affects all of them alike. The first round fills connection pools, statement caches and blocks of ids, and
//! does not count.

use std::collections::BTreeSet;
use std::time::Duration;

use workload::ladder::Strategy;

use crate::bench::plan::Plan;
use crate::bench::ratios::RATIOS;
use crate::bench::run::Run;
use crate::bench::settings::say;
use crate::bench::steps::{Place, steps};

/// Longest run of the warm-up of the ratios.
const WARM_UP: Duration = Duration::from_millis(400);

/// Measures each of `sides` in every round; the results of each side.
pub async fn interleaved<S, R>(
    rounds: usize,
    sides: &[S],
    measure: impl AsyncFn(usize, &S) -> anyhow::Result<R>,
) -> anyhow::Result<Vec<Vec<R>>> {
    let mut results: Vec<Vec<R>> = sides.iter().map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        say(&match round {
            0 => "warming up (not counted)".to_owned(),
            round => format!("round {round} of {rounds}"),
        });
        for (side, results) in sides.iter().zip(&mut results) {
            let result = measure(round, side).await?;
            if round > 0 {
                results.push(result);
            }
        }
    }
    Ok(results)
}

/// The runs of each round that the ratios asked for need.
pub async fn measure(place: &Place<'_>, only: &[String]) -> anyhow::Result<Vec<Vec<Run>>> {
    let settings = &place.environment.settings;
    let asked = RATIOS.iter().filter(|ratio| ratio.is_asked_for(only));
    let mut needed: BTreeSet<_> = asked.flat_map(|ratio| ratio.runs()).collect();
    let first = steps(place, 0, WARM_UP);
    let chosen = first.iter().filter(|step| needed.contains(step.of));
    let peaks: Vec<_> = chosen.filter_map(|step| step.needs()).collect();
    needed.extend(peaks);
    let one_round = async |round: usize, (): &()| {
        let longest = if round == 0 { WARM_UP } else { settings.duration };
        let mut runs = Vec::new();
        for step in steps(place, round, settings.duration.min(longest)) {
            if needed.contains(step.of) {
                let more = step.run(place, &runs).await?;
                runs.extend(more);
            }
        }
        Ok(runs)
    };
    Ok(interleaved(settings.rounds, &[()], one_round).await?.pop().unwrap_or_default())
}

/// A run of each safe strategy that no ratio is about, for the table of runs.
pub async fn other_strategies(place: &Place<'_>, known: &[Run]) -> anyhow::Result<Vec<Run>> {
    say("the other strategies");
    let mut runs = Vec::new();
    for strategy in Strategy::ALL.into_iter().filter(|strategy| !strategy.is_unsafe()) {
        let name = strategy.name();
        if !known.iter().any(|run| run.name == name) {
            let plan = Plan::new(name, place.environment, &place.servers.one);
            runs.push(Plan { publisher: place.publisher, ..plan }.run().await?.0);
        }
    }
    Ok(runs)
}
