//! Penetration: a crawler asks for ids that do not exist, which no cache of values can answer.
//!
//! Three passes over random ids that are in no table:
//! 1. `layered`, behind the Bloom filter, every id once: what the filter lets through is loaded.
//! 2. `null-caching`, every id several times, lap after lap, while the filter is kept away by deleting it over and over: each
//!    id may be loaded once per null's time to live. Two reads of one id are a whole lap apart, so they cannot share a load.
//! 3. `cache-aside`, the filter kept away, a tenth of the requests: every one is loaded. This shows what the other two
//!    save, and is not checked.
//!
//! The cached nulls that came of it are removed afterwards, by their ids.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use clap::{Args, value_parser};
use rand::Rng;
use testkit::wait::poll;
use workload::{Error, driver::Connections, latency::Latency, live::Progress};

use super::{
    keys::RedisKeys,
    metrics::{Layers, Nodes},
    place::{CONNECTIONS, Place, connect},
    reads::{Answer, Read, ReadStrategy, Tally, read_all},
    shops::ShopTable,
};
use crate::report::{Check, Checked};

/// Random ids are taken from here, far above those in use.
const RANGE: std::ops::Range<u64> = 2_000_000_000_000..4_000_000_000_000;
/// How often each id is asked for in the passes without the filter.
const LAPS: u32 = 10;
/// The service's rate of false positives of the filter, and how long it remembers a cached null, in seconds.
const FALSE_POSITIVES: f64 = 0.01;
const NULL_TTL: f64 = 120.0;
/// Statements of other clients that the database may count during a pass.
const OTHERS: u64 = 100;
/// Longest wait for a filter that is being filled, and the pause between two looks.
const FILTER_WAIT: Duration = Duration::from_secs(15);
const FILTER_PAUSE: Duration = Duration::from_millis(200);

/// Options of a penetration run.
#[derive(Debug, Clone, Args)]
pub struct PenetrationOptions {
    /// Requests of each checked pass
    #[arg(long, default_value_t = 100_000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    requests: u32,
}

/// Makes all passes, and removes what they left in Redis.
pub(super) async fn run(options: &PenetrationOptions, place: &Place) -> Result<Checked, Error> {
    let (table, keys) = place.open().await?;
    let readers = place.connect(CONNECTIONS).await?;
    let nodes = Nodes::new(&place.targets);
    let used = HashSet::new();
    let mut run = Run { options, place, table, keys, nodes, readers, used };
    let passes = run.passes().await;
    // Whatever happened: what was caused is removed.
    let used: Vec<_> = run.used.iter().copied().collect();
    run.keys.remove(&used).await?;
    let passes = passes?;
    Ok(Checked {
        scenario: "cache penetration",
        heading: format!("Random absent ids, asked of {} in turn.", place.urls()),
        figures: Vec::new(),
        notes: format!(
            "{}\n\nlayered may load its filter's rate of false positives, {} of all requests; the filter reaches that rate only\n\
             with as many shops as it was made for. null-caching may load each id once per {} s.",
            passes.iter().map(line).collect::<Vec<_>>().join("\n"),
            FALSE_POSITIVES,
            NULL_TTL
        ),
        checks: passes.iter().flat_map(check).collect(),
    })
}

struct Run<'a> {
    options: &'a PenetrationOptions,
    place: &'a Place,
    table: ShopTable,
    keys: RedisKeys,
    nodes: Nodes,
    readers: Connections,
    used: HashSet<u64>,
}

/// One pass.
struct Pass {
    strategy: ReadStrategy,
    requests: u64,
    distinct: u64,
    elapsed_s: f64,
    /// Most loads it may cause; `None`: as many as it likes.
    most_loads: Option<u64>,
    layers: Layers,
    statements: u64,
    answers: Tally,
    latency: Latency,
}

