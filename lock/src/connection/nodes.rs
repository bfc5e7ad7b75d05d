//! The nodes of a Redis in use, which all handles of one application share: a cluster's slot table,
//! the master as the sentinels last reported it.

use std::fmt;
use std::sync::Arc;

use redis::Client;

use crate::connection::cluster::Cluster;
use crate::connection::sentinel::Master;
use crate::connection::supplied::SuppliedConnection;

/// The nodes; clones share what is known about them.
#[derive(Clone)]
pub(crate) enum Nodes {
    Single(Client),
    /// A connection, and what further ones are made with.
    Supplied(SuppliedConnection, Option<Client>),
    Cluster(Arc<Cluster>),
    Sentinel(Arc<Master>),
}

/// Without addresses, which may hold a password.
impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single(_) => "Single",
            Self::Supplied(..) => "Supplied",
            Self::Cluster(_) => "Cluster",
            Self::Sentinel(_) => "Sentinel",
        })
    }
}
