//! Updates: how long an old value is still served after `PUT /shop` has returned.
//!
//! One writer changes a shop's name to ever higher versions, one after the other, on the instances in turn, while readers
//! hammer all of them. A read that was sent after version *v + 1* was confirmed and returned *v* is stale by the time
//! between the two; one that was sent before may return either. Meanwhile the connections on which the instances hear of
//! invalidations are cut now and then.

use std::{
    iter,
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::Method;
use serde_json::{Value, json};
use tokio::time::sleep;
use workload::{
    Error,
    buyers::insist,
    http::{Call, Connection},
    live::Live,
};

use super::{
    reads::{self, Answer, LIMIT, Read, answered},
    shops::NAME,
    stage::Stage,
};
use crate::report::{Check, Checked};

/// How long an old value may still be served after its change was confirmed.
const BOUND: Duration = Duration::from_secs(1);
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

/// What was written.
#[derive(Default)]
struct Written {
    /// When each version was confirmed, from 1 on.
    versions: Vec<Instant>,
    /// Invalidation connections that were cut.
    cut: u64,
}

pub async fn run(stage: &Stage) -> Result<Checked, Error> {
    let mut readers = stage.connect(READERS).await?;
    let ids = iter::repeat((stage.shops[0], None));
    let live = Arc::<Live>::default();
    let reading = reads::read(&mut readers, None, &live, ids);
    // Counts the changes only; the readers count in `live`.
    let changes = Live::default();
    let writing = async {
        let written = write(stage, &changes).await;
        // The readers must see for themselves that the last version is there everywhere.
        sleep(BOUND + TAIL).await;
        live.stop.cancel();
        written
    };
    let working = async { tokio::join!(reading, writing) };
    let watching = stage.progress.watch("changes", UPDATES, &changes, working);
    let (reads, written) = watching.await;
    Ok(Checked {
        scenario: "cache updates",
        heading: format!("A shop is changed through {} in turn.", stage.urls()),
        figures: Vec::new(),
        notes:
            "A read is stale when it was sent after a change had been confirmed and returned an older version; its\n\
             staleness is the time between the two."
                .to_owned(),
        checks: check(stage.nodes.len(), &written?, &reads?),
    })
}

async fn write(stage: &Stage, changes: &Live) -> Result<Written, Error> {
    let token = stage.access.admin_header("changing a shop")?;
    let nodes = stage.nodes.iter();
    let mut connections: Vec<_> = nodes
        .map(|node| Connection::new(node.clone(), LIMIT))
        .collect();
    let count = connections.len();
    let mut written = Written::default();
    for version in (1..=UPDATES).take_while(|_| !stage.stop.is_cancelled()) {
        let connection = &mut connections[version as usize % count];
        let change = json!({"id": stage.shops[0], "name": format!("{NAME}{version}")});
        let call = Call::new(Method::PUT, "/shop").admin(&token).json(&change);
        let put = insist::<Value>(connection, &call, "a change of a shop");
        if version % CUT_EVERY == 0 {
            // At the same time, so that the invalidation itself may be lost.
            let (_, cut) = tokio::try_join!(put, stage.keys.cut_subscribers())?;
            written.cut += cut;
        } else {
            put.await?;
        }
        written.versions.push(Instant::now());
        changes.count(false);
        sleep(PAUSE).await;
    }
    Ok(written)
}

/// Checks what the readers of so many instances found against what was written.
fn check(instances: usize, written: &Written, reads: &[Read]) -> Vec<Check> {
    let Written { versions, cut } = written;
    let mut worst = Duration::ZERO;
    let mut foreign = 0;
    let mut fresh = vec![0_u64; instances];
    for read in reads.iter().filter(|read| read.answer == Answer::Shop) {
        let read_version = read.version.map_or(usize::MAX, |version| version as usize);
        // When the version after this one was confirmed. Before the first change the version is 0.
        if let Some(superseded) = versions.get(read_version) {
            worst = worst.max(read.sent.saturating_duration_since(*superseded));
        } else if read_version > versions.len() {
            foreign += 1;
        } else if versions.last().is_some_and(|last| *last < read.sent) {
            fresh[read.target] += 1;
        }
    }
    let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    let least = fresh.into_iter().min().unwrap_or_default();
    let after = "fresh reads of each instance after the last change";
    vec![
        Check::new("worst staleness", ms(worst), ms(BOUND), worst <= BOUND),
        Check::none("reads of a name that was not written", foreign),
        // A read that a rate limit refused is no violation: the reader was told to come back.
        answered(reads, &[Answer::Shop, Answer::Throttled]),
        Check::new(after, least, "at least 1", least > 0).needed(),
        Check::new("invalidation connections cut", cut, "at least 1", *cut > 0).needed(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CheckResult;

    /// Checks reads of two instances, given as instance, milliseconds at which it was sent, answer and version. Versions 1
    /// and 2 were confirmed after 100 and 300 ms.
    fn checks(cut: u64, reads: &[(usize, u64, Answer, Option<u64>)]) -> Vec<Check> {
        let begin = Instant::now();
        let after = |ms: u64| begin + Duration::from_millis(ms);
        let versions = vec![after(100), after(300)];
        let mut sent_reads = Vec::new();
        for &(target, sent_ms, answer, version) in reads {
            sent_reads.push(Read {
                target,
                version,
                sent: after(sent_ms),
                ..Read::answered(answer)
            });
        }
        check(2, &Written { versions, cut }, &sent_reads)
    }

    #[test]
    fn staleness_counts_from_the_next_version_confirmed() {
        // The first was sent at the very instant of the confirmation.
        for (version, sent_ms, stale) in [
            (0, 100, "0.0 ms"),
            (0, 105, "5.0 ms"),
            (1, 299, "0.0 ms"),
            (1, 310, "10.0 ms"),
            (2, 500, "0.0 ms"),
        ] {
            let checks = checks(1, &[(0, sent_ms, Answer::Shop, Some(version))]);
            assert_eq!(checks[0].measured, stale, "{version} at {sent_ms} ms");
        }
    }

    #[test]
    fn old_values_foreign_names_and_failures_are_violations_and_a_run_without_events_is_unclear() {
        use Answer::{ServerError, Shop, Throttled};
        use CheckResult::{Holds, Unclear, Violation};
        let fresh = [(0, 400, Shop, Some(2)), (1, 400, Shop, Some(2))];
        for (sent_ms, answer, version, expected) in [
            (1300, Shop, Some(1), Holds),
            (1301, Shop, Some(1), Violation),
            (400, Shop, Some(3), Violation),
            (400, Shop, None, Violation),
            (400, Throttled, None, Holds),
            (400, ServerError, None, Violation),
        ] {
            let reads = [fresh[0], fresh[1], (1, sent_ms, answer, version)];
            let found = CheckResult::worst(&checks(1, &reads));
            assert_eq!(found, expected, "{answer:?} {version:?} at {sent_ms} ms");
        }
        assert_eq!(CheckResult::worst(&checks(1, &fresh[..1])), Unclear);
        assert_eq!(CheckResult::worst(&checks(0, &fresh)), Unclear);
    }
}
