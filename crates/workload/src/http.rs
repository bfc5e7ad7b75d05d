//! The keep-alive HTTP/1.1 client of the tools and tests.
//!
//! One [`Connection`] belongs to one worker and carries one request at a time. What matters here is
//! what a failure *means*: [`Failure::NotSent`] is definite, everything else leaves the outcome open.

use std::{io, time::Duration};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request,
    body::Bytes,
    client::conn::http1::{SendRequest, handshake},
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue},
};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use crate::Target;

/// Answers longer than this, in bytes, are not read: the longest is the raw data of a lab's run.
const BODY_LIMIT: usize = 8 << 20;
/// The request and response header for a request's recorded steps; a server without `--lab` sends none.
pub const TRACE: HeaderName = HeaderName::from_static("x-lab-trace");
/// The header of the administrator's token.
const ADMIN: HeaderName = HeaderName::from_static("x-admin-token");

/// A request, before it is tied to a connection.
#[derive(Debug, Clone)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// The path below the target's own, with query.
    pub path: String,
    /// Headers besides `host`.
    pub headers: HeaderMap,
    /// The body; empty for none.
    pub body: Bytes,
}

impl Call {
    /// A request without headers or body.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    /// GET.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    /// POST.
    pub fn post(path: impl Into<String>) -> Self {
        Self::new(Method::POST, path)
    }

    /// With this header, in place of an earlier one of the same name.
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// With a user's session token.
    pub fn token(self, token: &HeaderValue) -> Self {
        self.header(AUTHORIZATION, token.clone())
    }

    /// With the administrator's token.
    pub fn admin(self, token: &HeaderValue) -> Self {
        self.header(ADMIN, token.clone())
    }

    /// With a JSON body.
    pub fn json(mut self, body: &serde_json::Value) -> Self {
        self.body = body.to_string().into();
        self.header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
    }
}

/// A complete answer.
#[derive(Debug, Clone, Default)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl Response {
    /// The steps of the request, where they were asked for and sent.
    pub fn trace(&self) -> Option<&str> {
        self.headers.get(TRACE)?.to_str().ok()
    }
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
    pub(crate) target: Target,
    /// Time limit of a request, from the first byte of connecting to the last byte of the answer.
    limit: Duration,
    link: Option<Link>,
}

/// A live connection and the task that moves its bytes.
#[derive(Debug)]
struct Link {
    sender: SendRequest<Full<Bytes>>,
    /// Dropping it closes the socket, so that a caller that gives up hangs up.
    _driver: AbortOnDropHandle<()>,
}

impl Connection {
    /// A connection to `target`, not made yet. `limit` bounds each request as a whole.
    pub fn new(target: Target, limit: Duration) -> Self {
        Self {
            target,
            limit,
            link: None,
        }
    }

    /// Connects now, so that the first request need not.
    pub async fn open(&mut self) -> io::Result<()> {
        self.link = Some(self.connect(Instant::now() + self.limit).await?);
        Ok(())
    }

    /// The connection that is open, or a new one.
    async fn connect(&mut self, deadline: Instant) -> io::Result<Link> {
        if let Some(link) = self.link.take().filter(|link| !link.sender.is_closed()) {
            return Ok(link);
        }
        let connecting = async {
            let stream = self.target.connect().await?;
            stream.set_nodelay(true)?;
            handshake(TokioIo::new(stream))
                .await
                .map_err(io::Error::other)
        };
        let (sender, connection) = timeout_at(deadline, connecting)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "connecting took too long"))??;
        // The sender reports every failure; the driver's own result would only repeat it.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Link {
            sender,
            _driver: AbortOnDropHandle::new(driver),
        })
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
        let mut request = self
            .request(call)
            .map_err(|e| Failure::NotSent(e.to_string()))?;
        loop {
            let is_new_connection = self.link.is_none();
            let mut link = self
                .connect(deadline)
                .await
                .map_err(|e| Failure::NotSent(e.to_string()))?;
            let exchange = async {
                let response = link
                    .sender
                    .try_send_request(request)
                    .await
                    .map_err(|mut e| {
                        let unsent = e.take_message();
                        (unsent, e.into_error().to_string())
                    })?;
                let (head, body) = response.into_parts();
                let body = Limited::new(body, BODY_LIMIT).collect().await;
                let body = body.map_err(|e| (None, e.to_string()))?.to_bytes();
                Ok(Response {
                    status: head.status.as_u16(),
                    headers: head.headers,
                    body,
                })
            };
            match timeout_at(deadline, exchange).await {
                Ok(Ok(response)) => {
                    self.link = Some(link);
                    return Ok(response);
                }
                Ok(Err((Some(unsent), _))) if !is_new_connection => request = unsent,
                Ok(Err((Some(_), reason))) => return Err(Failure::NotSent(reason)),
                Ok(Err((None, reason))) => return Err(Failure::Lost(reason)),
                Err(_) => return Err(Failure::TimedOut),
            }
        }
    }

    fn request(&self, call: &Call) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let mut request = Request::new(Full::new(call.body.clone()));
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = self.target.path(&call.path).parse()?;
        *request.headers_mut() = call.headers.clone();
        request
            .headers_mut()
            .insert(HOST, self.target.authority().try_into()?);
        Ok(request)
    }
}

#[cfg(test)]
pub(crate) mod tests;
