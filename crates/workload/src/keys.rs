//! The names of the Redis keys that the tools read or break, in both of the service's key styles.
//!
//! In the cluster's style, all keys that the stream's scripts use have one tag in braces, which puts them into one slot.

use std::fmt;

/// How the service names the keys of sales and of the stream of orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum KeyStyle {
    /// The names that Java nodes share; not on a cluster.
    Default,
    /// Names with the slot in braces; on any Redis.
    Cluster,
}

impl fmt::Display for KeyStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyStyle::Default => "default",
            KeyStyle::Cluster => "cluster",
        })
    }
}

/// The names of the keys of one deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    tag: &'static str,
}

impl Keys {
    /// The names in a Redis with this address, or in the style that the service is told.
    pub fn for_redis(redis_url: &str, configured_style: Option<KeyStyle>) -> Self {
        let is_cluster = redis_url
            .split(':')
            .next()
            .is_some_and(|way| way.ends_with("-cluster"));
        let tagged = configured_style.map_or(is_cluster, |style| style == KeyStyle::Cluster);
        Self {
            tag: if tagged { ":{orders}" } else { "" },
        }
    }

    /// The stream of admitted orders.
    pub fn stream(self) -> String {
        format!("stream.orders{}", self.tag)
    }

    /// The hash of pending orders.
    pub fn pending(self) -> String {
        format!("stream.orders.pending{}", self.tag)
    }

    /// The stock counter of a sale.
    pub fn stock(self, voucher_id: u64) -> String {
        format!("seckill:stock{}:{voucher_id}", self.tag)
    }

    /// The mark under which a sale on the stream is open.
    pub fn open(self, voucher_id: u64) -> String {
        format!("seckill:open{}:{voucher_id}", self.tag)
    }

    /// The keys that may be lost without any order being lost: the hash of pending orders, the counter of ids of a day
    /// (`2026:01:31`), and of each sale the stock counter, the claims and the open mark.
    pub fn replaceable(self, day: &str, voucher_ids: &[u64]) -> Vec<String> {
        let mut keys = vec![self.pending(), format!("icr:order{}:{day}", self.tag)];
        for id in voucher_ids {
            keys.push(format!("seckill:order{}:{id}", self.tag));
            keys.push(self.open(*id));
            keys.push(self.stock(*id));
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_names_that_the_service_gives_them() {
        let plain = Keys::for_redis("redis-sentinel://a:1/m", None);
        assert_eq!(
            (&*plain.stream(), &*plain.stock(17)),
            ("stream.orders", "seckill:stock:17")
        );
        let tagged = Keys::for_redis("redis-cluster://a:1", None);
        assert_eq!(tagged.stock(17), "seckill:stock:{orders}:17");
        assert_eq!(
            Keys::for_redis("redis://a:1", Some(KeyStyle::Cluster)),
            tagged
        );
        let names = [
            "stream.orders.pending",
            "icr:order:2026:01:31",
            "seckill:order:17",
        ];
        assert_eq!(plain.replaceable("2026:01:31", &[17])[..3], names);
    }
}
