//! Updates: how long an old value is still served after `PUT /shop` has returned.
//!
//! One writer changes a shop's name to ever higher versions, one after the other, on the instances in turn, while readers
//! hammer all of them. Version *v* was superseded when the first higher version was confirmed. A read that was sent later
//! than that and returned *v* is stale by the time between the two; one that was sent before may return either. Meanwhile
//! the connections on which the instances hear of invalidations are cut now and then.

use std::{
    iter,
    sync::{Arc, Mutex},
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
    reads::{self, Answer, LIMIT, Read, ReadStrategy, Tally, lock},
    stage::{Case, Stage},
};
use crate::report::{Check, Checked};

/// Beyond the bound, readers go on for so long after the last change.
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
        let state = Arc::new(Mutex::new(State::new(stage.nodes.len())));
        let shop = stage.shops[0];
        let mut readers = stage.connect(READERS).await?;
        let live = Arc::new(Live::default());
        let seen = Arc::clone(&state);
        let take = move |_: &mut (), read: Read| lock(&seen).take(&read, version(&read.name));
        let ids = iter::repeat((shop, None));
        let reading = reads::read(&mut readers, self.read_strategy, &live, ids, take);
        // Only what the changes did: readers count elsewhere.
        let changes = Live::default();
        let writing = async {
            let written = write(&token, stage, &state, &changes).await;
            // The readers must see for themselves that the last version is there everywhere.
            sleep(Duration::from_millis(self.bound_ms) + TAIL).await;
            live.stop.cancel();
            written
        };
        let both = async { tokio::join!(reading, writing) };
        let (read, written) = stage.progress.watch("changes", UPDATES, &changes, both).await;
        read.and(written)?;
        let state = lock(&state);
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
            checks: state.check(self),
        })
    }
}

/// The version that a shop's name says; before the first change it is 0.
fn version(name: &str) -> Option<u64> {
    match name.strip_prefix("version ") {
        Some(version) => version.parse().ok(),
        None => name.starts_with("temporary ").then_some(0),
    }
}

async fn write(
    token: &HeaderValue,
    stage: &Stage,
    state: &Mutex<State>,
    changes: &Live,
) -> Result<(), Error> {
    let nodes = stage.nodes.iter();
    let mut connections: Vec<_> = nodes.map(|node| Connection::new(node.clone(), LIMIT)).collect();
    let count = connections.len();
    for version in 1..=UPDATES {
        lock(state).issued = version;
        let connection = &mut connections[version as usize % count];
        let put = put(connection, token, stage.shops[0], version);
        let confirmed = if version % CUT_EVERY == 0 {
            // At the same time, so that the invalidation itself may be lost.
            let (confirmed, cut) = tokio::join!(put, stage.keys.cut_subscribers());
            lock(state).cut += cut?;
            confirmed?
        } else {
            put.await?
        };
        lock(state).wrote(version, confirmed);
        changes.count(false);
        sleep(PAUSE).await;
    }
    Ok(())
}

