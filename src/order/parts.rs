//! [`OrderParts`]: what all strategies work with, the stream among them.

use std::sync::Arc;
use std::time::Duration;

use super::store::OrderStore;
use crate::config::SaleConfig;
use crate::connection::redis::{Redis, RoutedConnection};
use crate::id::IdGenerator;
use crate::keys::Keys;
use crate::voucher::recounts::Recounts;
use lock::Locks;

/// Servers, ids, locks and limits.
pub struct OrderParts {
    /// The Redis servers.
    pub nodes: Redis,
    /// Commands to the master.
    pub redis: RoutedConnection,
    /// The names of keys.
    pub keys: Keys,
    /// The SQL, on the connections of purchases.
    pub store: OrderStore,
    /// The same, on those of reads.
    pub reads: OrderStore,
    /// Order ids.
    pub ids: Arc<IdGenerator>,
    /// The sales whose stock counter is to be counted again.
    pub recounts: Recounts,
    /// Locks shared by all nodes.
    pub locks: Locks,
    /// The options of sales.
    pub config: SaleConfig,
    /// Lease of the setnx lock.
    pub setnx_lease: Duration,
    /// Longest time one database step may take.
    pub timeout: Duration,
    /// Longest time from a purchase's beginning to that of its commit.
    pub commits_within: Duration,
}
