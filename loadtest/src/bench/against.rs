//! Nodes that are measured beside ours in the same rounds (`--against URL`): a Java node, or an older build. They are
//! started by others, on the benchmark's own database and Redis.

use std::net::ToSocketAddrs;

use anyhow::Context;
use workload::Target;

use crate::bench::servers::Server;

/// Another node. The names live as long as the program, as those of all runs do.
#[derive(Debug)]
pub struct Node {
    pub server: Server,
    /// The strategy of the sales that it is asked for.
    pub strategy: &'static str,
    pub prefix: &'static str,
    /// Names of its runs: orders, and refusals of a sold-out sale.
    pub runs: [&'static str; 2],
}

impl Node {
    /// The node at `target`, which is to sell by `strategy`.
    pub fn new(target: &Target, strategy: &str) -> anyhow::Result<Self> {
        let mut addresses = (target.host(), target.port()).to_socket_addrs()?;
        let address = addresses.next().with_context(|| format!("{target} has no address"))?;
        let pid = address.ip().is_loopback().then(|| listener(target.port())).flatten();
        let forever = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
        Ok(Node {
            server: Server::other(address, target.clone(), pid),
            strategy: forever(strategy.to_owned()),
            prefix: forever(target.path("")),
            runs: ["", ", sold out"].map(|what| forever(format!("{strategy}{what}, {target}"))),
        })
    }
}

/// The process on this machine that listens on `port`, as far as the system shows it (proc(5)).
fn listener(port: u16) -> Option<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    let suffix = format!(":{port:04X}");
    let inode = tables.iter().flatten().flat_map(|table| table.lines()).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let listens = fields.get(3) == Some(&"0A") && fields.get(1)?.ends_with(&suffix);
        listens.then(|| fields.get(9).map(|inode| format!("socket:[{inode}]"))).flatten()
    })?;
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|pid| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
        let mut links = files.flatten().flat_map(|file| std::fs::read_link(file.path()));
        links.any(|link| link.to_str() == Some(&inode))
    })
}
