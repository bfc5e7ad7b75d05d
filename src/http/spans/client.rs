//! The HTTP client of the span exporter: one HTTP/1.1 POST for each batch on a connection of its own, without TLS. A
//! collector usually runs on the same host; a remote one is reached through a local agent or proxy that encrypts.

use std::time::Duration;

use anyhow::{Context, ensure};
use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderValue, Uri, header};
use hyper_util::rt::TokioIo;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// Time limit of a batch. A batch that takes longer is dropped: lost spans are acceptable.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Longest reply that is read, bytes.
const MAX_REPLY: usize = 64 * 1024;

/// Sends on this runtime; the exporting thread has none.
#[derive(Debug)]
pub(super) struct Client(Handle);

impl Client {
    pub(super) fn new(runtime: Handle) -> Self {
        Client(runtime)
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.0.spawn(async {
            tokio::time::timeout(TIMEOUT, post(request)).await.context("no answer in time")?
        });
        let answer = sent.await.map_err(anyhow::Error::from).and_then(|sent| sent);
        answer
            .inspect_err(
                |error| tracing::warn!(%error, "spans could not be exported and are dropped"),
            )
            .map_err(Into::into)
    }
}

async fn post(request: Request<Bytes>) -> anyhow::Result<Response<Bytes>> {
    let (mut parts, body) = request.into_parts();
    let uri = std::mem::take(&mut parts.uri);
    ensure!(uri.scheme_str() == Some("http"), "{uri}: spans are exported by plain http only");
    let host = uri.host().context("an endpoint without a host")?;
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80))).await;
    let stream = stream.with_context(|| format!("cannot connect to {uri}"))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let authority = uri.authority().map_or(host, |authority| authority.as_str());
    parts.headers.insert(header::HOST, HeaderValue::from_str(authority)?);
    parts.uri = uri.path_and_query().map_or(Uri::from_static("/"), |path| path.clone().into());
    let exchange = async {
        let response = sender.send_request(Request::from_parts(parts, Body::from(body))).await?;
        let (head, body) = response.into_parts();
        let body = to_bytes(Body::new(body), MAX_REPLY).await?;
        // Closes the connection, which is awaited at the same time.
        drop(sender);
        anyhow::Ok(Response::from_parts(head, body))
    };
    let (answer, closed) = tokio::join!(exchange, connection);
    let answer = answer?;
    if let Err(error) = closed {
        tracing::debug!(%error, "a connection for spans ended early");
    }
    ensure!(answer.status().is_success(), "{uri} answered {}", answer.status());
    Ok(answer)
}
