//! Options of the names of Redis keys.

use anyhow::ensure;
use clap::Args;
use secrecy::{ExposeSecret, SecretString};

use crate::keys::KeyStyle;

/// Options of the names of Redis keys.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Redis")]
pub struct KeyConfig {
    /// Names of the keys of sales and of the stream of orders: `default`, shared with Java nodes, or `cluster`, with braces
    /// around what decides the slot of a Redis Cluster. All nodes on a Redis use the same; by default `cluster` where
    /// --redis-url names a cluster.
    #[arg(long, env = "KEY_STYLE", value_enum)]
    pub key_style: Option<KeyStyle>,
}

impl KeyConfig {
    /// The style on the Redis at this address.
    ///
    /// # Errors
    /// Settings that contradict each other, or the address, with the flags to change.
    pub fn style(&self, redis_url: &SecretString) -> anyhow::Result<KeyStyle> {
        let scheme = redis_url.expose_secret().split("://").next().unwrap_or_default();
        let is_cluster = matches!(scheme, "redis-cluster" | "rediss-cluster");
        let by_default = if is_cluster { KeyStyle::Cluster } else { KeyStyle::Default };
        let style = self.key_style.unwrap_or(by_default);
        ensure!(
            style == KeyStyle::Cluster || !is_cluster,
            "--key-style default (KEY_STYLE) has keys of one script in several slots, which a Redis Cluster refuses; leave \
             it out, or use --key-style cluster"
        );
        Ok(style)
    }
}
