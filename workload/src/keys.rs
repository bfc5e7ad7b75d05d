//! The names of the Redis keys that the tools read or break, in both of the service's key styles.
//!
//! In the cluster's style each sale belongs to a shard, whose number in braces puts all that its scripts touch into one
//! slot, and each shard has a stream of its own.

/// How the service names the keys of sales and of the stream of orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum KeyStyle {
    /// As other nodes of the project do: one stream.
    Default,
    /// For a cluster: by shard.
    Cluster,
}

/// What an operator says of the keys' names, as the service is told it.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct KeyNames {
    /// How the service names its keys [default: cluster where Redis is one, else default]
    #[arg(long, env = "KEY_STYLE", value_enum, value_name = "STYLE")]
    pub key_style: Option<KeyStyle>,
    /// Shards of the stream, in the cluster's key style [default: 4]
    #[arg(long, env = "STREAM_SHARDS", value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=15))]
    pub stream_shards: Option<u8>,
}

/// The service's own default.
const STREAM_SHARDS: u8 = 4;

impl KeyNames {
    /// The names in a Redis with this address.
    pub fn on(&self, redis_url: &str) -> Keys {
        let way = redis_url.split(':').next().unwrap_or_default();
        let usual = if way.ends_with("-cluster") { KeyStyle::Cluster } else { KeyStyle::Default };
        Keys::new(self.key_style.unwrap_or(usual), self.stream_shards.unwrap_or(STREAM_SHARDS))
    }
}

/// The names of the keys of one deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    shards: Option<u8>,
}

impl Keys {
    /// The names in a style, with so many shards where it has any.
    pub fn new(style: KeyStyle, shards: u8) -> Self {
        Self { shards: (style == KeyStyle::Cluster).then_some(shards.max(1)) }
    }

    /// The stream of admitted orders of every shard.
    pub fn streams(self) -> Vec<String> {
        match self.shards {
            None => vec!["stream.orders".to_owned()],
            Some(shards) => (0..shards).map(|shard| format!("stream.orders:{{{shard}}}")).collect(),
        }
    }

    /// The stock counter of a sale.
    pub fn stock(self, voucher_id: u64) -> String {
        match self.shards {
            None => format!("seckill:stock:{voucher_id}"),
            Some(shards) => {
                format!("seckill:stock:{{{}}}:{voucher_id}", voucher_id % u64::from(shards))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_names_that_the_service_gives_them() {
        let plain = Keys::new(KeyStyle::Default, 4);
        assert_eq!(plain.streams(), ["stream.orders"]);
        assert_eq!(plain.stock(17), "seckill:stock:17");
        let sharded = Keys::new(KeyStyle::Cluster, 2);
        assert_eq!(sharded.streams(), ["stream.orders:{0}", "stream.orders:{1}"]);
        assert_eq!(sharded.stock(17), "seckill:stock:{1}:17");
        assert_eq!(KeyNames::default().on("redis-sentinel://a:1/m"), plain);
        assert_eq!(KeyNames::default().on("redis-cluster://a:1").streams().len(), 4);
    }
}
