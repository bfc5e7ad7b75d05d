//! Reads of shops: the requests, and what their answers mean to a reader.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use clap::ValueEnum;
use hyper::header::{HeaderName, HeaderValue};
use serde::Deserialize;
use workload::{
    Error,
    buyers::Envelope,
    driver::{Connections, Done, Job, Source},
    http::{Call, Failure, Response},
    live::{Live, Progress},
};

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

impl ReadStrategy {
    /// The service's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CacheAside => "cache-aside",
            Self::NullCaching => "null-caching",
            Self::Mutex => "mutex",
            Self::LogicalExpiry => "logical-expiry",
            Self::Layered => "layered",
        }
    }
}

impl fmt::Display for ReadStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The strategy's name in a report.
pub fn name(strategy: Option<ReadStrategy>) -> &'static str {
    strategy.map_or("the configured one", ReadStrategy::name)
}

/// `GET /shop/{id}`, by this strategy or the configured one.
fn call(strategy: Option<ReadStrategy>, id: u64) -> Call {
    let call = Call::get(format!("/shop/{id}"));
    match strategy {
        Some(strategy) => call.header(LAB_CACHE, HeaderValue::from_static(strategy.name())),
        None => call,
    }
}

/// The answer to a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A shop with this id and name.
    Found(u64, Box<str>),
    /// "There is no such shop."
    Absent,
    /// Too many requests (429).
    Throttled,
    /// The service or a proxy failed (5xx).
    ServerError,
    /// Nothing came: refused, cut, or too late.
    Nothing,
    /// Anything else: never expected of a read.
    Unexpected,
}

#[derive(Deserialize)]
struct Shop {
    id: u64,
    name: Box<str>,
}

impl Answer {
    /// Reads what came back.
    fn of(answer: &Result<Response, Failure>) -> Self {
        let Ok(Response { status, body, .. }) = answer else { return Self::Nothing };
        match (*status, serde_json::from_slice::<Envelope<Shop>>(body)) {
            (429, _) => Self::Throttled,
            (500.., _) => Self::ServerError,
            (200, Ok(Envelope { success: true, data: Some(Shop { id, name }), .. })) => {
                Self::Found(id, name)
            }
            // A Java node has no codes, only texts.
            (200, Ok(Envelope { success: false, code, error_msg, .. }))
                if code.as_deref() == Some("SHOP_NOT_FOUND")
                    || (code.is_none() && error_msg.as_deref() == Some("店铺不存在")) =>
            {
                Self::Absent
            }
            _ => Self::Unexpected,
        }
    }

    /// Whether it is this shop.
    pub fn is_shop(&self, wanted: u64) -> bool {
        matches!(self, Self::Found(id, _) if *id == wanted)
    }

    fn label(&self) -> &'static str {
        match self {
            Self::Found(..) => "a shop",
            Self::Absent => "absent",
            Self::Throttled => "429",
            Self::ServerError => "5xx",
            Self::Nothing => "no answer",
            Self::Unexpected => "unexpected",
        }
    }
}

/// Answers by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    /// Counts one.
    pub fn count(&mut self, answer: &Answer) {
        *self.0.entry(answer.label()).or_default() += 1;
    }

    /// Counts what another has.
    pub fn add(&mut self, other: &Self) {
        for (label, count) in &other.0 {
            *self.0.entry(label).or_default() += count;
        }
    }

    /// Answers like this one.
    pub fn of(&self, answer: &Answer) -> u64 {
        self.0.get(answer.label()).copied().unwrap_or_default()
    }

    /// Shops.
    pub fn found(&self) -> u64 {
        self.of(&Answer::Found(0, "".into()))
    }

    /// Answers that "no 5xx" forbids: 5xx, and none at all.
    pub fn failures(&self) -> u64 {
        self.of(&Answer::ServerError) + self.of(&Answer::Nothing)
    }

    /// All answers.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

impl<'a> FromIterator<&'a Answer> for Tally {
    fn from_iter<I: IntoIterator<Item = &'a Answer>>(answers: I) -> Self {
        let mut tally = Self::default();
        answers.into_iter().for_each(|answer| tally.count(answer));
        tally
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<_> =
            self.0.iter().map(|(label, count)| format!("{label} {count}")).collect();
        f.write_str(&if parts.is_empty() { "none".to_owned() } else { parts.join(", ") })
    }
}

/// A finished read.
#[derive(Debug, Clone)]
pub struct Read {
    /// Index of the instance asked.
    pub target: usize,
    /// When it was due.
    pub due: Instant,
    /// When it was sent.
    pub sent: Instant,
    /// When the last byte of its answer was there.
    pub ended: Instant,
    /// What came.
    pub answer: Answer,
}

