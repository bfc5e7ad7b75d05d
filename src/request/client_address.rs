//! The client's IP address, for rate limits: one machine must not dodge them by using many phone numbers, and must not
//! choose its address by a header.
//!
//! A proxy appends the address that it saw to `x-forwarded-for`. So the list is read from its end: an entry counts if
//! all hops after it are [trusted](ClientNetworks::trusted_proxies); the first that is not a trusted proxy is the client.
//! This is the algorithm of nginx's `real_ip_recursive`, and of RFC 7239, section 8.1.

use std::fmt;
use std::net::IpAddr;

use crate::config::Networks;

/// Which addresses are proxies, and which clients have no rate limit.
#[derive(Clone, Debug, Default)]
pub struct ClientNetworks {
    /// Their `x-forwarded-for` is believed.
    pub trusted_proxies: Networks,
    /// Clients without a rate limit, as the trusted proxies name them.
    pub unlimited_clients: Networks,
}

/// A client's address as rate limits count it: an IPv6 client is its /64 network, which one client usually owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientAddress {
    address: IpAddr,
    unlimited: bool,
}

impl ClientAddress {
    /// Whether no rate limit counts the client: it is connected from this machine without a proxy in between, so it is
    /// the operator's, whose load tools sign thousands of users in; or it is configured so.
    pub fn is_unlimited(self) -> bool {
        self.unlimited
    }

    /// The client's address, from the peer of the connection and the lines of `x-forwarded-for` in their order, `None`
    /// where one is not text. A client that came with such a header is never one of this machine, whatever the header
    /// says.
    pub fn new<'a>(
        networks: &ClientNetworks,
        peer: IpAddr,
        forwarded_for: impl DoubleEndedIterator<Item = Option<&'a str>>,
    ) -> Self {
        let mut entries = forwarded_for
            .rev()
            .flat_map(|line| line.unwrap_or("").rsplit(','))
            .map(|entry| entry.trim().parse::<IpAddr>().ok())
            .peekable();
        let direct = entries.peek().is_none();
        // Whether `address` is a client's, and not that of a proxy that named nobody.
        let (mut address, mut named) = (peer.to_canonical(), direct);
        while networks.trusted_proxies.contain(address)
            && let Some(Some(before)) = entries.next()
        {
            (address, named) = (before.to_canonical(), true);
        }
        let unlimited =
            direct && address.is_loopback() || named && networks.unlimited_clients.contain(address);
        let address = match address {
            IpAddr::V6(v6) if !v6.is_loopback() => {
                IpAddr::V6((v6.to_bits() & !u128::from(u64::MAX)).into())
            }
            other => other,
        };
        ClientAddress { address, unlimited }
    }
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(trusted: &str, unlimited: &str) -> ClientNetworks {
        ClientNetworks {
            trusted_proxies: trusted.parse().unwrap(),
            unlimited_clients: unlimited.parse().unwrap(),
        }
    }

    fn client(networks: &ClientNetworks, peer: &str, lines: &[&str]) -> ClientAddress {
        ClientAddress::new(networks, peer.parse().unwrap(), lines.iter().map(|line| Some(*line)))
    }

    const LOOPBACK: &str = "127.0.0.0/8,::1/128";

    #[test]
    fn only_a_trusted_proxy_is_believed() {
        let trusted = networks(LOOPBACK, "");
        let of = |peer, lines: &[&str]| client(&trusted, peer, lines).to_string();
        assert_eq!(of("203.0.113.9", &["198.51.100.1"]), "203.0.113.9");
        assert_eq!(of("172.18.0.4", &["198.51.100.1"]), "172.18.0.4");
        assert_eq!(of("127.0.0.1", &["198.51.100.1"]), "198.51.100.1");
        assert_eq!(of("::ffff:127.0.0.1", &["198.51.100.1"]), "198.51.100.1");
        assert_eq!(of("127.0.0.1", &["192.0.2.7, 198.51.100.1"]), "198.51.100.1");
        assert_eq!(of("127.0.0.1", &["192.0.2.7", "198.51.100.1"]), "198.51.100.1");
        assert_eq!(of("127.0.0.1", &["198.51.100.1,nonsense"]), "127.0.0.1");
        assert_eq!(of("127.0.0.1", &[]), "127.0.0.1");
    }

    #[test]
    fn the_list_is_walked_over_trusted_proxies_and_no_further() {
        let trusted = networks("127.0.0.0/8,10.0.0.0/8", "");
        let of = |line| client(&trusted, "127.0.0.1", &[line]).to_string();
        assert_eq!(of("192.0.2.7, 198.51.100.1, 10.0.0.2, 10.0.0.3"), "198.51.100.1");
        assert_eq!(of("10.0.0.2, 10.0.0.3"), "10.0.0.2");
        assert_eq!(of("198.51.100.1, nonsense, 10.0.0.3"), "10.0.0.3");
    }

    #[test]
    fn this_machine_is_a_peer_without_a_header_and_never_an_entry_of_one() {
        let trusted = networks(LOOPBACK, "");
        let unlimited = |peer, lines: &[&str]| client(&trusted, peer, lines).is_unlimited();
        assert!(unlimited("127.0.0.1", &[]) && unlimited("::1", &[]));
        assert!(!unlimited("203.0.113.9", &[]) && !unlimited("172.18.0.4", &[]));
        for line in ["127.0.0.1", "::1", "", "nonsense", "127.0.0.1, 127.0.0.1"] {
            assert!(!unlimited("127.0.0.1", &[line]), "{line}");
        }
        let unreadable =
            ClientAddress::new(&trusted, "127.0.0.1".parse().unwrap(), [None].into_iter());
        assert!(!unreadable.is_unlimited());
    }

    #[test]
    fn configured_clients_are_unlimited_where_a_trusted_proxy_names_them() {
        let both = networks("127.0.0.0/8", "127.0.0.0/8,192.0.2.0/24");
        let unlimited = |peer, lines: &[&str]| client(&both, peer, lines).is_unlimited();
        assert!(unlimited("127.0.0.1", &["192.0.2.7"]) && unlimited("192.0.2.7", &[]));
        assert!(unlimited("127.0.0.1", &["127.0.0.2"]));
        assert!(!unlimited("127.0.0.1", &["192.0.2.7, 198.51.100.1"]));
        assert!(
            !unlimited("127.0.0.1", &["nonsense"]) && !unlimited("198.51.100.1", &["192.0.2.7"])
        );
    }

    #[test]
    fn an_ipv6_client_is_its_network() {
        let of = |peer| client(&networks(LOOPBACK, ""), peer, &[]).to_string();
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("::ffff:203.0.113.9"), "203.0.113.9");
        assert_eq!(of("::1"), "::1");
    }
}
