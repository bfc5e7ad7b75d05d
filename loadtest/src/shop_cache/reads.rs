//! Reads of shops: the requests, and what their answers mean to a reader.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use clap::ValueEnum;
use hyper::header::{HeaderName, HeaderValue};
use rand::Rng;
use serde::Deserialize;
use workload::{
    Error,
    driver::{Connections, Done, Job},
    http::{Call, Failure, Response},
    live::{Live, Progress},
    reply::Envelope,
};

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
        f.write_str(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

/// The strategy's name in a report.
pub fn name(strategy: Option<ReadStrategy>) -> String {
    strategy.map_or("the configured one".to_owned(), |strategy| strategy.to_string())
}

/// What a read was answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// Anything else, such as another shop, or that a shop which exists does not: never expected of a read.
    Unexpected,
}

/// The answers' names in a report.
const LABELS: [&str; 6] = ["a shop", "absent", "429", "5xx", "no answer", "unexpected"];

#[derive(Deserialize)]
struct Shop {
    id: u64,
    name: Box<str>,
}

impl Answer {
    /// Reads what came back for shop `id`; also the shop's name.
    fn of(id: u64, answer: &Result<Response, Failure>) -> (Self, Box<str>) {
        let Ok(Response { status, body, .. }) = answer else { return (Self::Nothing, "".into()) };
        let answer = match (*status, serde_json::from_slice::<Envelope<Shop>>(body)) {
            (429, _) => Self::Throttled,
            (500.., _) => Self::ServerError,
            (200, Ok(Envelope { success: true, data: Some(shop), .. })) if shop.id == id => {
                return (Self::Shop, shop.name);
            }
            // A Java node has no codes, only texts.
            (200, Ok(Envelope { success: false, code, error_msg, .. }))
                if ABSENT.contains(&id)
                    && (code.as_deref() == Some("SHOP_NOT_FOUND")
                        || (code.is_none() && error_msg.as_deref() == Some("店铺不存在"))) =>
            {
                Self::Absent
            }
            _ => Self::Unexpected,
        };
        (answer, "".into())
    }
}

/// Answers by kind.
#[derive(Debug, Clone, Default)]
pub struct Tally([u64; LABELS.len()]);

impl Tally {
    pub fn count(&mut self, answer: Answer) {
        self.0[answer as usize] += 1;
    }

    /// Answers like these.
    pub fn of(&self, answers: &[Answer]) -> u64 {
        answers.iter().map(|answer| self.0[*answer as usize]).sum()
    }

    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl FromIterator<Answer> for Tally {
    fn from_iter<I: IntoIterator<Item = Answer>>(answers: I) -> Self {
        let mut tally = Self::default();
        answers.into_iter().for_each(|answer| tally.count(answer));
        tally
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = LABELS.iter().zip(self.0).filter(|(_, count)| *count > 0);
        let parts: Vec<_> = seen.map(|(label, count)| format!("{label} {count}")).collect();
        f.write_str(&if parts.is_empty() { "none".to_owned() } else { parts.join(", ") })
    }
}

/// So many random ids that do not exist. What is remembered of them in Redis expires by itself, after two minutes.
pub fn absent(count: usize) -> Vec<u64> {
    let mut rng = rand::rng();
    (0..count).map(|_| rng.random_range(ABSENT)).collect()
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
    /// The shop's name, if the shop came.
    pub name: Box<str>,
}

/// When a read is due; `None`: as soon as a connection is free.
type Due = Option<Instant>;

/// The driver of reads: reads `ids`, each when it is due, and returns what `take` made of all finished reads. With no
/// strategy shops are read as the service is configured.
///
/// # Errors
/// Only a bug in the tool; whatever a server does is an [`Answer`].
pub async fn read<S: Default + Send + 'static>(
    connections: &mut Connections,
    strategy: Option<ReadStrategy>,
    live: &Arc<Live>,
    ids: impl Iterator<Item = (u64, Due)> + Send + 'static,
    take: impl Fn(&mut S, Read) + Send + Sync + 'static,
) -> Result<S, Error> {
    let strategy = strategy.map(|strategy| HeaderValue::try_from(strategy.to_string()));
    let strategy = strategy.transpose().map_err(|error| Error::Usage(error.to_string()))?;
    let (ids, seen) = (Mutex::new(ids), Arc::new(Mutex::default()));
    let (counted, taken) = (Arc::clone(live), Arc::clone(&seen));
    let next = move |_target: usize| {
        let (id, due) = lock(&ids).next()?;
        let mut call = Call::get(format!("/shop/{id}"));
        if let Some(strategy) = &strategy {
            call = call.header(LAB_CACHE, strategy.clone());
        }
        Some(Job { call, due, what: id })
    };
    let ended = move |done: Done<u64>| {
        let Done { what: id, target, due, sent, ended, answer } = done;
        let (answer, name) = Answer::of(id, &answer);
        counted.count(false);
        let latency = ended.saturating_duration_since(due);
        take(&mut lock(&taken), Read { target, sent, ended, latency, answer, name });
    };
    connections.drive(live, next, ended).await?;
    let seen = std::mem::take(&mut *lock(&seen));
    Ok(seen)
}

