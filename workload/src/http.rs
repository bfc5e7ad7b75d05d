//! A small keep-alive HTTP/1.1 client, cheap enough to share two cores with the servers it drives.
//!
//! One [`Connection`] belongs to one worker and carries one request at a time. What matters here is
//! what a failure *means*: [`Failure::NotSent`] is definite, everything else leaves the outcome open.

use std::{io, time::Duration};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request,
    body::Bytes,
    client::conn::http1::{SendRequest, handshake},
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER},
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use crate::Target;

/// Answers longer than this, in bytes, are not read.
const BODY_LIMIT: usize = 1 << 20;
/// The header that asks for a request's steps, and that brings them.
const TRACE: &str = "x-lab-trace";

/// A request to the service, before it is tied to a connection.
#[derive(Debug, Clone)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// The path below the target's own, with query.
    pub path: String,
    /// The buyer's session token.
    pub token: Option<HeaderValue>,
    /// The administrator's token.
    pub admin_token: Option<HeaderValue>,
    /// The cache policy asked for (`x-lab-cache`); a server without `--lab` ignores it.
    pub lab_cache: Option<HeaderValue>,
    /// Whether the steps of the request are asked for (`x-lab-trace`); a server without `--lab` tells none.
    pub traced: bool,
    /// A JSON body.
    pub json: Option<Bytes>,
}

impl Call {
    /// A request without body or tokens.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            token: None,
            admin_token: None,
            lab_cache: None,
            traced: false,
            json: None,
        }
    }
}

/// A complete answer.
#[derive(Debug, Clone)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Whether it says when to come back (`Retry-After`, in whole seconds).
    pub retry_after: bool,
    /// The steps of the request, where they were asked for and told.
    pub trace: Option<String>,
    /// The whole body.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No connection could be made, so the service never saw the request.
    #[error("not sent: {0}")]
    NotSent(String),
    /// The connection broke after the request had been handed to it.
    #[error("connection lost: {0}")]
    Lost(String),
    /// No complete answer within the time limit.
    #[error("no answer in time")]
    TimedOut,
}

/// One keep-alive connection, made on first use and again whenever it broke.
#[derive(Debug)]
pub struct Connection {
    target: Target,
    host: Option<HeaderValue>,
    /// From the first byte of connecting to the last byte of the answer.
    limit: Duration,
    link: Option<Link>,
}

/// A live connection and the task that moves its bytes.
#[derive(Debug)]
struct Link {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        // Closes the socket: a caller that gave up hangs up.
        self.driver.abort();
    }
}

impl Connection {
    /// A connection to `target`, not made yet. `limit` bounds each request as a whole.
    pub fn new(target: Target, limit: Duration) -> Self {
        let host = HeaderValue::from_str(&target.authority()).ok();
        Self { target, host, limit, link: None }
    }

    /// Connects now, so that the first request need not.
    ///
    /// # Errors
    /// The system's error, or a time-out.
    pub async fn open(&mut self) -> io::Result<()> {
        self.connect(Instant::now() + self.limit).await
    }

    async fn connect(&mut self, deadline: Instant) -> io::Result<()> {
        if self.link.as_ref().is_some_and(|link| !link.sender.is_closed()) {
            return Ok(());
        }
        self.link = None;
        let connecting = async {
            let stream = TcpStream::connect((self.target.host(), self.target.port())).await?;
            stream.set_nodelay(true)?;
            handshake(TokioIo::new(stream)).await.map_err(io::Error::other)
        };
        let (sender, connection) = timeout_at(deadline, connecting)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "connecting took too long"))??;
        // The sender reports every failure; the driver's own result would only repeat it.
        let driver = tokio::spawn(async move { drop(connection.await) });
        self.link = Some(Link { sender, driver });
        Ok(())
    }

    /// Sends one request and reads the whole answer.
    ///
    /// A connection the server closed while idle is replaced, but only as long as nothing of the
    /// request was written: a purchase is never sent twice behind the caller's back.
    ///
    /// # Errors
    /// See [`Failure`]: only [`Failure::NotSent`] promises that nothing happened.
    pub async fn send(&mut self, call: &Call) -> Result<Response, Failure> {
        let deadline = Instant::now() + self.limit;
        let mut request = self.request(call).map_err(|e| Failure::NotSent(e.to_string()))?;
        loop {
            let fresh = self.link.is_none();
            self.connect(deadline).await.map_err(|e| Failure::NotSent(e.to_string()))?;
            let Some(link) = self.link.as_mut() else {
                return Err(Failure::NotSent("no connection".to_owned()));
            };
            let exchange = async {
                let response = link.sender.try_send_request(request).await.map_err(|mut e| {
                    let unsent = e.take_message();
                    (unsent, e.into_error().to_string())
                })?;
                let status = response.status().as_u16();
                let retry_after = response.headers().get(RETRY_AFTER);
                let retry_after = retry_after.and_then(|value| value.to_str().ok());
                let retry_after = retry_after.is_some_and(|text| text.parse::<u32>().is_ok());
                let trace = response.headers().get(TRACE).and_then(|value| value.to_str().ok());
                let trace = trace.map(str::to_owned);
                let body = Limited::new(response.into_body(), BODY_LIMIT)
                    .collect()
                    .await
                    .map_err(|e| (None, e.to_string()))?;
                Ok(Response { status, retry_after, trace, body: body.to_bytes() })
            };
            let failure = match timeout_at(deadline, exchange).await {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err((Some(unsent), _))) if !fresh => {
                    self.link = None;
                    request = unsent;
                    continue;
                }
                Ok(Err((Some(_), reason))) => Failure::NotSent(reason),
                Ok(Err((None, reason))) => Failure::Lost(reason),
                Err(_) => Failure::TimedOut,
            };
            self.link = None;
            return Err(failure);
        }
    }

    fn request(&self, call: &Call) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let mut request =
            Request::builder().method(call.method.clone()).uri(self.target.path(&call.path));
        if let Some(host) = &self.host {
            request = request.header(HOST, host);
        }
        if let Some(token) = &call.token {
            request = request.header(AUTHORIZATION, token);
        }
        if let Some(token) = &call.admin_token {
            request = request.header("x-admin-token", token);
        }
        if let Some(policy) = &call.lab_cache {
            request = request.header("x-lab-cache", policy);
        }
        if call.traced {
            request = request.header(TRACE, "1");
        }
        if call.json.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        request.body(Full::new(call.json.clone().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests;
