//! Reads of shops: the requests, and what their answers mean to a reader.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use hyper::header::{HeaderName, HeaderValue};
use rand::Rng;
use serde::Deserialize;
use workload::{
    Error,
    driver::{Connections, Done, Job},
    http::{Call, Failure, Response},
    live::{Live, lock},
    reply::Envelope,
};

use super::shops::NAME;
use crate::report::Check;

/// Ids that do not exist are taken from here, far above those in use.
const ABSENT: Range<u64> = 2_000_000_000_000..4_000_000_000_000;
/// Time limit of one read or write.
pub const LIMIT: Duration = Duration::from_secs(10);
/// The header that chooses the read strategy of one request; a server without `--lab` ignores it.
const LAB_CACHE: HeaderName = HeaderName::from_static("x-lab-cache");

/// A read strategy, by the service's name for it; `None`: the one that the service is configured with.
pub type Strategy = Option<&'static str>;

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
        let envelope = serde_json::from_slice::<Envelope<Shop>>(body).ok();
        let is_not_found = envelope
            .as_ref()
            .is_some_and(|reply| !reply.success && reply.code.as_deref() == Some("SHOP_NOT_FOUND"));
        let shop = envelope
            .filter(|reply| reply.success)
            .and_then(|reply| reply.data)
            .filter(|shop| shop.id == id);
        match (*status, shop) {
            (429, _) => (Self::Throttled, None),
            (500.., _) => (Self::ServerError, None),
            (200, Some(shop)) => {
                let version = shop.name.strip_prefix(NAME);
                (Self::Shop, version.and_then(|version| version.parse().ok()))
            }
            (200, None) if is_not_found && ABSENT.contains(&id) => (Self::Absent, None),
            _ => (Self::Unexpected, None),
        }
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

/// How many of these reads had this answer.
pub fn count(reads: &[Read], answer: Answer) -> u64 {
    reads.iter().filter(|read| read.answer == answer).count() as u64
}

/// Checks that all reads had one of the answers that are right; shows which they had.
pub fn answered(reads: &[Read], right: &[Answer]) -> Check {
    let mut counts = BTreeMap::<Answer, u64>::new();
    for read in reads {
        *counts.entry(read.answer).or_default() += 1;
    }
    let found = counts
        .iter()
        .map(|(answer, count)| format!("{answer:?} {count}"));
    let found: Vec<_> = found.collect();
    let allowed: Vec<_> = right.iter().map(|answer| format!("{answer:?}")).collect();
    let holds = counts.keys().all(|answer| right.contains(answer));
    Check::new("answers", found.join(", "), allowed.join(" or "), holds)
}

/// The driver of reads: reads `ids`, each when it is due or as soon as a connection is free, until `live` is stopped.
///
/// # Errors
/// Only a bug in the tool; whatever a server does is an [`Answer`].
pub async fn read(
    connections: &mut Connections,
    strategy: Strategy,
    live: &Arc<Live>,
    ids: impl Iterator<Item = (u64, Option<Instant>)> + Send + 'static,
) -> Result<Vec<Read>, Error> {
    let ids = Mutex::new(ids);
    let reads = Arc::new(Mutex::new(Vec::new()));
    let counted = Arc::clone(live);
    let taken = Arc::clone(&reads);
    let next = move |_target: usize| {
        let (id, due) = lock(&ids).next()?;
        let mut call = Call::get(format!("/shop/{id}"));
        if let Some(strategy) = strategy {
            call = call.header(LAB_CACHE, HeaderValue::from_static(strategy));
        }
        Some(Job {
            call,
            due,
            what: id,
        })
    };
    let ended = move |done: Done<u64>| {
        let (answer, version) = Answer::from_response(done.what, &done.answer);
        counted.count(false);
        lock(&taken).push(Read {
            target: done.target,
            sent: done.sent,
            ended: done.ended,
            latency: done.ended.saturating_duration_since(done.due),
            answer,
            version,
        });
    };
    connections.drive(live, next, ended).await?;
    let reads = std::mem::take(&mut *lock(&reads));
    Ok(reads)
}

#[cfg(test)]
impl Read {
    /// A read with this answer, for tests.
    pub fn answered(answer: Answer) -> Self {
        let now = Instant::now();
        Self {
            target: 0,
            sent: now,
            ended: now,
            latency: Duration::ZERO,
            answer,
            version: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::CheckResult;

    #[test]
    fn answers_are_told_apart() {
        let shop = r#"{"success":true,"data":{"id":1,"name":"temporary, version 7"}}"#;
        let unnamed = r#"{"success":true,"data":{"id":1,"name":"version 7"}}"#;
        let other_shop = r#"{"success":true,"data":{"id":2,"name":"b"}}"#;
        let refused = r#"{"success":false,"code":"SHOP_NOT_FOUND"}"#;
        let other_code = r#"{"success":false,"code":"OTHER"}"#;
        let absent = ABSENT.start;
        for (id, status, body, expected, version) in [
            (1, 200, shop, Answer::Shop, Some(7)),
            (1, 200, unnamed, Answer::Shop, None),
            (1, 200, other_shop, Answer::Unexpected, None),
            (1, 200, refused, Answer::Unexpected, None),
            (absent, 200, refused, Answer::Absent, None),
            (absent, 404, refused, Answer::Unexpected, None),
            (absent, 200, other_code, Answer::Unexpected, None),
            (absent, 200, "<html>", Answer::Unexpected, None),
            (1, 429, "", Answer::Throttled, None),
            (1, 503, "{}", Answer::ServerError, None),
        ] {
            let response = Ok(Response {
                status,
                body: body.to_owned().into(),
                ..Response::default()
            });
            let found = Answer::from_response(id, &response);
            assert_eq!(found, (expected, version), "{status} {body}");
        }
        let (no_response, _) = Answer::from_response(1, &Err(Failure::TimedOut));
        assert_eq!(no_response, Answer::Nothing);
    }

    #[test]
    fn one_wrong_answer_is_found() {
        let reads = [Answer::Shop, Answer::Absent, Answer::Shop].map(Read::answered);
        let check = answered(&reads, &[Answer::Shop, Answer::Throttled]);
        assert_eq!(check.result, CheckResult::Violation);
        assert_eq!(check.measured, "Shop 2, Absent 1");
        assert_eq!(check.allowed, "Shop or Throttled");
    }
}
