//! How one kind of data is cached: its times, its filter, and the names of the ways to read it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::stats::PolicyCounters;
use super::{Bloom, PolicyStats, Ttl};

/// The ways to read, from the naive one to the one a busy service uses. [`Cache`](super::Cache) has
/// a method for each, and [`read`](super::Cache::read) picks by this name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Look, load, store. Falls to penetration, breakdown and avalanche alike.
    CacheAside,
    /// And remember what does not exist.
    NullCaching,
    /// And let one node load, while the others wait for it.
    Mutex,
    /// Values never leave; what is past its logical expiry is served while one node rebuilds it.
    LogicalExpiry,
    /// All of it: memory, Redis, one load per process, one load per cluster, stale while rebuilding.
    #[default]
    Layered,
}

impl Kind {
    /// Every kind, in the order in which they are best learned.
    pub const ALL: [Self; 5] =
        [Self::CacheAside, Self::NullCaching, Self::Mutex, Self::LogicalExpiry, Self::Layered];

    /// The name used in configuration.
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

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No way to read has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no cache policy `{0}`; there are cache-aside, null-caching, mutex, logical-expiry, layered"
)]
pub struct UnknownKind(String);

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownKind(name.to_owned()))
    }
}

/// Counters that policies can share. Read by [`Policy::stats`].
#[derive(Debug, Clone, Default)]
pub struct Counters(pub(super) Arc<PolicyCounters>);

/// How one kind of data is cached. Clones share their counters.
#[derive(Debug, Clone)]
pub struct Policy {
    /// A name for logs and metrics, such as `shop`.
    pub name: &'static str,
    /// How long a value lives in Redis. Default 30 min ± 10 %.
    pub ttl: Ttl,
    /// How long "does not exist" is remembered in Redis. Default 2 min.
    pub null_ttl: Ttl,
    /// With logical expiry: how long a value counts as fresh. Default 30 min ± 10 %.
    pub fresh_for: Ttl,
    /// Layered: a value with less than this left to live is served and rebuilt in the background.
    /// Default 3 min, and never more than half of [`ttl`](Self::ttl). 0: values are loaded only
    /// after they have expired.
    pub rebuild_ahead: Duration,
    /// How long a value may be served from memory: how old an answer may be if an invalidation got
    /// lost with its connection. Default 1 s.
    pub local_ttl: Duration,
    /// How long the rebuild mutex lasts, should its holder die. Default 10 s.
    pub mutex_ttl: Duration,
    /// How long a reader waits for another node's load before it loads itself. Default 1 s.
    pub wait_limit: Duration,
    /// Which keys exist at all; asked when Redis has no value, before a load.
    pub filter: Option<Bloom>,
    /// What happened under this policy; a policy made from another by `..other` shares them.
    pub counters: Counters,
}

impl Policy {
    /// The defaults.
    pub fn named(name: &'static str) -> Self {
        Self {
            name,
            ttl: Ttl::jittered(Duration::from_secs(30 * 60), 0.1),
            null_ttl: Ttl::exact(Duration::from_secs(2 * 60)),
            fresh_for: Ttl::jittered(Duration::from_secs(30 * 60), 0.1),
            rebuild_ahead: Duration::from_secs(3 * 60),
            local_ttl: Duration::from_secs(1),
            mutex_ttl: Duration::from_secs(10),
            wait_limit: Duration::from_secs(1),
            filter: None,
            counters: Counters::default(),
        }
    }

    /// How long before its expiry a value is rebuilt. A value that was stale from the start would
    /// be rebuilt without end.
    pub(super) fn ahead(&self) -> Duration {
        self.rebuild_ahead.min(self.ttl.base() / 2)
    }

    /// What happened under this policy and its clones since it was made.
    pub fn stats(&self) -> PolicyStats {
        self.counters.0.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_kinds() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("Layered".parse::<Kind>().is_err());
        assert!("".parse::<Kind>().is_err());
    }
}
