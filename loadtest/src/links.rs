//! Many keep-alive connections, opened a batch at a time.

use std::time::Duration;

use tokio::task::JoinSet;
use workload::{Error, Target, descriptors, http::Connection};

/// Connections being opened at once, so that no listener's backlog overflows.
const BATCH: usize = 128;

/// A connection to one of several targets.
#[derive(Debug)]
pub struct Link {
    /// Index of the target.
    pub target: usize,
    /// The connection.
    pub connection: Connection,
}

/// Opens `count` connections to `targets` in turn. `limit` bounds each request.
///
/// # Errors
/// No target, too few file descriptors, or a target that does not accept.
pub async fn open(targets: &[Target], count: usize, limit: Duration) -> Result<Vec<Link>, Error> {
    if targets.is_empty() || count == 0 {
        return Err(Error::Usage("at least one target and one connection are needed".into()));
    }
    descriptors::reserve(count)?;
    let links = targets.iter().enumerate().cycle().take(count);
    let links =
        links.map(|(target, url)| Link { target, connection: Connection::new(url.clone(), limit) });
    reopen(targets, links.collect()).await
}

/// Opens those again that the server closed while they were idle.
///
/// # Errors
/// [`Error::Unreachable`].
pub async fn reopen(targets: &[Target], mut closed: Vec<Link>) -> Result<Vec<Link>, Error> {
    let mut links = Vec::with_capacity(closed.len());
    while !closed.is_empty() {
        let mut opening = JoinSet::new();
        for mut link in closed.drain(closed.len().saturating_sub(BATCH)..) {
            opening.spawn(async move {
                let opened = link.connection.open().await;
                (link, opened)
            });
        }
        while let Some(joined) = opening.join_next().await {
            let (link, opened) = joined?;
            opened.map_err(|error| Error::Unreachable {
                url: targets[link.target].to_string(),
                what: "a connection",
                reason: error.to_string(),
            })?;
            links.push(link);
        }
    }
    Ok(links)
}