/// `PUT /shop`; `false`: not confirmed. A refusal that would meet every change ends the run.
async fn put(
    connection: &mut Connection,
    token: &HeaderValue,
    shop: u64,
    version: u64,
) -> Result<bool, Error> {
    let call = Call::new(Method::PUT, "/shop").admin(token);
    let call = call.json(&json!({"id": shop, "name": format!("version {version}")}));
    match insist::<Value>(connection, &call, "a change of a shop").await {
        Ok(_) => Ok(true),
        Err(Error::Refused { status: 500.., .. } | Error::Unreachable { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What was written, and what the readers found.
#[derive(Default)]
struct State {
    /// The version that is there, or about to be.
    issued: u64,
    /// Versions and the instants of their confirmation, both rising.
    confirmed: Vec<(u64, Instant)>,
    unconfirmed: u64,
    /// Invalidation connections that were cut.
    cut: u64,
    answers: Tally,
    /// The worst staleness.
    worst: Duration,
    /// Reads of a version that was not issued yet, or of a name that is no version.
    foreign: u64,
    /// Reads of each instance sent after the latest confirmation so far, and fresh.
    tail: Vec<u64>,
}

impl State {
    fn new(instances: usize) -> Self {
        Self { tail: vec![0; instances], ..Self::default() }
    }

    /// A change is over, confirmed or not.
    fn wrote(&mut self, version: u64, confirmed: bool) {
        if confirmed {
            self.confirmed.push((version, Instant::now()));
        } else {
            self.unconfirmed += 1;
        }
    }

    /// By how much a read sent at `sent` was too late to return `version`; `None`: it was not.
    fn stale_by(&self, version: u64, sent: Instant) -> Option<Duration> {
        let next = self.confirmed.partition_point(|(confirmed, _)| *confirmed <= version);
        let (_, superseded) = self.confirmed.get(next)?;
        sent.checked_duration_since(*superseded).filter(|by| !by.is_zero())
    }

    fn take(&mut self, read: &Read, version: Option<u64>) {
        self.answers.count(read.answer);
        if read.answer != Answer::Shop {
            return;
        }
        let Some(version) = version.filter(|version| *version <= self.issued) else {
            self.foreign += 1;
            return;
        };
        let is_after = |(last, at): &(u64, Instant)| *last <= version && *at < read.sent;
        if let Some(stale) = self.stale_by(version, read.sent) {
            self.worst = self.worst.max(stale);
        } else if self.confirmed.last().is_some_and(is_after) {
            self.tail[read.target] += 1;
        }
    }

    fn check(&self, options: &Options) -> Vec<Check> {
        let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
        let bound = Duration::from_millis(options.bound_ms);
        let confirmed = self.confirmed.len() as u64;
        // A rate limit per shop is no violation: those readers were told to come back.
        let got_it = self.answers.of(&[Answer::Shop, Answer::Throttled]);
        let least = self.tail.iter().min().copied().unwrap_or_default();
        let more = format!("more than {} that were not", self.unconfirmed);
        let fresh = "fresh reads of each instance after a change";
        let cut = "invalidation connections cut";
        vec![
            Check::new("worst staleness", ms(self.worst), ms(bound), self.worst <= bound),
            Check::none("reads of a name that was not written", self.foreign),
            Check::new(
                "answers",
                &self.answers,
                "the shop, or 429",
                got_it == self.answers.total(),
            ),
            Check::new("changes confirmed", confirmed, more, confirmed > self.unconfirmed).needed(),
            Check::new(fresh, least, "at least 1", least > 0).needed(),
            Check::new(cut, self.cut, "at least 1", self.cut > 0).needed(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{options::defaults, report::CheckResult};

    const MS: Duration = Duration::from_millis(1);

    /// Versions 1 and 3 are confirmed at 10 and 30 ms; 2 was not confirmed; 4 is under way.
    fn state(begin: Instant) -> State {
        let mut state = State::new(2);
        state.issued = 4;
        state.confirmed = [1, 3].map(|version| (version, begin + 10 * version as u32 * MS)).into();
        state.cut = 1;
        state
    }

    /// A read of a version, sent so many milliseconds after `begin` to instance 0 or 1.
    fn read(state: &mut State, begin: Instant, target: usize, ms: u32, version: Option<u64>) {
        let (sent, answer) = (begin + ms * MS, Answer::Shop);
        let read = Read { target, sent, ended: sent + MS, latency: MS, answer, name: "".into() };
        state.take(&read, version);
    }

    /// The worst result, with so many milliseconds allowed.
    fn result(state: &State, bound_ms: u64) -> CheckResult {
        CheckResult::worst(&state.check(&Options { bound_ms, ..defaults() }))
    }

    #[test]
    fn staleness_counts_from_the_first_higher_version_confirmed() {
        let begin = Instant::now();
        let state = state(begin);
        let stale = |version, ms: u32| state.stale_by(version, begin + ms * MS);
        assert_eq!(stale(0, 9), None, "before the change was confirmed");
        assert_eq!(stale(0, 10), None, "at that very instant");
        assert_eq!(stale(0, 15), Some(5 * MS));
        assert_eq!(stale(1, 29), None, "2 was never confirmed");
        assert_eq!((stale(1, 31), stale(2, 31)), (Some(MS), Some(MS)));
        assert_eq!((stale(3, 500), stale(4, 500)), (None, None));
    }

    #[test]
    fn a_read_beyond_the_bound_and_a_foreign_name_are_violations() {
        let begin = Instant::now();
        let mut state = state(begin);
        read(&mut state, begin, 0, 40, Some(3));
        read(&mut state, begin, 1, 40, Some(4));
        read(&mut state, begin, 1, 40, Some(1));
        assert_eq!((state.worst, &state.tail), (10 * MS, &vec![1, 1]));
        let both = (result(&state, 10), result(&state, 9));
        assert_eq!(both, (CheckResult::Holds, CheckResult::Violation));
        for foreign in [Some(5), version("another shop")] {
            let mut state = self::state(begin);
            read(&mut state, begin, 0, 40, foreign);
            assert_eq!(result(&state, 1000), CheckResult::Violation);
        }
        state.answers.count(Answer::Throttled);
        assert_eq!(result(&state, 10), CheckResult::Holds);
        state.answers.count(Answer::ServerError);
        assert_eq!(result(&state, 10), CheckResult::Violation);
    }

    #[test]
    fn a_run_that_tried_nothing_proves_nothing() {
        let with = |change: fn(&mut State)| {
            let mut state = state(Instant::now());
            state.tail = vec![10, 10];
            change(&mut state);
            result(&state, 1000)
        };
        assert_eq!(with(|_| ()), CheckResult::Holds);
        assert_eq!(with(|state| state.unconfirmed = 9), CheckResult::Unclear);
        assert_eq!(with(|state| state.tail = vec![10, 0]), CheckResult::Unclear);
        assert_eq!(with(|state| state.cut = 0), CheckResult::Unclear);
    }
}
