//! How a cluster finds the nodes of keys and channels.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt, select_ok};
use redis::{Client, RedisResult};

use crate::address::{Address, Channels};
use crate::cluster::Cluster;
use crate::cluster_link::ClusterLink;
use crate::nodes::{Nodes, change};
use crate::routed::{Route, RoutedConnection};
use crate::settings::Timeouts;
use crate::slots::slot;

impl Nodes for Cluster {
    fn link(self: Arc<Self>, _timeouts: Timeouts) -> RoutedConnection {
        RoutedConnection(Route::Cluster(ClusterLink::new(self)))
    }

    fn separate(self: Arc<Self>, timeouts: Timeouts) -> Arc<dyn Nodes> {
        Arc::new(Self::new(self.seeds.clone(), timeouts))
    }

    fn client(&self, address: &str) -> RedisResult<Client> {
        self.client_at(address)
    }

    /// Succeeds when a master answers. All are asked at once: one that is dead or hangs delays nothing.
    fn ping(&self, _link: RoutedConnection) -> BoxFuture<'_, RedisResult<()>> {
        Box::pin(async move {
            let table = self.slot_table().await?;
            let pings = table.masters().map(|node| {
                async move { redis::cmd("PING").exec_async(&mut self.node(node)?).await }.boxed()
            });
            select_ok(pings).await.map(|_| ())
        })
    }

    /// Assigns channels to the masters that serve their slots. Masters without a channel have an empty set.
    fn assign_channels(
        &self,
        channels: Channels,
    ) -> BoxFuture<'_, RedisResult<HashMap<Address, Channels>>> {
        Box::pin(async move {
            let table = self.slot_table().await?;
            let mut assigned: HashMap<Address, Channels> = table
                .masters()
                .map(|node| (node.clone(), Channels::new()))
                .collect();
            for channel in channels {
                match table.master(slot(channel.as_bytes())) {
                    Some(node) => drop(assigned.entry(node.clone()).or_default().insert(channel)),
                    None => self.mark_stale(),
                }
            }
            Ok(assigned)
        })
    }

    fn serving(&self, key: &str) -> Option<Address> {
        self.current().1.master(slot(key.as_bytes())).cloned()
    }

    fn mark_stale(&self) {
        self.mark_stale();
    }

    fn changed(&self) -> BoxFuture<'static, ()> {
        change(self.table.subscribe())
    }

    fn is_cluster(&self) -> bool {
        true
    }
}
