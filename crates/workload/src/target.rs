//! One base URL of the service: an instance, or the proxy before several.

use std::{fmt, io, str::FromStr};

use hyper::Uri;
use tokio::net::TcpStream;

use crate::Error;

mod addresses;

/// A base URL such as `http://127.0.0.1:8080` or `http://127.0.0.1:8080/api`. Plain HTTP only.
///
/// A host name is looked up by the first connection, for all connections of this value and its clones; again only once
/// a connection has failed.
#[derive(Debug, Clone)]
pub struct Target {
    host: String,
    port: u16,
    prefix: String,
    addresses: addresses::Addresses,
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        (&self.host, self.port, &self.prefix) == (&other.host, other.port, &other.prefix)
    }
}

impl Eq for Target {}

impl Target {
    /// A new TCP connection. Without a time limit of its own; dropping the future gives it up.
    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        self.addresses.connect(&self.host, self.port).await
    }

    /// Host name or address; an IPv6 address in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The value of the `Host` header.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The request path for `path` (which begins with `/`), under this URL's own path.
    pub fn path(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let unusable =
            |reason: &str| Error::Target { url: url.to_owned(), reason: reason.to_owned() };
        let uri: Uri = url.trim().parse().map_err(|_| unusable("it is not a URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(unusable("only http:// is spoken"));
        }
        if uri.query().is_some() {
            return Err(unusable("a query has no place here"));
        }
        let host = uri.host().ok_or_else(|| unusable("it names no host"))?;
        Ok(Self {
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(80),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            addresses: addresses::Addresses::default(),
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}{}", self.host, self.port, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_kept_and_a_trailing_slash_is_not() {
        let target: Target = "http://127.0.0.1:8080/api/".parse().unwrap();
        assert_eq!(target.path("/user/me"), "/api/user/me");
        assert_eq!(target.authority(), "127.0.0.1:8080");
        assert_eq!(target.to_string(), "http://127.0.0.1:8080/api");
        let bare: Target = "http://localhost".parse().unwrap();
        assert_eq!((bare.authority().as_str(), bare.path("/x").as_str()), ("localhost:80", "/x"));
    }

    #[test]
    fn what_cannot_be_reached_is_refused_at_once() {
        for url in ["", "127.0.0.1:8080", "https://127.0.0.1", "http://", "http://a/?b=c", "/x"] {
            assert!(url.parse::<Target>().is_err(), "{url:?} was accepted");
        }
    }
}
