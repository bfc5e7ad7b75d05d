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
#[allow(missing_docs)] // the parts under their names
pub struct OrderParts {
    pub nodes: Redis,
    /// Commands to the master.
    pub redis: RoutedConnection,
    pub keys: Keys,
    /// On the connections of purchases.
    pub store: OrderStore,
    /// On those of reads.
    pub reads: OrderStore,
    pub ids: Arc<IdGenerator>,
    pub recounts: Recounts,
    pub locks: Locks,
    pub config: SaleConfig,
    pub setnx_lease: Duration,
    /// Longest time one database step may take.
    pub timeout: Duration,
    /// Longest time from a purchase's beginning to that of its commit.
    pub commits_within: Duration,
}
