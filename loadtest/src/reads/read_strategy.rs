//! Read strategies: the cache patterns by which the service can read a shop, by its names for them.

use std::fmt;

use clap::ValueEnum;
use hyper::header::{HeaderName, HeaderValue};
use serde::Serialize;

use workload::http::Call;

/// A read strategy. A server with `--lab` lets the header `x-lab-cache` choose it for one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ReadStrategy {
    /// Look, load, store.
    CacheAside,
    /// The same, and absent rows are remembered.
    NullCaching,
    /// One load in the whole cluster, and all others wait for it.
    Mutex,
    /// Values never leave; an expired one is served while it is rebuilt.
    LogicalExpiry,
    /// Memory, then Redis, then one load per process and per cluster.
    Layered,
}

impl ReadStrategy {
    /// The service's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CacheAside => "cache-aside",
            Self::NullCaching => "null-caching",
            Self::Mutex => "mutex",
            Self::LogicalExpiry => "logical-expiry",
            Self::Layered => "layered",
        }
    }

    /// `GET /shop/{id}` by this strategy.
    pub fn read(self, id: u64) -> Call {
        read(Some(self), id)
    }
}

/// The header that picks the read strategy of one request; a server without `--lab` ignores it.
const LAB_CACHE: HeaderName = HeaderName::from_static("x-lab-cache");

/// `GET /shop/{id}`, by this strategy or the configured one.
pub fn read(strategy: Option<ReadStrategy>, id: u64) -> Call {
    let call = Call::get(format!("/shop/{id}"));
    match strategy {
        Some(strategy) => call.header(LAB_CACHE, HeaderValue::from_static(strategy.name())),
        None => call,
    }
}

/// The strategy's name in a report.
pub fn name(strategy: Option<ReadStrategy>) -> String {
    strategy.map_or("the configured one", ReadStrategy::name).to_owned()
}

impl fmt::Display for ReadStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_travel_in_the_header() {
        for strategy in ReadStrategy::value_variants() {
            assert_eq!(ReadStrategy::from_str(strategy.name(), false), Ok(*strategy));
            assert_eq!(strategy.read(7).headers[LAB_CACHE], strategy.name());
        }
        let plain = read(None, 7);
        assert_eq!((plain.path.as_str(), plain.headers.get(LAB_CACHE)), ("/shop/7", None));
    }
}
