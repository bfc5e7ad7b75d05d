//! What a fault is injected into, and for how long.

use std::time::Duration;

use crate::chaos::{operator::Operator, test_cluster::TestCluster};
use workload::buyers::Buyer;

/// The servers and sales of a round, and how long one of its faults lasts.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    pub cluster: &'a TestCluster,
    /// The vouchers on sale.
    pub sales: &'a [u64],
    /// Those who sign in again when Redis has lost their sessions.
    pub buyers: &'a [Buyer],
    pub operator: &'a Operator<'a>,
    /// From the fault to the beginning of its end: a restart, a recovery or a failover comes on top.
    pub lasts: Duration,
}
