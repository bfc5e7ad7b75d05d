//! Updates: how long an old value is still served after `PUT /shop` has returned.
//!
//! One writer changes a shop's name to ever higher versions, one after the other, on the instances in turn, while readers
//! hammer all of them. Version *v* was superseded when the first higher version was confirmed. A read that was sent later
//! than that and returned *v* is stale by the time between the two; one that was sent before may return either. Meanwhile
//! the connections on which the instances hear of invalidations are cut now and then.

use std::{
    iter,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use hyper::{Method, header::HeaderValue};
use serde_json::{Value, json};
use tokio::time::sleep;
use workload::{
    Error,
    buyers::insist,
    http::{Call, Connection},
    live::Live,
};

use super::{
    reads::{self, Answer, LIMIT, Read, ReadStrategy, answered},
    shops::NAME,
    stage::{Case, Stage},
};
use crate::report::{Check, Checked};

/// After the last change the readers go on for the bound and this time.
const TAIL: Duration = Duration::from_millis(500);
/// Changes of the shop's name, one after the other.
const UPDATES: u64 = 1000;
/// Readers of each instance.
const READERS: u32 = 16;
/// Pause after each change.
const PAUSE: Duration = Duration::from_millis(10);
/// The invalidation connections are cut (CLIENT KILL TYPE pubsub) during one change of so many.
const CUT_EVERY: u64 = 100;

/// Options of a run of updates.
#[derive(Debug, Args)]
pub struct Options {
    /// How long an old value may still be served after its change was confirmed, in milliseconds
    #[arg(long, default_value_t = 1000, value_name = "MS")]
    bound_ms: u64,
    /// The readers' read strategy [default: the configured one]
    #[arg(long, value_name = "NAME")]
    read_strategy: Option<ReadStrategy>,
}

impl Case for Options {
    const SHOPS: u64 = 1;

    async fn run(&self, stage: &Stage) -> Result<Checked, Error> {
        let token = stage.access.admin_header("changing a shop")?;
        let mut readers = stage.connect(READERS).await?;
        let ids = iter::repeat((stage.shops[0], None));
        let live = Arc::<Live>::default();
        let reading = reads::read(&mut readers, self.read_strategy, &live, ids);
        let bound = Duration::from_millis(self.bound_ms);
        // Counts the changes only; the readers count in `live`.
        let changes = Live::default();
        let writing = write_and_stop_readers(stage, &token, &changes, &live, bound + TAIL);
        let (reads, written) = stage
            .progress
            .watch("changes", UPDATES, &changes, async {
                tokio::join!(reading, writing)
            })
            .await;
        let reads = reads?;
        let written = written?;
        Ok(Checked {
            scenario: "cache updates",
            heading: format!(
                "A shop is changed through {} in turn; read strategy: {}.",
                stage.urls(),
                reads::name(self.read_strategy)
            ),
            figures: Vec::new(),
            notes: "A read is stale when it was sent after a change had been confirmed and returned an older version; its\n\
                    staleness is the time between the two."
                .to_owned(),
            checks: check(bound, stage.nodes.len(), &written, &reads),
        })
    }
}

/// What was written.
struct Written {
    /// When each version was confirmed, from 1 on; `None`: it was not.
    versions: Vec<Option<Instant>>,
    /// Invalidation connections that were cut.
    cut: u64,
}

/// Makes all changes, and stops the readers this time `after` the last one.
async fn write_and_stop_readers(
    stage: &Stage,
    token: &HeaderValue,
    changes: &Live,
    readers: &Live,
    after: Duration,
) -> Result<Written, Error> {
    let written = write(stage, token, changes).await;
    // The readers must see for themselves that the last version is there everywhere.
    sleep(after).await;
    readers.stop.cancel();
    written
}

async fn write(stage: &Stage, token: &HeaderValue, changes: &Live) -> Result<Written, Error> {
    let nodes = stage.nodes.iter();
    let mut connections: Vec<_> = nodes
        .map(|node| Connection::new(node.clone(), LIMIT))
        .collect();
    let count = connections.len();
    let mut written = Written {
        versions: Vec::new(),
        cut: 0,
    };
    for version in (1..=UPDATES).take_while(|_| !stage.stop.is_cancelled()) {
        let connection = &mut connections[version as usize % count];
        let put = put(connection, token, stage.shops[0], version);
        let confirmed = if version % CUT_EVERY == 0 {
            // At the same time, so that the invalidation itself may be lost.
            let (confirmed, cut) = tokio::join!(put, stage.keys.cut_subscribers());
            written.cut += cut?;
            confirmed?
        } else {
            put.await?
        };
        written.versions.push(confirmed);
        changes.count(false);
        sleep(PAUSE).await;
    }
    Ok(written)
}

/// Sends `PUT /shop`; returns when it was confirmed, `None` if it was not. A refusal that every change would get is an error,
/// which ends the run.
async fn put(
    connection: &mut Connection,
    token: &HeaderValue,
    shop: u64,
    version: u64,
) -> Result<Option<Instant>, Error> {
    let call = Call::new(Method::PUT, "/shop").admin(token);
    let call = call.json(&json!({"id": shop, "name": format!("{NAME}{version}")}));
    match insist::<Value>(connection, &call, "a change of a shop").await {
        Ok(_) => Ok(Some(Instant::now())),
        Err(Error::Refused { status: 500.., .. } | Error::Unreachable { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks what the readers of so many instances found against what was written.
fn check(bound: Duration, instances: usize, written: &Written, reads: &[Read]) -> Vec<Check> {
    let Written { versions, cut } = written;
    let last = versions.iter().flatten().next_back();
    let mut worst = Duration::ZERO;
    let mut foreign = 0;
    let mut fresh = vec![0_u64; instances];
    for read in reads.iter().filter(|read| read.answer == Answer::Shop) {
        // The confirmations of all versions above the one that was read. Before the first change the version is 0.
        let Some(higher) = read
            .version
            .and_then(|version| versions.get(version as usize..))
        else {
            foreign += 1;
            continue;
        };
        if let Some(superseded) = higher.iter().flatten().next() {
            worst = worst.max(read.sent.saturating_duration_since(*superseded));
        } else if last.is_some_and(|last| *last < read.sent) {
            fresh[read.target] += 1;
        }
    }
    let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    let confirmed = versions.iter().flatten().count();
    let unconfirmed = versions.len() - confirmed;
    let allowed = format!("more than {unconfirmed} that were not");
    let least = fresh.into_iter().min().unwrap_or_default();
    let after = "fresh reads of each instance after the last change";
    vec![
        Check::new("worst staleness", ms(worst), ms(bound), worst <= bound),
        Check::none("reads of a name that was not written", foreign),
        // A read that a rate limit refused is no violation: the reader was told to come back.
        answered("answers", reads, &[Answer::Shop, Answer::Throttled]),
        Check::new(
            "changes confirmed",
            confirmed,
            allowed,
            confirmed > unconfirmed,
        )
        .needed(),
        Check::new(after, least, "at least 1", least > 0).needed(),
        Check::new("invalidation connections cut", cut, "at least 1", *cut > 0).needed(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CheckResult;

    const MS: Duration = Duration::from_millis(1);

    /// When versions were confirmed: 1 and 3 after 10 and 30 ms, 2 not.
    const VERSIONS: [Option<u32>; 3] = [Some(10), None, Some(30)];

    /// A read of a version: the instance, when it was sent, in milliseconds, and the answer.
    type Sent = (usize, u32, Answer, Option<u64>);
    const FRESH: [Sent; 2] = [
        (0, 40, Answer::Shop, Some(3)),
        (1, 40, Answer::Shop, Some(3)),
    ];

    /// Checks reads of two instances; 10 ms are allowed.
    fn checks(versions: [Option<u32>; 3], cut: u64, reads: &[Sent]) -> Vec<Check> {
        let begin = Instant::now();
        let versions = versions.map(|ms| Some(begin + ms? * MS)).into();
        let reads: Vec<_> = reads
            .iter()
            .map(|&(target, ms, answer, version)| Read {
                target,
                version,
                sent: begin + ms * MS,
                ..Read::answered(answer)
            })
            .collect();
        check(10 * MS, 2, &Written { versions, cut }, &reads)
    }

    #[test]
    fn staleness_counts_from_the_first_higher_version_confirmed() {
        // (0, 10): sent at the very instant of the confirmation. (1, 29): version 2 was never confirmed.
        for (version, sent, stale) in [
            (0, 10, 0),
            (0, 15, 5),
            (1, 29, 0),
            (1, 31, 1),
            (2, 31, 1),
            (3, 500, 0),
        ] {
            let checks = checks(VERSIONS, 1, &[(0, sent, Answer::Shop, Some(version))]);
            assert_eq!(
                checks[0].measured,
                format!("{stale}.0 ms"),
                "{version} at {sent} ms"
            );
        }
    }

    #[test]
    fn old_values_foreign_names_and_failures_are_violations_and_a_run_without_events_is_unclear() {
        use CheckResult::{Holds, Unclear, Violation};
        for (sent, answer, version, expected) in [
            (40, Answer::Shop, Some(1), Holds),
            (41, Answer::Shop, Some(1), Violation),
            (40, Answer::Shop, Some(4), Violation),
            (40, Answer::Shop, None, Violation),
            (40, Answer::Throttled, None, Holds),
            (40, Answer::ServerError, None, Violation),
        ] {
            let reads = [FRESH[0], FRESH[1], (1, sent, answer, version)];
            let found = CheckResult::worst(&checks(VERSIONS, 1, &reads));
            assert_eq!(found, expected, "{answer:?} {version:?} at {sent} ms");
        }
        for (versions, cut, reads) in [
            ([None, None, Some(30)], 1, FRESH.as_slice()),
            (VERSIONS, 1, &FRESH.as_slice()[..1]),
            (VERSIONS, 0, FRESH.as_slice()),
        ] {
            assert_eq!(CheckResult::worst(&checks(versions, cut, reads)), Unclear);
        }
    }
}
