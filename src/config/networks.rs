//! Lists of IP networks, such as `127.0.0.0/8,::1`.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// IP networks. An IPv4 address that is written as IPv6 (`::ffff:192.0.2.1`) counts as the IPv4 address.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    /// Whether `address` is in one of them.
    pub fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
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

fn network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| address()).map_err(|_| {
        format!("`{text}` is not an address or a network such as 192.0.2.1, 10.0.0.0/8 or fd00::/8")
    })
}
