//! HTTP client of the service: one POST on a connection of its own, by HTTP/1.1, with TLS where the address begins with
//! `https`. What matters here is what a failure means: after [`PostError::NotSent`] the receiver has seen nothing.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest reply that is read, bytes.
const MAX_REPLY: usize = 64 * 1024;

/// An address that requests are posted to.
#[derive(Clone)]
pub struct Endpoint {
    host: String,
    port: u16,
    authority: HeaderValue,
    path: Uri,
    tls: Option<Tls>,
}

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// No connection could be made: the receiver has seen nothing of the request.
    #[error("not sent: {0}")]
    NotSent(String),
    /// The request was sent, and the connection broke or the time was over before its reply.
    #[error("no reply: {0}")]
    NoReply(String),
}

impl Endpoint {
    /// Reads an address, and for `https` the system's root certificates (`SSL_CERT_FILE` names others).
    ///
    /// # Errors
    /// One sentence without the address, which may hold a secret.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let uri: Uri = text.trim().parse().ok().context("is not a URL")?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => anyhow::bail!("must begin with http:// or https://"),
        };
        let authority = uri.authority().context("names no host")?;
        ensure!(!authority.as_str().contains('@'), "must not contain a user or a password");
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Endpoint {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            authority: HeaderValue::from_str(authority.as_str())?,
            path: path.parse()?,
            tls: secure.then(Tls::new).transpose()?,
        })
    }

    /// Posts `body`, and returns the status of the reply. No longer than `limit`, to the last byte of the reply. Dropping
    /// the future closes the connection; the receiver may have the request.
    ///
    /// # Errors
    /// See [`PostError`].
    pub async fn post(
        &self,
        headers: HeaderMap,
        body: Bytes,
        limit: Duration,
    ) -> Result<StatusCode, PostError> {
        let started = tokio::time::Instant::now();
        let unsent = |error: &dyn std::fmt::Display| PostError::NotSent(error.to_string());
        let stream = timeout(limit, TcpStream::connect((&*self.host, self.port))).await;
        let stream = stream.map_err(|_| unsent(&"connecting took too long"))?;
        let stream = stream.map_err(|error| unsent(&error))?;
        let left = limit.saturating_sub(started.elapsed());
        let request = self.request(headers, body);
        match &self.tls {
            None => exchange(stream, request, left).await,
            Some(tls) => {
                let stream = timeout(left, tls.connect(&self.host, stream)).await;
                let stream = stream.map_err(|_| unsent(&"the TLS handshake took too long"))?;
                let stream = stream.map_err(|error| unsent(&error))?;
                exchange(stream, request, limit.saturating_sub(started.elapsed())).await
            }
        }
    }

    fn request(&self, headers: HeaderMap, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.path.clone();
        *request.headers_mut() = headers;
        request.headers_mut().insert(header::HOST, self.authority.clone());
        request
    }
}

/// Sends the request on this connection, which is then closed.
async fn exchange<S>(
    stream: S,
    request: Request<Full<Bytes>>,
    limit: Duration,
) -> Result<StatusCode, PostError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let unsent = |error: hyper::Error| PostError::NotSent(error.to_string());
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(unsent)?;
    let exchange = async {
        let reply = sender.try_send_request(request).await.map_err(|mut error| {
            let sent = error.take_message().is_none();
            let error = error.into_error();
            if sent { PostError::NoReply(error.to_string()) } else { unsent(error) }
        })?;
        let (head, body) = reply.into_parts();
        // Only its status matters; it is read so that the receiver need not see a broken connection.
        if let Err(error) = Limited::new(body, MAX_REPLY).collect().await {
            tracing::debug!(%error, "a reply was cut off");
        }
        Ok(head.status)
    };
    let exchange = while_driving(exchange, connection);
    timeout(limit, exchange).await.unwrap_or(Err(PostError::NoReply("too slow".to_owned())))
}

/// The result of `exchange`, which needs `connection` to be polled until then.
async fn while_driving<T>(exchange: impl Future<Output = T>, connection: impl Future) -> T {
    let exchange = std::pin::pin!(exchange);
    match futures_util::future::select(exchange, std::pin::pin!(connection)).await {
        futures_util::future::Either::Left((result, _)) => result,
        // The exchange has its result from the connection's end.
        futures_util::future::Either::Right((_, exchange)) => exchange.await,
    }
}

#[cfg(feature = "tls")]
use tls::Tls;

#[cfg(feature = "tls")]
mod tls {
    use std::io;
    use std::sync::Arc;

    use anyhow::{Context, ensure};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;
    use tokio_rustls::rustls::crypto::ring::default_provider;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    #[derive(Clone)]
    pub(super) struct Tls(TlsConnector);

    impl Tls {
        pub(super) fn new() -> anyhow::Result<Self> {
            let mut roots = RootCertStore::empty();
            let (usable, _) =
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            ensure!(usable > 0, "needs root certificates, and this machine has none");
            let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
                .with_safe_default_protocol_versions()
                .context("needs TLS")?
                .with_root_certificates(roots)
                .with_no_client_auth();
            Ok(Tls(TlsConnector::from(Arc::new(config))))
        }

        pub(super) async fn connect(
            &self,
            host: &str,
            stream: TcpStream,
        ) -> io::Result<TlsStream<TcpStream>> {
            let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
            self.0.connect(name, stream).await
        }
    }
}

/// TLS, which this build does not have.
#[cfg(not(feature = "tls"))]
#[derive(Clone)]
enum Tls {}

#[cfg(not(feature = "tls"))]
impl Tls {
    fn new() -> anyhow::Result<Self> {
        anyhow::bail!(
            "begins with https, and this program was built without the cargo feature `tls`"
        )
    }

    async fn connect(&self, _: &str, _: TcpStream) -> std::io::Result<TcpStream> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_cannot_be_posted_to_are_refused() {
        for bad in ["", "sms", "ftp://h/", "http://", "/sms", "http://user:secret@h/"] {
            let error = Endpoint::parse(bad).err().unwrap_or_else(|| panic!("{bad} is an address"));
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let endpoint = Endpoint::parse("http://[::1]:8090/sms?to=cn").expect("an address");
        assert_eq!((&*endpoint.host, endpoint.port), ("::1", 8090));
        assert_eq!(
            (endpoint.authority, endpoint.path.to_string()),
            ("[::1]:8090".parse().unwrap(), "/sms?to=cn".into())
        );
        assert_eq!(Endpoint::parse("http://h").ok().map(|endpoint| endpoint.port), Some(80));
    }
}
