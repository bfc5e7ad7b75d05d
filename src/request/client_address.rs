//! The client's IP address, for rate limits: one machine must not dodge them by using many phone numbers. A proxy's
//! `x-forwarded-for` counts only where the proxy has a loopback or private address.

use std::fmt;
use std::net::IpAddr;

/// A client's address as rate limits count it: an IPv6 client is its /64 network, which one client usually owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientAddress(IpAddr);

impl ClientAddress {
    /// Whether the client is on this machine. Its operator is not limited, so that load tools can sign thousands of
    /// users in.
    pub fn is_local(self) -> bool {
        self.0.is_loopback()
    }

    /// The client's address, from the peer of the connection and the value of `x-forwarded-for`.
    pub fn new(peer: IpAddr, forwarded_for: Option<&str>) -> Self {
        // The nearest proxy appends the address that it saw; a client can forge the ones before.
        let nearest = forwarded_for.and_then(|list| list.rsplit(',').next()).map(str::trim);
        let forwarded = nearest.filter(|_| may_be_a_proxy(peer)).and_then(|text| text.parse().ok());
        let address: IpAddr = forwarded.unwrap_or(peer);
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

/// Loopback and private addresses, where only our own proxy can be.
fn may_be_a_proxy(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_private(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(peer: &str, forwarded: Option<&str>) -> String {
        ClientAddress::new(peer.parse().unwrap(), forwarded).to_string()
    }

    #[test]
    fn only_a_local_or_private_proxy_is_believed() {
        assert_eq!(of("203.0.113.9", Some("198.51.100.1")), "203.0.113.9");
        assert_eq!(of("127.0.0.1", Some("198.51.100.1")), "198.51.100.1");
        assert_eq!(of("172.18.0.4", Some("198.51.100.1")), "198.51.100.1");
        assert_eq!(of("127.0.0.1", Some("nonsense")), "127.0.0.1");
        assert_eq!(of("127.0.0.1", None), "127.0.0.1");
        assert_eq!(of("127.0.0.1", Some("192.0.2.7, 198.51.100.1")), "198.51.100.1");
    }

    #[test]
    fn an_ipv6_client_is_its_network() {
        assert_eq!(of("2001:db8:1:2:3:4:5:6", None), "2001:db8:1:2::");
        assert_eq!(of("::ffff:203.0.113.9", None), "203.0.113.9");
        assert_eq!(of("::1", None), "::1");
    }
}
