//! Redis: one server, a cluster, or a master that Sentinel monitors; which one, only the address says. Every command has
//! a time limit, so that a Redis that hangs delays a request by no more than that.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use anyhow::Context;
use lock::Server;
use redis::{ErrorKind, RedisError};
use secrecy::{ExposeSecret, SecretString};

pub use lock::{Redis, RoutedConnection};

/// The Redis that this address names.
pub fn server(url: &SecretString) -> anyhow::Result<Server> {
    Server::from_url(url.expose_secret()).context("REDIS_URL (--redis-url)")
}

/// Connects; `timeout` limits connecting and every command.
pub async fn connect(server: Server, timeout: Duration) -> anyhow::Result<Redis> {
    let redis = Redis::new(server, timeout, timeout)?;
    redis::cmd("PING")
        .query_async::<String>(&mut redis.commands())
        .await
        .context("cannot connect to Redis; is it running, and is REDIS_URL right?")?;
    Ok(redis)
}

/// Makes the cache's connection for invalidations.
pub struct Subscriptions(pub Redis);

impl cache::ClientSource for Subscriptions {
    fn client<'a>(
        &'a self,
        channel: &'a str,
    ) -> Pin<Box<dyn Future<Output = redis::RedisResult<redis::Client>> + Send + 'a>> {
        Box::pin(self.0.client_of(channel))
    }

    fn moved(&self, channel: &str) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.0.moved(channel))
    }

    fn failed(&self) {
        self.0.recheck();
    }
}

/// Whether a script whose call failed like this certainly did nothing: it was never sent, or the server
/// refused it before its first write.
pub fn was_not_run(error: &RedisError) -> bool {
    error.is_connection_refusal()
        || matches!(
            error.kind(),
            ErrorKind::Server(_)
                | ErrorKind::Extension
                | ErrorKind::AuthenticationFailed
                // No node of a cluster serves the slot, or no sentinel knows a master.
                | ErrorKind::ClusterConnectionNotFound
                | ErrorKind::EmptySentinelList
                | ErrorKind::MasterNameNotFoundBySentinel
        )
}
