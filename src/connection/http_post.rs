//! HTTP client of the service: one POST on a connection of its own, with TLS where the address begins with `https`. What
//! matters here is what a failure means: after [`PostError::NotSent`] the receiver has done nothing.

use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::{HttpConnector, capture_connection};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::TokioExecutor;
use tokio::time::{Instant, timeout_at};

/// Longest reply that is read, bytes.
const MAX_REPLY: usize = 64 * 1024;

/// An address that requests are posted to.
#[derive(Clone)]
pub struct Endpoint {
    address: Uri,
    client: PostClient,
}

/// Connects by the scheme of the address. No connection is kept for the next request: if it were found broken then, the
/// outcome would be unknown.
#[derive(Clone)]
enum PostClient {
    Plain(Client<HttpConnector, Full<Bytes>>),
    Tls(Client<HttpsConnector<HttpConnector>, Full<Bytes>>),
}

/// Why a request is not known to have succeeded.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// It may be sent again: the receiver was not reached, or answered 429 or 503.
    #[error("not sent: {0}")]
    NotSent(String),
    /// The receiver refuses it.
    #[error("{0}")]
    Refused(String),
    /// The receiver may act on it: it answered with another 5xx, or the connection broke or the time was over before.
    #[error("{0}")]
    Unknown(String),
}

impl Endpoint {
    /// Reads an address, and for `https` the system's root certificates (`SSL_CERT_FILE` names others).
    ///
    /// # Errors
    /// One sentence without the address, which may hold a secret.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let address: Uri = text.trim().parse().ok().context("is not a URL")?;
        let mut clients = Client::builder(TokioExecutor::new());
        clients.pool_max_idle_per_host(0);
        let client = match address.scheme_str() {
            Some("http") => PostClient::Plain(clients.build_http()),
            Some("https") => {
                let tls = HttpsConnectorBuilder::new().with_native_roots();
                let tls = tls
                    .context("needs root certificates")?
                    .https_only()
                    .enable_http1();
                PostClient::Tls(clients.build(tls.build()))
            }
            _ => anyhow::bail!("must begin with http:// or https://"),
        };
        let authority = address.authority().context("names no host")?;
        ensure!(
            !authority.as_str().contains('@'),
            "must not contain a user or a password"
        );
        Ok(Endpoint { address, client })
    }

    /// Posts `body`, for no longer than `limit` up to the last byte of the reply. Dropping the future closes the connection;
    /// the receiver may have the request.
    pub async fn post(
        &self,
        headers: HeaderMap,
        body: Bytes,
        limit: Duration,
    ) -> Result<(), PostError> {
        let deadline = Instant::now() + limit;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.address.clone();
        *request.headers_mut() = headers;
        let connection = capture_connection(&mut request);
        let reply = match &self.client {
            PostClient::Plain(client) => client.request(request),
            PostClient::Tls(client) => client.request(request),
        };
        let reply = match timeout_at(deadline, reply).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) if error.is_connect() => return Err(PostError::NotSent(cause(error))),
            Ok(Err(error)) => return Err(PostError::Unknown(cause(error))),
            Err(_) if connection.connection_metadata().is_none() => {
                return Err(PostError::NotSent("connecting took too long".to_owned()));
            }
            Err(_) => return Err(PostError::Unknown("no reply in time".to_owned())),
        };
        // Only its status matters; the rest is read so that the receiver need not see a broken connection.
        let status = reply.status();
        let reply_body = Limited::new(reply.into_body(), MAX_REPLY).collect();
        if !matches!(timeout_at(deadline, reply_body).await, Ok(Ok(_))) {
            tracing::debug!("a reply was cut off");
        }
        let answered = format!("the receiver answered {status}");
        match status.as_u16() {
            200..300 => Ok(()),
            429 | 503 => Err(PostError::NotSent(answered)),
            500..600 => Err(PostError::Unknown(answered)),
            _ => Err(PostError::Refused(answered)),
        }
    }
}

/// What lies behind the client's own sentence, which says little.
fn cause(error: Error) -> String {
    let error = anyhow::Error::from(error);
    let causes: Vec<_> = error.chain().skip(1).map(ToString::to_string).collect();
    if causes.is_empty() {
        error.to_string()
    } else {
        causes.join(": ")
    }
}
