//! HTTP client for tests: one request on a connection of its own, the answer as JSON.

use std::fmt;
use std::time::Duration;

use hyper::Method;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName};
use serde_json::Value;
use workload::{Target, http};

use super::eventually;

/// The secret for admin writes in tests.
pub const ADMIN_TOKEN: &str = "the-tests-admin-token";

/// No request of a test may hang longer.
const LIMIT: Duration = Duration::from_secs(45);

pub struct Answer {
    /// What was asked, such as `GET http://127.0.0.1:8081/shop/1`.
    pub request: String,
    pub status: u16,
    pub headers: HeaderMap,
    /// The body, `null` where it is empty.
    pub body: Value,
}

/// For the messages of failed assertions.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Answer {
            request,
            status,
            headers,
            body,
        } = self;
        write!(
            f,
            "{request} was answered {status} {body}, with {headers:?}"
        )
    }
}

impl Answer {
    /// Asserts a plain success; returns its data.
    #[track_caller]
    pub fn data(&self) -> &Value {
        assert_eq!(
            (self.status, &self.body["success"]),
            (200, &Value::Bool(true)),
            "{self:?}"
        );
        self.omits_what_is_absent();
        &self.body["data"]
    }

    #[track_caller]
    fn omits_what_is_absent(&self) {
        let Value::Object(members) = &self.body else {
            panic!("not the envelope: {self:?}");
        };
        assert!(members.values().all(|value| !value.is_null()), "{self:?}");
    }

    /// Asserts that a voucher was bought, whether the order is committed or pending; returns the order's id.
    #[track_caller]
    pub fn bought(&self) -> i64 {
        let outcome = (self.status, self.body["code"].as_str());
        assert!(
            matches!(outcome, (200, None) | (202, Some("PENDING"))),
            "{self:?}"
        );
        assert_eq!(self.body["success"], true, "{self:?}");
        let Some(id) = self.body["data"].as_i64() else {
            panic!("no order's id: {self:?}");
        };
        assert_eq!(self.body["orderId"], id.to_string(), "{self:?}");
        id
    }

    /// Asserts a failure with this status and code, which says when to try again if it is a 429 or 503 (of the latter after
    /// a second); returns its text.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) -> &str {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.body["success"], false, "{self:?}");
        assert_eq!(self.body["code"], code, "{self:?}");
        assert_eq!(self.headers["content-type"], "application/json", "{self:?}");
        self.omits_what_is_absent();
        if matches!(status, 429 | 503) {
            let after = self
                .headers
                .get("retry-after")
                .and_then(|value| value.to_str().ok());
            let seconds = after.and_then(|after| after.parse::<u32>().ok());
            assert!(
                seconds.is_some_and(|seconds| seconds == 1 || status == 429 && seconds > 1),
                "{self:?}"
            );
        }
        let Some(text) = self.body["errorMsg"].as_str() else {
            panic!("no text for people: {self:?}");
        };
        text
    }

    /// Asserts that a look-up showed no order: this user has none under that id, or this is not certain yet.
    #[track_caller]
    pub fn shows_no_order(&self) {
        match self.status {
            503 => self.refused(503, "UNAVAILABLE"),
            _ => self.refused(200, "ORDER_NOT_FOUND"),
        };
    }
}

pub struct Call {
    target: Target,
    call: http::Call,
}

pub fn call(method: Method, base: &str, path: &str) -> Call {
    let base = if base.contains("://") {
        base.to_owned()
    } else {
        format!("http://{base}")
    };
    Call {
        target: base.parse().expect("a URL"),
        call: http::Call::new(method, path),
    }
}

pub fn get(base: &str, path: &str) -> Call {
    call(Method::GET, base, path)
}

pub fn post(base: &str, path: &str) -> Call {
    call(Method::POST, base, path)
}

impl Call {
    pub fn token(self, token: &str) -> Self {
        self.header(AUTHORIZATION.as_str(), token)
    }

    pub fn admin(self) -> Self {
        self.header("x-admin-token", ADMIN_TOKEN)
    }

    /// With a header, after earlier ones of the same name.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        let name = HeaderName::from_bytes(name.as_bytes()).expect("a header's name");
        self.call
            .headers
            .append(name, value.parse().expect("a header's value"));
        self
    }

    pub fn json(self, body: Value) -> Self {
        self.body("application/json", body.to_string())
    }

    pub fn body(self, kind: &str, body: impl Into<Bytes>) -> Self {
        let mut call = self.header(CONTENT_TYPE.as_str(), kind);
        call.call.body = body.into();
        call
    }

    /// Sends it and expects a complete answer that is no JSON.
    pub async fn text(self) -> String {
        let request = self.described();
        let (status, _, text) = self.raw().await;
        assert_eq!(status, 200, "{request}: {text}");
        text
    }

    /// Sends it; returns the status of a complete answer.
    pub async fn status(self) -> u16 {
        self.raw().await.0
    }

    /// Sends it and expects a complete answer, whatever it is.
    pub async fn raw(self) -> (u16, HeaderMap, String) {
        let http::Response {
            status,
            headers,
            body,
        } = self.exchange().await;
        // A picture or a compressed body is no text; no test looks at its bytes.
        (status, headers, String::from_utf8_lossy(&body).into_owned())
    }

    pub async fn send(self) -> Answer {
        let request = self.described();
        let http::Response {
            status,
            headers,
            body,
        } = self.exchange().await;
        let body = match &*body {
            b"" => Value::Null,
            json => serde_json::from_slice(json)
                .unwrap_or_else(|error| panic!("{request}: {error}: {body:?}")),
        };
        Answer {
            request,
            status,
            headers,
            body,
        }
    }

    async fn exchange(self) -> http::Response {
        let request = self.described();
        let mut connection = http::Connection::new(self.target, LIMIT);
        let answer = connection.send(&self.call).await;
        answer.unwrap_or_else(|failure| panic!("{request}: no complete answer: {failure}"))
    }

    /// The request, for the text of a failure.
    fn described(&self) -> String {
        let http::Call { method, path, .. } = &self.call;
        format!("{method} {}{path}", self.target)
    }
}

pub async fn metric(base: &str, name: &str) -> u64 {
    let text = get(base, "/metrics").text().await;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.unwrap_or_else(|| panic!("no {name} in:\n{text}"));
    value
        .trim()
        .parse()
        .unwrap_or_else(|error| panic!("{name}{value}: {error}"))
}

/// Waits until the metric has this value.
pub async fn metric_is(base: &str, name: &str, value: u64) {
    eventually(&format!("{name} is {value}"), async || {
        metric(base, name).await == value
    })
    .await;
}
