//! Lists of IP networks, such as `127.0.0.0/8,::1`, and which clients they name.

use std::net::IpAddr;
use std::str::FromStr;

use clap::Args;
use ipnet::IpNet;

/// Which addresses are proxies, and which clients have no rate limit.
#[derive(Args, Clone, Debug)]
pub struct ClientNetworks {
    /// Proxies whose X-Forwarded-For is believed, as addresses or networks, such as 10.0.0.0/8,fd00::/8. The header is
    /// read from its end over these; the first other address is the client. Anybody in these networks can choose the
    /// address that limits count.
    #[arg(
        long,
        env = "TRUSTED_PROXIES",
        value_name = "NETWORKS",
        default_value = "127.0.0.0/8,::1"
    )]
    pub trusted_proxies: Networks,
    /// Clients without a rate limit, such as load tools, as addresses or networks: 127.0.0.0/8,::1 for those of this machine,
    /// unless a TCP balancer on it passes visitors on. Never networks of visitors.
    #[arg(
        long,
        env = "UNLIMITED_CLIENTS",
        value_name = "NETWORKS",
        default_value = ""
    )]
    pub unlimited_clients: Networks,
}

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
        let entries = text
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty());
        entries.map(network).collect::<Result<_, _>>().map(Networks)
    }
}

fn network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| address()).map_err(|_| {
        format!("`{text}` is not an address or a network such as 192.0.2.1, 10.0.0.0/8 or fd00::/8")
    })
}
