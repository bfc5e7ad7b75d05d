//! Which servers a run breaks: one Redis or several, one database or a primary with a replica.

use clap::ValueEnum;
use testkit::replicated_database::Replication;

/// How Redis is run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum RedisLayout {
    /// One server.
    #[default]
    Single,
    /// A master and a replica that three sentinels watch.
    Sentinel,
    /// A cluster of three masters with a replica each.
    Cluster,
}

/// How the database is run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum DatabaseLayout {
    /// One server.
    #[default]
    Single,
    /// A primary and a semi-synchronous replica behind a proxy: a failover may lose nothing
    Replicated,
    /// As `replicated`, with an asynchronous replica: what a failover loses is counted apart
    Asynchronous,
}

impl DatabaseLayout {
    /// How its servers replicate each other.
    pub fn replication(self) -> Replication {
        match self {
            Self::Single => Replication::None,
            Self::Replicated => Replication::SemiSynchronous,
            Self::Asynchronous => Replication::Asynchronous,
        }
    }
}

/// The servers of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layout {
    /// Redis.
    pub redis: RedisLayout,
    /// The database.
    pub database: DatabaseLayout,
    /// Whether a library that fakes the time is installed, without which some faults cannot be injected.
    pub faketime: bool,
}

impl Layout {
    /// Whether a Redis server can be replaced by another, which may not have its last writes.
    pub fn redis_fails_over(self) -> bool {
        self.redis != RedisLayout::Single
    }
}
