//! Answers to `GET /shop/{id}`, by what they mean to a reader, and counts of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use workload::http::{Failure, Response};

/// The answer to one read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A shop.
    Found {
        /// Its id.
        id: u64,
        /// Its name.
        name: Box<str>,
    },
    /// "There is no such shop."
    Absent,
    /// Too many requests (429).
    Throttled,
    /// The service or the proxy failed, with this HTTP status.
    ServerError(u16),
    /// Anything else, with its HTTP status: never expected of a read.
    Odd(u16),
    /// Nothing came: refused, cut, or too late.
    NoAnswer,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    success: bool,
    #[serde(default)]
    data: Option<Shop>,
    #[serde(default)]
    code: Option<String>,
    #[serde(default)]
    error_msg: Option<String>,
}

#[derive(Deserialize)]
struct Shop {
    id: u64,
    name: Box<str>,
}

impl Answer {
    /// Reads what came back.
    pub fn of(outcome: Result<Response, Failure>) -> Self {
        let Ok(Response { status, body, .. }) = outcome else { return Self::NoAnswer };
        match status {
            429 => return Self::Throttled,
            500.. => return Self::ServerError(status),
            _ => {}
        }
        let Ok(envelope) = serde_json::from_slice::<Envelope>(&body) else {
            return Self::Odd(status);
        };
        match (status, envelope) {
            (200, Envelope { success: true, data: Some(Shop { id, name }), .. }) => {
                Self::Found { id, name }
            }
            (200, Envelope { success: false, code, error_msg, .. })
                if code.as_deref() == Some("SHOP_NOT_FOUND")
                    || (code.is_none() && error_msg.as_deref() == Some("店铺不存在")) =>
            {
                Self::Absent
            }
            _ => Self::Odd(status),
        }
    }
}

/// Answers by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Shops.
    pub found: u64,
    /// "No such shop."
    pub absent: u64,
    /// 429.
    pub throttled: u64,
    /// 5xx.
    pub server_errors: u64,
    /// No answer at all.
    pub no_answer: u64,
    /// What should never come.
    pub odd: u64,
}

impl Tally {
    /// Counts one answer.
    pub fn count(&mut self, answer: &Answer) {
        *match answer {
            Answer::Found { .. } => &mut self.found,
            Answer::Absent => &mut self.absent,
            Answer::Throttled => &mut self.throttled,
            Answer::ServerError(_) => &mut self.server_errors,
            Answer::NoAnswer => &mut self.no_answer,
            Answer::Odd(_) => &mut self.odd,
        } += 1;
    }

    /// Counts what another tally has.
    pub fn add(&mut self, other: &Self) {
        self.found += other.found;
        self.absent += other.absent;
        self.throttled += other.throttled;
        self.server_errors += other.server_errors;
        self.no_answer += other.no_answer;
        self.odd += other.odd;
    }

    /// Counts many.
    pub fn of<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> Self {
        let mut tally = Self::default();
        answers.into_iter().for_each(|answer| tally.count(answer));
        tally
    }

    /// What "no 5xx" forbids: 5xx, and no answer at all.
    pub fn failures(&self) -> u64 {
        self.server_errors + self.no_answer
    }

    /// All answers.
    pub fn total(&self) -> u64 {
        self.found + self.absent + self.unanswered()
    }

    /// Those that gave the reader neither a shop nor the certainty that there is none.
    pub fn unanswered(&self) -> u64 {
        self.throttled + self.server_errors + self.no_answer + self.odd
    }

    /// What is not zero, as text.
    pub fn text(&self) -> String {
        let named = BTreeMap::from([
            ("a shop", self.found),
            ("absent", self.absent),
            ("429", self.throttled),
            ("5xx", self.server_errors),
            ("no answer", self.no_answer),
            ("unexpected", self.odd),
        ]);
        let parts: Vec<_> = named
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &'static str) -> Answer {
        let body = hyper::body::Bytes::from_static(body.as_bytes());
        Answer::of(Ok(Response { status, body, ..Response::default() }))
    }

    #[test]
    fn answers_are_told_apart() {
        let found = answer(200, r#"{"success":true,"data":{"id":1,"name":"a","x":1.5}}"#);
        assert_eq!(found, Answer::Found { id: 1, name: "a".into() });
        let absent = r#"{"success":false,"errorMsg":"店铺不存在","code":"SHOP_NOT_FOUND"}"#;
        assert_eq!(answer(200, absent), Answer::Absent);
        assert_eq!(answer(200, r#"{"success":false,"errorMsg":"店铺不存在"}"#), Answer::Absent);
        assert_eq!(answer(200, r#"{"success":false,"code":"OTHER"}"#), Answer::Odd(200));
        assert_eq!(answer(200, r#"{"success":true}"#), Answer::Odd(200), "no shop in it");
        assert_eq!(answer(200, "<html>"), Answer::Odd(200));
        assert_eq!(answer(404, absent), Answer::Odd(404));
        assert_eq!(answer(429, ""), Answer::Throttled);
        assert_eq!(answer(503, "{}"), Answer::ServerError(503));
        assert_eq!(Answer::of(Err(Failure::TimedOut)), Answer::NoAnswer);
    }

    #[test]
    fn a_tally_counts_every_answer_once() {
        let answers =
            [Answer::Absent, Answer::NoAnswer, Answer::ServerError(502), Answer::Odd(404)];
        let tally = Tally::of(&answers);
        assert_eq!((tally.total(), tally.unanswered(), tally.failures()), (4, 3, 2));
        let mut twice = tally;
        twice.add(&tally);
        assert_eq!((twice.total(), twice.odd), (8, 2));
        assert_eq!(tally.text(), "5xx 1, absent 1, no answer 1, unexpected 1");
    }
}
