//! One base URL of the service: an instance, or the proxy before several.

use std::{fmt, io, net::SocketAddr, str::FromStr, sync::Arc};

use hyper::Uri;
use tokio::{
    net::{TcpStream, lookup_host},
    sync::Mutex,
};

use crate::Error;

/// A base URL such as `http://127.0.0.1:8080` or `http://127.0.0.1:8080/api`. Plain HTTP only.
///
/// A host name is looked up by the first connection, for all connections of this value and its clones; again only once
/// a connection has failed. A burst opens thousands of connections at once: a look-up for each overruns a small DNS
/// server such as Docker's, and would be measured as the service's latency.
#[derive(Debug, Clone)]
pub struct Target {
    /// A name or an address, an IPv6 address in brackets, and the TCP port.
    authority: String,
    prefix: String,
    addresses: Arc<Mutex<Option<Arc<[SocketAddr]>>>>,
}

impl Target {
    /// A new TCP connection. Without a time limit of its own; dropping the future gives it up.
    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        let connected = TcpStream::connect(&*self.addresses().await?).await;
        if connected.is_err() {
            // The name may have moved.
            *self.addresses.lock().await = None;
        }
        connected
    }

    /// Looks the name up, once at a time: the lock is held meanwhile. A caller that waits for the lock may be dropped.
    async fn addresses(&self) -> io::Result<Arc<[SocketAddr]>> {
        let mut cached = self.addresses.lock().await;
        if let Some(addresses) = &*cached {
            return Ok(addresses.clone());
        }
        let found = lookup_host(&self.authority).await?.collect();
        Ok(cached.insert(found).clone())
    }

    /// Host and port: the value of the `Host` header.
    pub fn authority(&self) -> String {
        self.authority.clone()
    }

    /// The request path for `path` (which begins with `/`), under this URL's own path.
    pub fn path(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let uri = url.trim().parse::<Uri>().ok();
        let uri = uri.filter(|uri| uri.scheme_str() == Some("http") && uri.query().is_none());
        let uri = uri.ok_or_else(|| {
            Error::Usage(format!(
                "the target '{url}' cannot be used: only http:// is spoken, and a query has no place \
                 here (write it like http://127.0.0.1:8080)"
            ))
        })?;
        let host = uri.host().unwrap_or_default();
        let port = uri.port_u16().unwrap_or(80);
        Ok(Self {
            authority: format!("{host}:{port}"),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            addresses: Arc::default(),
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.prefix)
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
        assert_eq!(
            (bare.authority().as_str(), bare.path("/x").as_str()),
            ("localhost:80", "/x")
        );
    }

    #[test]
    fn an_address_that_cannot_be_used_is_refused_at_once() {
        for url in [
            "",
            "127.0.0.1:8080",
            "https://127.0.0.1",
            "http://",
            "http://a/?b=c",
            "/x",
        ] {
            assert!(url.parse::<Target>().is_err(), "{url:?} was accepted");
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_up_once_until_a_connection_fails() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target_on = |host: &str| format!("http://{host}:{port}").parse::<Target>().unwrap();
        target_on("127.0.0.1").connect().await.unwrap();
        let target = target_on("localhost");
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let target = target.clone();
            asking.spawn(async move { target.addresses().await.unwrap() });
        }
        let found = asking.join_all().await;
        assert!(
            found
                .iter()
                .all(|addresses| Arc::ptr_eq(addresses, &found[0]))
        );
        target.connect().await.unwrap();
        drop(listener);
        target.connect().await.unwrap_err();
        assert!(!Arc::ptr_eq(&target.addresses().await.unwrap(), &found[0]));
    }
}
