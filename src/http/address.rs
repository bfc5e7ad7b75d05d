//! Whose request it is, by address: for limits that one machine must not be able to dodge by using
//! many phones. A proxy's word counts only when the proxy is a neighbour.

use std::fmt;
use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::error::Error;

/// The header in which our nginx names its client.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The other end of the connection, put into each request by the listener.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// The client's address, as far as limits care: an IPv6 client owns a whole /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientAddress(IpAddr);

impl ClientAddress {
    /// Whether the request comes from this very machine: its operator is not limited, so that load
    /// tools can sign thousands of users in.
    pub fn is_local(self) -> bool {
        self.0.is_loopback()
    }

    fn of(peer: IpAddr, forwarded: Option<&str>) -> Self {
        let named = forwarded.filter(|_| is_neighbour(peer)).and_then(|text| text.parse().ok());
        let address: IpAddr = named.unwrap_or(peer);
        ClientAddress(match address.to_canonical() {
            IpAddr::V6(v6) if !v6.is_loopback() => {
                IpAddr::V6((v6.to_bits() & !u128::from(u64::MAX)).into())
            }
            other => other,
        })
    }
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Loopback and private addresses: where a proxy of ours stands, and no stranger.
fn is_neighbour(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_private(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local(),
    }
}

impl<S: Sync> FromRequestParts<S> for ClientAddress {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let peer = parts.extensions.get::<Peer>().copied();
        let Peer(peer) = peer.ok_or_else(|| Error::Internal("a request without a peer".into()))?;
        let forwarded = parts.headers.get(FORWARDED_FOR).and_then(|value| value.to_str().ok());
        // The last one is what the nearest proxy saw; those before it are hearsay.
        let nearest = forwarded.and_then(|list| list.rsplit(',').next()).map(str::trim);
        Ok(ClientAddress::of(peer, nearest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(peer: &str, forwarded: Option<&str>) -> String {
        ClientAddress::of(peer.parse().unwrap(), forwarded).to_string()
    }

    #[test]
    fn a_strangers_word_about_its_address_does_not_count() {
        assert_eq!(of("203.0.113.9", Some("198.51.100.1")), "203.0.113.9");
        assert_eq!(of("127.0.0.1", Some("198.51.100.1")), "198.51.100.1");
        assert_eq!(of("172.18.0.4", Some("198.51.100.1")), "198.51.100.1");
        assert_eq!(of("127.0.0.1", Some("nonsense")), "127.0.0.1");
        assert_eq!(of("127.0.0.1", None), "127.0.0.1");
    }

    #[test]
    fn an_ipv6_client_is_its_network() {
        assert_eq!(of("2001:db8:1:2:3:4:5:6", None), "2001:db8:1:2::");
        assert_eq!(of("::ffff:203.0.113.9", None), "203.0.113.9");
        assert_eq!(of("::1", None), "::1");
    }
}
