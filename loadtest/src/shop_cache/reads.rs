//! Reads of shops: the requests, and what their answers mean to a reader.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use clap::ValueEnum;
use hyper::header::{HeaderName, HeaderValue};
use rand::Rng;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use workload::{
    Error,
    driver::{Connections, Done, Job},
    http::{Call, Failure, Response},
    live::{Live, Progress, lock},
    reply::Envelope,
};

use super::shops::NAME;
use crate::report::Check;

/// Ids that do not exist are taken from here, far above those in use.
const ABSENT: std::ops::Range<u64> = 2_000_000_000_000..4_000_000_000_000;
/// Time limit of one read or write.
pub const LIMIT: Duration = Duration::from_secs(10);
/// The header that chooses the read strategy of one request; a server without `--lab` ignores it.
const LAB_CACHE: HeaderName = HeaderName::from_static("x-lab-cache");

/// The patterns by which the service can read a shop, by its names for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReadStrategy {
    /// Look, load, store
    CacheAside,
    /// The same, and absent rows are remembered
    NullCaching,
    /// One load in the whole cluster, and all others wait for it
    Mutex,
    /// Values never leave; an expired one is served while it is rebuilt
    LogicalExpiry,
    /// Memory, then Redis, then one load per process and per cluster
    Layered,
}

impl fmt::Display for ReadStrategy {
    /// As on the command line, which is the service's name for it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            self.to_possible_value()
                .as_ref()
                .map_or("", |value| value.get_name()),
        )
    }
}

/// The strategy's name in a report.
pub fn name(strategy: Option<ReadStrategy>) -> String {
    strategy.map_or("the configured one".to_owned(), |strategy| {
        strategy.to_string()
    })
}

/// What a read was answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// The shop.
    Shop,
    /// "There is no such shop", of an id that is absent.
    Absent,
    /// Too many requests (429).
    Throttled,
    /// The service or a proxy failed (5xx).
    ServerError,
    /// Nothing came: refused, cut, or too late.
    Nothing,
    /// Anything else, such as another shop, or "there is no such shop" for one that exists. Never expected.
    Unexpected,
}

#[derive(Deserialize)]
struct Shop {
    id: u64,
    name: String,
}

impl Answer {
    /// The meaning of the response for shop `id`, and the version that the name of a temporary shop says.
    fn from_response(id: u64, response: &Result<Response, Failure>) -> (Self, Option<u64>) {
        let Ok(Response { status, body, .. }) = response else {
            return (Self::Nothing, None);
        };
        let answer = match (*status, serde_json::from_slice::<Envelope<Shop>>(body)) {
            (429, _) => Self::Throttled,
            (500.., _) => Self::ServerError,
            (
                200,
                Ok(Envelope {
                    success: true,
                    data: Some(shop),
                    ..
                }),
            ) if shop.id == id => {
                let version = shop.name.strip_prefix(NAME);
                return (Self::Shop, version.and_then(|version| version.parse().ok()));
            }
            (
                200,
                Ok(Envelope {
                    success: false,
                    code: Some(code),
                    ..
                }),
            ) if code == "SHOP_NOT_FOUND" && ABSENT.contains(&id) => Self::Absent,
            _ => Self::Unexpected,
        };
        (answer, None)
    }
}

/// A random id that does not exist. A null that is cached for it in Redis expires by itself, after two minutes.
pub fn absent() -> u64 {
    rand::rng().random_range(ABSENT)
}

/// A finished read.
#[derive(Debug, Clone)]
pub struct Read {
    /// Index of the instance asked.
    pub target: usize,
    /// When it was sent.
    pub sent: Instant,
    /// When the last byte of its answer was there.
    pub ended: Instant,
    /// From when it was due to its end: queueing in this tool counts, too.
    pub latency: Duration,
    /// What came.
    pub answer: Answer,
    /// The version of a temporary shop, if one came.
    pub version: Option<u64>,
}

/// How many of these reads had one of these answers.
pub fn count(reads: &[Read], answers: &[Answer]) -> u64 {
    reads
        .iter()
        .filter(|read| answers.contains(&read.answer))
        .count() as u64
}

/// Checks that all reads had one of the answers that are right; shows which they had.
pub fn answered(what: impl Into<String>, reads: &[Read], right: &[Answer]) -> Check {
    let mut counts = BTreeMap::<Answer, u64>::new();
    for read in reads {
        *counts.entry(read.answer).or_default() += 1;
    }
    let holds = counts.keys().all(|answer| right.contains(answer));
    Check::new(what, format!("{counts:?}"), format!("{right:?}"), holds)
}