impl Read {
    /// From when it was due to its end: queueing in this tool counts, too.
    pub fn latency(&self) -> Duration {
        self.ended.saturating_duration_since(self.due)
    }
}

/// Reads of shops: which id comes next, and when; and what is done with what came back.
pub struct Reads<N, E> {
    /// How they are read; `None`: as configured.
    pub strategy: Option<ReadStrategy>,
    /// The next id and when it is due; no id ends the connection's work.
    pub next: N,
    /// Takes a finished read.
    pub ended: E,
}

impl<N, E> Source for Reads<N, E>
where
    N: Fn() -> Option<(u64, Option<Instant>)> + Send + Sync + 'static,
    E: Fn(Read) + Send + Sync + 'static,
{
    type What = ();

    fn next(&self, _target: usize) -> Option<Job<()>> {
        let (id, due) = (self.next)()?;
        Some(Job { call: call(self.strategy, id), due, what: () })
    }

    fn ended(&self, done: Done<()>) {
        let Done { target, due, sent, ended, ref answer, .. } = done;
        (self.ended)(Read { target, due, sent, ended, answer: Answer::of(answer) });
    }
}

/// Reads all of `ids` in their order, each once: all due at this instant, or one after the other on each connection.
///
/// # Errors
/// Only a bug in the tool; whatever a server does is an [`Answer`].
pub async fn read_all(
    connections: &mut Connections,
    strategy: Option<ReadStrategy>,
    ids: Vec<u64>,
    due: Option<Instant>,
    (progress, what): (Progress, &str),
) -> Result<Vec<Read>, Error> {
    let total = ids.len() as u64;
    let (ids, reads, live) =
        (Mutex::new(ids.into_iter()), Arc::new(Mutex::new(Vec::new())), Arc::default());
    let (ended, counted): (_, Arc<Live>) = (Arc::clone(&reads), Arc::clone(&live));
    let source = Arc::new(Reads {
        strategy,
        next: move || Some((ids.lock().unwrap_or_else(PoisonError::into_inner).next()?, due)),
        ended: move |read| {
            counted.count(false);
            ended.lock().unwrap_or_else(PoisonError::into_inner).push(read);
        },
    });
    progress.watch(what, total, &live, connections.drive(&source, &live)).await?;
    let mut reads = reads.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut reads))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_travel_in_the_header() {
        for strategy in ReadStrategy::value_variants() {
            assert_eq!(ReadStrategy::from_str(strategy.name(), false), Ok(*strategy));
            assert_eq!(call(Some(*strategy), 7).headers[LAB_CACHE], strategy.name());
        }
        let plain = call(None, 7);
        assert_eq!((plain.path.as_str(), plain.headers.get(LAB_CACHE)), ("/shop/7", None));
    }

    #[test]
    fn answers_are_told_apart() {
        let answer = |status: u16, body: &'static str| {
            let body = hyper::body::Bytes::from_static(body.as_bytes());
            Answer::of(&Ok(Response { status, body, ..Response::default() }))
        };
        let found = answer(200, r#"{"success":true,"data":{"id":1,"name":"a","x":1.5}}"#);
        assert_eq!(found, Answer::Found(1, "a".into()));
        let absent = r#"{"success":false,"errorMsg":"店铺不存在","code":"SHOP_NOT_FOUND"}"#;
        assert_eq!(answer(200, absent), Answer::Absent);
        assert_eq!(answer(200, r#"{"success":false,"errorMsg":"店铺不存在"}"#), Answer::Absent);
        for body in [r#"{"success":false,"code":"OTHER"}"#, r#"{"success":true}"#, "<html>"] {
            assert_eq!(answer(200, body), Answer::Unexpected, "{body}");
        }
        assert_eq!(answer(404, absent), Answer::Unexpected);
        assert_eq!((answer(429, ""), answer(503, "{}")), (Answer::Throttled, Answer::ServerError));
        assert_eq!(Answer::of(&Err(Failure::TimedOut)), Answer::Nothing);
    }

    #[test]
    fn a_tally_counts_every_answer_once() {
        let answers = [Answer::Absent, Answer::Nothing, Answer::ServerError, Answer::Unexpected];
        let mut tally: Tally = answers.iter().collect();
        assert_eq!((tally.total(), tally.failures(), tally.found()), (4, 2, 0));
        tally.add(&[Answer::Found(1, "a".into()), Answer::Absent].iter().collect());
        assert_eq!(tally.to_string(), "5xx 1, a shop 1, absent 2, no answer 1, unexpected 1");
    }
}
