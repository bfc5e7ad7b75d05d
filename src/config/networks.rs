//! Lists of IP networks, such as `127.0.0.0/8,::1`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// IP networks. An IPv4 address that is written as IPv6 (`::ffff:192.0.2.1`) counts as the IPv4 address.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Networks(Vec<Network>);

/// The addresses that begin with the first `bits` bits of `address`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Network {
    address: IpAddr,
    bits: u32,
}

impl Networks {
    /// Whether `address` is in one of them.
    pub fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| match (network.address, address) {
            (IpAddr::V4(own), IpAddr::V4(given)) => {
                // The shift by all 32 bits, of /0, leaves nothing to compare.
                (own.to_bits() ^ given.to_bits()).checked_shr(32 - network.bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(given)) => {
                (own.to_bits() ^ given.to_bits()).checked_shr(128 - network.bits).unwrap_or(0) == 0
            }
            _ => false,
        })
    }
}

impl FromStr for Networks {
    type Err = String;

    /// Entries are separated by commas; an empty text is an empty list.
    fn from_str(text: &str) -> Result<Self, String> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        entries.map(network).collect::<Result<_, _>>().map(Networks)
    }
}

fn network(text: &str) -> Result<Network, String> {
    let wrong = || {
        format!("`{text}` is not an address or a network such as 192.0.2.1, 10.0.0.0/8 or fd00::/8")
    };
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = match address {
        IpAddr::V4(_) => Ipv4Addr::BITS,
        IpAddr::V6(_) => Ipv6Addr::BITS,
    };
    let bits = bits.map_or(Ok(most), str::parse).map_err(|_| wrong())?;
    if bits > most { Err(wrong()) } else { Ok(Network { address, bits }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contain(networks: &str, address: &str) -> bool {
        networks.parse::<Networks>().unwrap().contain(address.parse().unwrap())
    }

    #[test]
    fn addresses_are_in_their_networks_and_in_no_others() {
        assert!(contain("10.0.0.0/8", "10.255.1.2"));
        assert!(!contain("10.0.0.0/8", "11.0.0.0"));
        assert!(contain("192.0.2.1", "192.0.2.1") && !contain("192.0.2.1", "192.0.2.2"));
        assert!(contain("203.0.113.0/31", "203.0.113.1"));
        assert!(!contain("203.0.113.0/31", "203.0.113.2"));
        assert!(contain(" 127.0.0.0/8 , ::1", "::1") && contain("127.0.0.0/8,", "127.8.8.8"));
        assert!(contain("0.0.0.0/0", "198.51.100.1") && !contain("0.0.0.0/0", "::1"));
        assert!(contain("::/0", "2001:db8::1") && contain("fd00::/8", "fdff::1"));
        assert!(contain("127.0.0.0/8", "::ffff:127.0.0.1"));
        assert!(!contain("", "127.0.0.1"));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for bad in ["localhost", "10.0.0.0/33", "10.0.0.0/", "::/129", "10.0.0/8", "a,b", "1/8"] {
            assert!(bad.parse::<Networks>().is_err(), "{bad}");
        }
    }
}
