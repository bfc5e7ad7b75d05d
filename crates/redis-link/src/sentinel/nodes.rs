//! How the master behind sentinels is reached, and watched for its successor.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use redis::{Client, RedisResult};

use super::Master;
use crate::address::{Address, Channels};
use crate::node::{NodeConnection, Target};
use crate::nodes::{Nodes, change};
use crate::routed::RoutedConnection;
use crate::settings::Timeouts;

/// How often each sentinel is asked although no error occurred.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

impl Nodes for Master {
    fn link(self: Arc<Self>, timeouts: Timeouts) -> RoutedConnection {
        NodeConnection::new(Target::Master(self), timeouts).into()
    }

    fn separate(self: Arc<Self>, _timeouts: Timeouts) -> Arc<dyn Nodes> {
        self
    }

    fn client(&self, address: &str) -> RedisResult<Client> {
        self.client_at(address)
    }

    fn assign_channels(
        &self,
        channels: Channels,
    ) -> BoxFuture<'_, RedisResult<HashMap<Address, Channels>>> {
        Box::pin(async { Ok(HashMap::from([(self.address().await?, channels)])) })
    }

    fn serving(&self, _key: &str) -> Option<Address> {
        self.known_address()
    }

    fn mark_stale(&self) {
        self.mark_stale();
    }

    fn changed(&self) -> BoxFuture<'static, ()> {
        change(self.known.subscribe())
    }

    /// Polls the sentinels for a newer master, each by itself, so that one which hangs delays nothing.
    fn monitor(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let poll = async |sentinel| loop {
                tokio::time::sleep(POLL_INTERVAL).await;
                if self.known_address().is_some()
                    && let Err(error) = self.ask(sentinel).await
                {
                    tracing::debug!(%error, "a sentinel does not answer");
                }
            };
            join_all(self.sentinels.iter().map(poll)).await;
        })
    }
}