/// The driver of reads: reads `ids`, each when it is due or as soon as a connection is free, until `live` is stopped. With
/// no strategy shops are read as the service is configured.
///
/// # Errors
/// Only a bug in the tool; whatever a server does is an [`Answer`].
pub async fn read(
    connections: &mut Connections,
    strategy: Option<ReadStrategy>,
    live: &Arc<Live>,
    ids: impl Iterator<Item = (u64, Option<Instant>)> + Send + 'static,
) -> Result<Vec<Read>, Error> {
    let strategy = strategy.map(|strategy| HeaderValue::try_from(strategy.to_string()));
    let strategy = strategy
        .transpose()
        .map_err(|error| Error::Usage(error.to_string()))?;
    let ids = Mutex::new(ids);
    let reads = Arc::new(Mutex::new(Vec::new()));
    let counted = Arc::clone(live);
    let taken = Arc::clone(&reads);
    let next = move |_target: usize| {
        let (id, due) = lock(&ids).next()?;
        let mut call = Call::get(format!("/shop/{id}"));
        if let Some(strategy) = &strategy {
            call = call.header(LAB_CACHE, strategy.clone());
        }
        Some(Job {
            call,
            due,
            what: id,
        })
    };
    let ended = move |done: Done<u64>| {
        let Done {
            what: id,
            target,
            due,
            sent,
            ended,
            answer,
        } = done;
        let (answer, version) = Answer::from_response(id, &answer);
        counted.count(false);
        let latency = ended.saturating_duration_since(due);
        lock(&taken).push(Read {
            target,
            sent,
            ended,
            latency,
            answer,
            version,
        });
    };
    connections.drive(live, next, ended).await?;
    let reads = std::mem::take(&mut *lock(&reads));
    Ok(reads)
}

/// Reads all of `ids` in their order, each once: all at the instant `due`, or, without one, each as soon as a connection is
/// free. After `stop` it returns the reads that were made.
pub async fn read_all(
    connections: &mut Connections,
    strategy: ReadStrategy,
    ids: Vec<u64>,
    due: Option<Instant>,
    progress: Progress,
    stop: &CancellationToken,
) -> Result<Vec<Read>, Error> {
    let what = strategy.to_string();
    let total = ids.len() as u64;
    let live = Arc::new(Live::stopped_by(stop));
    let ids = ids.into_iter().map(move |id| (id, due));
    let reading = read(connections, Some(strategy), &live, ids);
    progress.watch(&what, total, &live, reading).await
}

#[cfg(test)]
impl Read {
    /// A read with this answer, for tests.
    pub fn answered(answer: Answer) -> Self {
        let now = Instant::now();
        let latency = Duration::ZERO;
        Self {
            target: 0,
            sent: now,
            ended: now,
            latency,
            answer,
            version: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart() {
        let answer = |id: u64, status: u16, body: &str| {
            let body = body.to_owned().into();
            Answer::from_response(
                id,
                &Ok(Response {
                    status,
                    body,
                    ..Response::default()
                }),
            )
        };
        for (name, version) in [("temporary, version 7", Some(7)), ("version 7", None)] {
            let body = format!(r#"{{"success":true,"data":{{"id":1,"name":"{name}","x":1.5}}}}"#);
            assert_eq!(answer(1, 200, &body), (Answer::Shop, version));
        }
        let absent = r#"{"success":false,"errorMsg":"店铺不存在","code":"SHOP_NOT_FOUND"}"#;
        let other_shop = r#"{"success":true,"data":{"id":2,"name":"b"}}"#;
        for (status, body, expected) in [
            (200, absent, Answer::Absent),
            (
                200,
                r#"{"success":false,"code":"OTHER"}"#,
                Answer::Unexpected,
            ),
            (200, r#"{"success":true}"#, Answer::Unexpected),
            (200, other_shop, Answer::Unexpected),
            (200, "<html>", Answer::Unexpected),
            (404, absent, Answer::Unexpected),
            (429, "", Answer::Throttled),
            (503, "{}", Answer::ServerError),
        ] {
            assert_eq!(
                answer(ABSENT.start, status, body).0,
                expected,
                "{status} {body}"
            );
        }
        let (existing, _) = answer(1, 200, absent);
        assert_eq!(existing, Answer::Unexpected, "the shop exists");
        let (no_response, _) = Answer::from_response(1, &Err(Failure::TimedOut));
        assert_eq!(no_response, Answer::Nothing);
    }
}
