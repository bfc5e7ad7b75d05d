//! The cache's keys in Redis: `cache:shop:{id}` and the shops' Bloom filter. The tool looks at these keys, makes them
//! expire, and removes what it caused; it never invents a value.

use redis::{AsyncCommands, RedisError, ScanOptions};
use redis_link::RoutedConnection;
use serde_json::{Value, json};
use workload::{Error, redis_connection};

/// A connection to the service's Redis that comes back after an outage.
pub struct RedisKeys {
    url: String,
    redis: RoutedConnection,
}

fn key(id: u64) -> String {
    format!("cache:shop:{id}")
}

fn failed(source: RedisError) -> Error {
    Error::Redis {
        what: "at the keys of cached shops",
        source,
    }
}

impl RedisKeys {
    pub async fn open(url: &str) -> Result<Self, Error> {
        let redis = redis_connection::connect(url).await?;
        let url = url.to_owned();
        Ok(Self { url, redis })
    }

    /// One command for each of `keys`: in a single one they would have to share a slot of a cluster.
    async fn each(&self, command: &str, keys: Vec<String>) -> Result<Vec<i64>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        for key in keys {
            pipeline.cmd(command).arg(key);
        }
        let replies = pipeline.query_async(&mut self.redis.clone()).await;
        replies.map_err(failed)
    }

    /// The value of a shop. A value with logical expiry has an `expireTime`, until which it is fresh, in epoch milliseconds.
    async fn value(&self, id: u64) -> Result<Option<Value>, Error> {
        let text: Option<String> = self.redis.clone().get(key(id)).await.map_err(failed)?;
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// Whether a shop is there, and not as [`expire_logically`](Self::expire_logically) left it.
    pub async fn is_fresh(&self, id: u64) -> Result<bool, Error> {
        let value = self.value(id).await?;
        Ok(value.is_some_and(|value| value["expireTime"] != 0))
    }

    /// Sets the logical expiry of a shop to 0, long past, and leaves its value as it is.
    ///
    /// # Errors
    /// [`Error::Redis`]; [`Error::Usage`]: the key does not hold a value with a logical expiry.
    pub async fn expire_logically(&self, id: u64) -> Result<(), Error> {
        let mut value = self.value(id).await?.unwrap_or_default();
        let Some(time) = value.get_mut("expireTime") else {
            return Err(Error::Usage(
                "a shop was stored without the logical expiry that x-lab-cache asked for: are all \
                 instances started with --lab, on the Redis of REDIS_URL?"
                    .to_owned(),
            ));
        };
        *time = json!(0);
        let stored = self.redis.clone().set(key(id), value.to_string()).await;
        stored.map_err(failed)
    }

    /// Lets the key of a shop expire.
    ///
    /// # Errors
    /// [`Error::Redis`]; [`Error::Usage`]: there is no such key.
    pub async fn expire(&self, id: u64) -> Result<(), Error> {
        let reply = self.redis.clone().pexpire(key(id), 1).await;
        let is_there: bool = reply.map_err(failed)?;
        if is_there {
            return Ok(());
        }
        Err(Error::Usage(
            "a shop that was read is not cached: are all instances on the Redis of REDIS_URL?"
                .to_owned(),
        ))
    }

    /// In how many milliseconds the keys of these shops expire; those that are not there or never expire are left out.
    pub async fn expiries(&self, ids: &[u64]) -> Result<Vec<i64>, Error> {
        let keys = ids.iter().copied().map(key).collect();
        let mut expiries = self.each("PTTL", keys).await?;
        expiries.retain(|expiry_ms| *expiry_ms >= 0);
        Ok(expiries)
    }

    /// Removes the keys of these shops.
    pub async fn remove(&self, ids: &[u64]) -> Result<(), Error> {
        let keys = ids.iter().copied().map(key).collect();
        self.each("UNLINK", keys).await.map(drop)
    }

    /// Removes the shops' Bloom filters. The service answers "maybe" until it has filled them anew from the table, by
    /// itself, within seconds.
    pub async fn drop_filters(&self) -> Result<(), Error> {
        let mut filters = Vec::new();
        for mut redis in redis_connection::masters(&self.url).await? {
            let options = ScanOptions::default().with_pattern("bloom:shop:*");
            let found = redis.scan_options::<String>(options).await;
            let mut found = found.map_err(failed)?;
            while let Some(key) = found.next_item().await {
                filters.push(key.map_err(failed)?);
            }
        }
        self.each("UNLINK", filters).await.map(drop)
    }

    /// Cuts every connection that has subscribed to a channel; returns how many those were.
    pub async fn cut_subscribers(&self) -> Result<u64, Error> {
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg("pubsub");
        let mut cut = 0;
        for mut redis in redis_connection::masters(&self.url).await? {
            cut += kill.query_async::<u64>(&mut redis).await.map_err(failed)?;
        }
        Ok(cut)
    }
}
