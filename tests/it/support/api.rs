//! The HTTP API as a client sees it: one request on a connection of its own, the answer as JSON.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// The secret for admin writes in tests.
pub const ADMIN_TOKEN: &str = "the-tests-admin-token";

/// No request of a test may hang longer.
const LIMIT: Duration = Duration::from_secs(45);

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// The body, `null` where it is empty.
    pub body: Value,
}

impl Answer {
    /// Asserts a plain success; returns its data.
    pub fn data(&self) -> &Value {
        assert_eq!((self.status, &self.body["success"]), (200, &Value::Bool(true)), "{self:?}");
        &self.body["data"]
    }

    /// Asserts that a voucher was bought, be the order committed or pending; returns its id.
    pub fn bought(&self) -> i64 {
        let told = (self.status, self.body["code"].as_str());
        assert!(matches!(told, (200, None) | (202, Some("PENDING"))), "{self:?}");
        assert_eq!(self.body["success"], true, "{self:?}");
        let id = self.body["data"].as_i64().expect("an order's id");
        assert_eq!(self.body["orderId"], id.to_string(), "{self:?}");
        id
    }

    /// Asserts a failure with this status and code; returns its text.
    pub fn refused(&self, status: u16, code: &str) -> &str {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.body["success"], false, "{self:?}");
        assert_eq!(self.body["code"], code, "{self:?}");
        self.body["errorMsg"].as_str().expect("a text for people")
    }
}

/// A request to be sent.
pub struct Call {
    url: String,
    builder: hyper::http::request::Builder,
    body: Bytes,
}

/// `method` on `path` of the instance at `base`.
pub fn call(method: Method, base: &str, path: &str) -> Call {
    let host = base.trim_start_matches("http://").to_owned();
    let builder = Request::builder().method(method).uri(path).header(HOST, &host);
    Call { url: host, builder, body: Bytes::new() }
}

/// GET.
pub fn get(base: &str, path: &str) -> Call {
    call(Method::GET, base, path)
}

/// POST.
pub fn post(base: &str, path: &str) -> Call {
    call(Method::POST, base, path)
}

impl Call {
    /// Signed in with this token.
    pub fn token(self, token: &str) -> Self {
        self.header(AUTHORIZATION.as_str(), token)
    }

    /// As the administrator.
    pub fn admin(self) -> Self {
        self.header("x-admin-token", ADMIN_TOKEN)
    }

    /// With a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.builder = self.builder.header(name, value);
        self
    }

    /// With a JSON body.
    pub fn json(self, body: Value) -> Self {
        self.body("application/json", body.to_string())
    }

    /// With a body of any kind.
    pub fn body(self, kind: &str, body: impl Into<Bytes>) -> Self {
        let mut call = self.header(CONTENT_TYPE.as_str(), kind);
        call.body = body.into();
        call
    }

    /// Sends it and expects a complete answer that is no JSON.
    pub async fn text(self) -> String {
        let (status, _, bytes) = self.exchange().await.expect("an answer");
        assert_eq!(status, 200);
        String::from_utf8(bytes.to_vec()).expect("UTF-8")
    }

    /// Sends it and expects a complete answer, whatever it is.
    pub async fn raw(self) -> (u16, HeaderMap, String) {
        let (status, headers, bytes) = self.exchange().await.expect("an answer");
        // A picture is no text, and its bytes are nobody's concern here.
        (status, headers, String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Sends it; the failure's text says that there was no complete answer.
    pub async fn try_send(self) -> Result<Answer, String> {
        let (status, headers, bytes) = self.exchange().await?;
        let body = if bytes.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&bytes).map_err(|f| format!("{f}: {bytes:?}"))?
        };
        Ok(Answer { status, headers, body })
    }

    async fn exchange(self) -> Result<(u16, HeaderMap, Bytes), String> {
        let exchange = async {
            let stream =
                TcpStream::connect(&self.url).await.map_err(|f| format!("connect: {f}"))?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream))
                    .await
                    .map_err(|fault| fault.to_string())?;
            let driver = tokio::spawn(async move { connection.await.ok() });
            let request = self.builder.body(Full::new(self.body)).expect("a request");
            let answer = async {
                let response = sender.send_request(request).await?;
                let (parts, body) = response.into_parts();
                Ok::<_, hyper::Error>((parts, body.collect().await?.to_bytes()))
            }
            .await;
            driver.abort();
            let (parts, bytes) = answer.map_err(|fault| fault.to_string())?;
            Ok((parts.status.as_u16(), parts.headers, bytes))
        };
        tokio::time::timeout(LIMIT, exchange).await.map_err(|_| "no answer in time".to_owned())?
    }

    /// Sends it and expects a complete answer.
    pub async fn send(self) -> Answer {
        self.try_send().await.expect("an answer")
    }
}
