//! The read strategies by name, for configuration and dispatch.

use std::fmt;
use std::str::FromStr;

/// How [`Cache::read`](crate::Cache::read) reads a value, from plain cache-aside to a two-level cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReadStrategy {
    /// Plain cache-aside: get, load, store. The baseline for comparisons: every read of an absent id
    /// reaches the source, and so does every reader of a hot key that expires.
    CacheAside,
    /// Cache-aside with null caching: that a row does not exist is stored as `""` for a short time.
    /// Against *cache penetration* by repeated absent ids. Costs a key in Redis for each of them; if
    /// absent ids are unbounded, set [`CachePolicy::bloom_filter`](crate::CachePolicy::bloom_filter).
    NullCaching,
    /// One reader loads; in this process the others wait for its outcome (single-flight), in other
    /// processes they poll every few milliseconds. Against *cache breakdown*, a hot key that expires.
    /// Costs a wait for the load, at most
    /// [`CachePolicy::wait_timeout`](crate::CachePolicy::wait_timeout) for another node's.
    Mutex,
    /// Values carry the time until which they are fresh, and their keys do not expire. A stale value
    /// is served while one task in the cluster rebuilds it in the background. A key that was never
    /// stored, or was invalidated, is loaded as with the mutex: missing does not mean absent.
    /// Against *cache breakdown*, without a waiting reader. Costs stale answers for the time of one
    /// load after expiry, and keys that stay in Redis until they are deleted.
    LogicalExpiry,
    /// Memory, then Redis with one lookup per process, then one load per process and cluster. A value
    /// about to expire is served while it is rebuilt (refresh-ahead). The default choice.
    /// Costs memory, and stale answers after an invalidation for as long as its message travels, at
    /// most for [`CachePolicy::local_ttl`](crate::CachePolicy::local_ttl).
    #[default]
    Layered,
}

impl ReadStrategy {
    /// Every strategy, from the simplest to the most complete.
    pub const ALL: [Self; 5] = [
        Self::CacheAside,
        Self::NullCaching,
        Self::Mutex,
        Self::LogicalExpiry,
        Self::Layered,
    ];

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

impl FromStr for ReadStrategy {
    /// One sentence that lists the valid names.
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|strategy| strategy.name() == name)
            .ok_or_else(|| {
                let names = Self::ALL.map(Self::name).join(", ");
                format!("unknown read strategy `{name}`; there are {names}")
            })
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
        assert!("Layered".parse::<ReadStrategy>().is_err());
    }
}
