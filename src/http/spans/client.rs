//! The HTTP client of the span exporter: one POST for each batch, by the client that the service has.

use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use tokio::runtime::Handle;

use crate::connection::http_post::Endpoint;

/// Time limit of a batch. A batch that takes longer is dropped: lost spans are acceptable.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Sends on this runtime; the exporting thread has none.
#[derive(Debug)]
pub(super) struct Client(pub(super) Handle);

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let sent = self.0.spawn(post(request)).await;
        let answer = sent.map_err(anyhow::Error::from).and_then(|sent| sent);
        answer
            .inspect_err(|error| {
                let error = format!("{error:#}");
                tracing::warn!(error, "spans could not be exported and are dropped");
            })
            .map_err(Into::into)
    }
}

async fn post(request: Request<Bytes>) -> anyhow::Result<Response<Bytes>> {
    let (parts, body) = request.into_parts();
    let uri = parts.uri.to_string();
    let endpoint = Endpoint::parse(&uri).with_context(|| format!("the endpoint {uri}"))?;
    let sent = endpoint.post(parts.headers, body, TIMEOUT).await;
    sent.with_context(|| format!("cannot export to {uri}"))?;
    // Only its status, 200, matters to the exporter.
    Ok(Response::new(Bytes::new()))
}