impl Run<'_> {
    async fn passes(&mut self) -> Result<[Pass; 3], Error> {
        let (requests, distinct) = (self.options.requests, self.options.requests.div_ceil(LAPS));
        self.await_filter().await?;
        let layered = self.pass(ReadStrategy::Layered, requests, requests).await?;
        let keys = self.keys.clone();
        let pass = self.pass(ReadStrategy::NullCaching, distinct, requests);
        let nulls = keys.without_filters(pass).await?;
        let pass = self.pass(ReadStrategy::CacheAside, distinct, requests.div_ceil(10));
        let naive = keys.without_filters(pass).await?;
        Ok([layered, nulls, naive])
    }

    /// So many ids that were not used before.
    fn fresh(&mut self, count: u32) -> Vec<u64> {
        let mut rng = rand::rng();
        let mut ids = Vec::new();
        while ids.len() < count as usize {
            let id = rng.random_range(RANGE);
            if self.used.insert(id) {
                ids.push(id);
            }
        }
        ids
    }

    /// Asks each instance for absent ids until its filter is seen to answer.
    async fn await_filter(&mut self) -> Result<(), Error> {
        for target in &self.place.targets {
            let one = std::slice::from_ref(target);
            let (mut node, mut readers) = (Nodes::new(one), connect(one, 1).await?);
            let answered = poll(FILTER_WAIT, FILTER_PAUSE, async || {
                let before = node.layers().await?;
                let (strategy, id) = (Some(ReadStrategy::Layered), self.fresh(1));
                read_all(&mut readers, strategy, id, None, (Progress::Silent, "")).await?;
                Ok::<_, Error>((node.layers().await?.since(before).filter() > 0).then_some(()))
            });
            if answered.await?.is_none() {
                return Err(Error::Usage(format!(
                    "no Bloom filter answers on {target}: is it switched off there?"
                )));
            }
        }
        Ok(())
    }

    /// Asks for `distinct` ids, lap after lap.
    async fn pass(
        &mut self,
        strategy: ReadStrategy,
        distinct: u32,
        requests: u32,
    ) -> Result<Pass, Error> {
        let ids = self.fresh(distinct.min(requests));
        let distinct = ids.len() as u64;
        self.readers.open().await?;
        let layers = self.nodes.layers().await?;
        let statements = self.table.statements().await?;
        let begin = Instant::now();
        let what = format!("{strategy}, {distinct} ids");
        let laps = (0..requests as usize).map(|at| ids[at % ids.len()]).collect();
        let progress = (self.place.progress, what.as_str());
        let reads = read_all(&mut self.readers, Some(strategy), laps, None, progress).await?;
        let elapsed_s = begin.elapsed().as_secs_f64();
        let most_loads = match strategy {
            ReadStrategy::CacheAside => None,
            ReadStrategy::NullCaching => Some(distinct * (1 + (elapsed_s / NULL_TTL) as u64)),
            _ => Some((FALSE_POSITIVES * f64::from(requests)) as u64),
        };
        Ok(Pass {
            strategy,
            requests: requests.into(),
            distinct,
            elapsed_s,
            most_loads,
            layers: self.nodes.layers().await?.since(layers),
            statements: self.table.statements().await?.saturating_sub(statements),
            answers: reads.iter().map(|read| &read.answer).collect(),
            latency: Latency::of(reads.iter().map(Read::latency)),
        })
    }
}

/// Checks a pass by its counts.
fn check(pass: &Pass) -> Vec<Check> {
    let what = |what: &str| format!("{}: {what}", pass.strategy);
    let mut checks = vec![Check::none(what("shops that do not exist"), pass.answers.found())];
    let loads = pass.layers.loads();
    let Some(most) = pass.most_loads else {
        checks.push(Check::shown(what("loads"), loads));
        return checks;
    };
    let answered = pass.answers.of(&Answer::Absent) + pass.answers.found();
    checks.extend([
        Check::new(what("answers"), &pass.answers, "all absent", answered == pass.answers.total()),
        Check::new(what("loads"), loads, most, loads <= most),
        Check::new(
            what("statements of the database"),
            pass.statements,
            most + OTHERS,
            pass.statements <= most + OTHERS,
        ),
    ]);
    if pass.strategy == ReadStrategy::NullCaching {
        let (filtered, half) = (pass.layers.filter(), pass.requests / 2);
        let check = Check::new(
            what("answered by the filter before a null"),
            filtered,
            half,
            filtered <= half,
        );
        checks.push(check.needed());
    }
    checks
}

/// What a pass was, in a line.
fn line(pass: &Pass) -> String {
    format!(
        "{}: {} requests for {} ids, {:.0}/s, p99 {:.1} ms; {} answered by a null, {} from memory",
        pass.strategy,
        pass.requests,
        pass.distinct,
        pass.requests as f64 / pass.elapsed_s.max(1e-6),
        pass.latency.p99_ms,
        pass.layers.null(),
        pass.layers.memory()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CheckResult;

    fn pass(strategy: ReadStrategy, most_loads: Option<u64>, loads: u64) -> Pass {
        Pass {
            strategy,
            requests: 1000,
            distinct: 100,
            elapsed_s: 1.0,
            most_loads,
            layers: Layers::of(0, loads),
            statements: loads,
            answers: std::iter::repeat_n(&Answer::Absent, 1000).collect(),
            latency: Latency::default(),
        }
    }

    /// The worst result.
    fn result(pass: &Pass) -> CheckResult {
        let checks = check(pass);
        CheckResult::worst(&checks)
    }

    #[test]
    fn one_load_too_many_is_found() {
        for (strategy, most) in [(ReadStrategy::Layered, 10), (ReadStrategy::NullCaching, 100)] {
            assert_eq!(result(&pass(strategy, Some(most), most)), CheckResult::Holds);
            assert_eq!(result(&pass(strategy, Some(most), most + 1)), CheckResult::Violation);
            let lying = Pass { statements: 1000, ..pass(strategy, Some(most), 1) };
            assert_eq!(result(&lying), CheckResult::Violation, "the database counts, too");
        }
    }

    #[test]
    fn missing_and_wrong_answers_are_found() {
        let mut failing = pass(ReadStrategy::Layered, Some(10), 1);
        failing.answers.count(&Answer::ServerError);
        assert_eq!(result(&failing), CheckResult::Violation);
        for most in [Some(10), None] {
            let mut phantom = pass(ReadStrategy::Layered, most, 1);
            phantom.answers.count(&Answer::Found(1, "a".into()));
            assert_eq!(result(&phantom), CheckResult::Violation);
        }
    }

    #[test]
    fn filtered_requests_prove_nothing_about_cached_nulls() {
        let mut idle = pass(ReadStrategy::NullCaching, Some(100), 5);
        idle.layers = Layers::of(900, 5);
        assert_eq!(result(&idle), CheckResult::Unclear);
        assert_eq!(result(&pass(ReadStrategy::CacheAside, None, 1000)), CheckResult::Shown);
    }
}
