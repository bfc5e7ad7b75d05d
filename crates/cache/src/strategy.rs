//! The read strategies by name, for configuration and dispatch.

use std::fmt;
use std::str::FromStr;

/// How a value is read through the cache, from plain cache-aside to a two-level cache. Each is a
/// method of [`Cache`](crate::Cache); [`Cache::read`](crate::Cache::read) selects one by this enum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReadStrategy {
    /// Plain cache-aside: get, load, store.
    CacheAside,
    /// Cache-aside that also caches that a row does not exist.
    NullCaching,
    /// One load per cluster, under a mutex in Redis; other readers wait for it.
    Mutex,
    /// Values have no time to live; an expired one is served while one task rebuilds it.
    LogicalExpiry,
    /// Two levels, memory and Redis, with one load per process and cluster, and refresh-ahead.
    #[default]
    Layered,
}

impl ReadStrategy {
    /// Every strategy, from the simplest to the most complete.
    pub const ALL: [Self; 5] =
        [Self::CacheAside, Self::NullCaching, Self::Mutex, Self::LogicalExpiry, Self::Layered];

    /// The name in configuration: what [`FromStr`] accepts and [`Display`](fmt::Display) writes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CacheAside => "cache-aside",
            Self::NullCaching => "null-caching",
            Self::Mutex => "mutex",
            Self::LogicalExpiry => "logical-expiry",
            Self::Layered => "layered",
        }
    }
}

impl fmt::Display for ReadStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text is not the name of a [`ReadStrategy`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown read strategy `{0}`; expected cache-aside, null-caching, mutex, logical-expiry or layered"
)]
pub struct UnknownReadStrategy(String);

impl FromStr for ReadStrategy {
    type Err = UnknownReadStrategy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|strategy| strategy.name() == name)
            .ok_or_else(|| UnknownReadStrategy(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_to_its_strategy() {
        for strategy in ReadStrategy::ALL {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
        let unknown = "Layered".parse::<ReadStrategy>().unwrap_err().to_string();
        for strategy in ReadStrategy::ALL {
            assert!(unknown.contains(strategy.name()), "{unknown}");
        }
        assert!("".parse::<ReadStrategy>().is_err());
    }
}
