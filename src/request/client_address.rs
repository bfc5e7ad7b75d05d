//! The client's IP address, for rate limits: one machine must not dodge them by using many phone numbers, and must not
//! choose its address by a header.
//!
//! A proxy appends the address that it saw to `x-forwarded-for`. So the list is read from its end: an entry counts if
//! all hops after it are [trusted](ClientNetworks::trusted_proxies); the first that is not a trusted proxy is the client.
//! This is the algorithm of nginx's `real_ip_recursive`, and of RFC 7239, section 8.1.

use std::fmt;
use std::net::IpAddr;

use crate::config::ClientNetworks;

/// A client's address as rate limits count it: an IPv6 client is its /64 network, which one client usually owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientAddress {
    address: IpAddr,
    unlimited: bool,
}

impl ClientAddress {
    /// Whether the client is configured to have no rate limit.
    pub fn is_unlimited(self) -> bool {
        self.unlimited
    }

    /// The client's address, from the peer of the connection and the lines of `x-forwarded-for` in their order. A line that is
    /// not text is `None`.
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
        // Whether `address` is a client's. It is not, if it is that of a proxy whose header names no client.
        let mut is_client = entries.peek().is_none();
        let mut address = peer.to_canonical();
        while networks.trusted_proxies.contain(address)
            && let Some(Some(before)) = entries.next()
        {
            address = before.to_canonical();
            is_client = true;
        }
        let unlimited = is_client && networks.unlimited_clients.contain(address);
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

    #[test]
    fn the_list_is_walked_from_its_end_over_trusted_proxies_and_no_further() {
        let networks = ClientNetworks {
            trusted_proxies: "127.0.0.0/8,::1,10.0.0.0/8".parse().unwrap(),
            unlimited_clients: "127.0.0.0/8,192.0.2.0/24".parse().unwrap(),
        };
        let client = |peer: &str, lines: &[&'static str]| {
            let lines = lines
                .iter()
                .map(|line| Some(*line).filter(|line| *line != "no text"));
            ClientAddress::new(&networks, peer.parse().unwrap(), lines)
        };
        for (peer, lines, address) in [
            ("203.0.113.9", &["198.51.100.1"][..], "203.0.113.9"),
            ("::ffff:203.0.113.9", &[], "203.0.113.9"),
            ("::ffff:127.0.0.1", &["198.51.100.1"], "198.51.100.1"),
            (
                "127.0.0.1",
                &["192.0.2.7, 198.51.100.1, 10.0.0.2, 10.0.0.3"],
                "198.51.100.1",
            ),
            ("127.0.0.1", &["192.0.2.7", "198.51.100.1"], "198.51.100.1"),
            ("127.0.0.1", &["10.0.0.2, 10.0.0.3"], "10.0.0.2"),
            (
                "127.0.0.1",
                &["198.51.100.1, nonsense, 10.0.0.3"],
                "10.0.0.3",
            ),
            ("127.0.0.1", &["no text"], "127.0.0.1"),
            ("::1", &[], "::1"),
            ("2001:db8:1:2:3:4:5:6", &[], "2001:db8:1:2::"),
        ] {
            assert_eq!(client(peer, lines).to_string(), address, "{peer} {lines:?}");
        }
        // Configured, and connected without a proxy or named by a trusted one.
        for (peer, lines, is_unlimited) in [
            ("::1", &[][..], false),
            ("127.0.0.1", &[], true),
            ("192.0.2.7", &[], true),
            ("127.0.0.1", &["192.0.2.7"], true),
            ("127.0.0.1", &["127.0.0.2"], true),
            ("127.0.0.1", &["192.0.2.7, 198.51.100.1"], false),
            ("127.0.0.1", &["::1"], false),
            ("127.0.0.1", &["nonsense"], false),
            ("127.0.0.1", &["no text"], false),
            ("198.51.100.1", &["192.0.2.7"], false),
        ] {
            assert_eq!(
                client(peer, lines).is_unlimited(),
                is_unlimited,
                "{peer} {lines:?}"
            );
        }
    }
}