/// Reads all of `ids` in their order, each once: all due at this instant, or one after the other on each connection.
pub async fn read_all(
    connections: &mut Connections,
    strategy: ReadStrategy,
    ids: Vec<u64>,
    due: Due,
    progress: Progress,
) -> Result<Vec<Read>, Error> {
    let (what, total, live) = (strategy.to_string(), ids.len() as u64, Arc::default());
    let ids = ids.into_iter().map(move |id| (id, due));
    let reading = read(connections, Some(strategy), &live, ids, Vec::push);
    progress.watch(&what, total, &live, reading).await
}

/// Locks what reads on all connections share.
pub fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart() {
        let of = |id: u64, status: u16, body: &'static str| {
            let body = hyper::body::Bytes::from_static(body.as_bytes());
            Answer::of(id, &Ok(Response { status, body, ..Response::default() }))
        };
        let found = of(1, 200, r#"{"success":true,"data":{"id":1,"name":"a","x":1.5}}"#);
        assert_eq!(found, (Answer::Shop, "a".into()));
        let absent = r#"{"success":false,"errorMsg":"店铺不存在","code":"SHOP_NOT_FOUND"}"#;
        let other = r#"{"success":true,"data":{"id":2,"name":"b"}}"#;
        for (status, body, expected) in [
            (200, absent, Answer::Absent),
            (200, r#"{"success":false,"errorMsg":"店铺不存在"}"#, Answer::Absent),
            (200, r#"{"success":false,"code":"OTHER"}"#, Answer::Unexpected),
            (200, r#"{"success":true}"#, Answer::Unexpected),
            (200, other, Answer::Unexpected),
            (200, "<html>", Answer::Unexpected),
            (404, absent, Answer::Unexpected),
            (429, "", Answer::Throttled),
            (503, "{}", Answer::ServerError),
        ] {
            assert_eq!(of(ABSENT.start, status, body).0, expected, "{status} {body}");
        }
        assert_eq!(of(1, 200, absent).0, Answer::Unexpected, "the shop exists");
        assert_eq!(Answer::of(1, &Err(Failure::TimedOut)).0, Answer::Nothing);
    }

    #[test]
    fn a_tally_counts_every_answer_once() {
        let answers = [Answer::Absent, Answer::Nothing, Answer::Absent, Answer::Unexpected];
        let tally: Tally = answers.into_iter().collect();
        assert_eq!((tally.total(), tally.of(&[Answer::Absent, Answer::Nothing])), (4, 3));
        assert_eq!(tally.to_string(), "absent 2, no answer 1, unexpected 1");
    }
}
