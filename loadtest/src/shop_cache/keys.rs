//! The cache's keys in Redis: `cache:shop:{id}` and the shops' Bloom filter. The tool looks at these keys, makes them
//! expire, and removes what it caused; it never invents a value.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lock::RoutedConnection;
use redis::{AsyncCommands, Pipeline, RedisError, ScanOptions};
use serde_json::Value;
use testkit::wait::until;
use tokio::time::sleep;
use workload::{Access, Error, redis_connection};

/// Keys in one pipeline.
const BATCH: usize = 1000;
/// How long a key may take to expire.
const EXPIRY_LIMIT: Duration = Duration::from_secs(10);

/// A connection to the service's Redis that comes back after an outage.
#[derive(Clone)]
pub struct RedisKeys {
    url: String,
    redis: RoutedConnection,
}

fn key(id: u64) -> String {
    format!("cache:shop:{id}")
}

fn failed(what: &'static str) -> impl Fn(RedisError) -> Error {
    move |source| Error::Redis { what, source }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl RedisKeys {
    /// Connects.
    ///
    /// # Errors
    /// [`Error::Usage`] without an address, [`Error::Redis`].
    pub async fn open(access: &Access) -> Result<Self, Error> {
        if access.redis_url.is_empty() {
            return Err(Error::Usage(
                "this scenario works on the cache's keys: set REDIS_URL to the service's own Redis \
                 (`eval \"$(./dev env)\"`) or give --redis-url"
                    .to_owned(),
            ));
        }
        let redis = redis_connection::connect(&access.redis_url).await?;
        Ok(Self { url: access.redis_url.clone(), redis })
    }

    /// One command for each of `keys`, a pipeline at a time. (In one command they would have to share a slot of a cluster.)
    async fn each(
        &self,
        keys: &[String],
        what: &'static str,
        command: impl Fn(&mut Pipeline, &String),
    ) -> Result<Vec<i64>, Error> {
        let mut replies = Vec::with_capacity(keys.len());
        for keys in keys.chunks(BATCH) {
            let mut pipeline = redis::pipe();
            keys.iter().for_each(|key| command(&mut pipeline, key));
            let part: Vec<i64> =
                pipeline.query_async(&mut self.redis.clone()).await.map_err(failed(what))?;
            replies.extend(part);
        }
        Ok(replies)
    }

    /// Whether a shop is there, and, where it has a logical expiry, whether that lies in the future.
    ///
    /// # Errors
    /// [`Error::Redis`].
    pub async fn is_fresh(&self, id: u64, logically: bool) -> Result<bool, Error> {
        let text = self.value(id).await?;
        Ok(match text {
            Some(text) if logically => logical_expiry(&text).is_some_and(|at| at > now_ms()),
            found => found.is_some() && !logically,
        })
    }

    async fn value(&self, id: u64) -> Result<Option<String>, Error> {
        self.redis.clone().get(key(id)).await.map_err(failed("while reading a cached shop"))
    }

    /// Lets the key of a shop expire by itself, 1 ms from now, and waits until it has.
    ///
    /// # Errors
    /// [`Error::Redis`]; [`Error::Usage`] where it comes back.
    pub async fn expire(&self, id: u64) -> Result<(), Error> {
        let failed = failed("while letting a key expire");
        let mut redis = self.redis.clone();
        let _was_there: bool = redis.pexpire(key(id), 1).await.map_err(&failed)?;
        let mut exists = Ok(true);
        until(EXPIRY_LIMIT, async || {
            exists = redis.exists(key(id)).await;
            !matches!(exists, Ok(true))
        })
        .await;
        if exists.map_err(&failed)? {
            return Err(Error::Usage(format!(
                "{} comes back as soon as it expires: does another client read that shop?",
                key(id)
            )));
        }
        Ok(())
    }

    /// Puts the logical expiry of a shop into the past, leaving its value as it is.
    ///
    /// # Errors
    /// [`Error::Redis`]; [`Error::Usage`]: the key does not hold a value with a logical expiry.
    pub async fn expire_logically(&self, id: u64) -> Result<(), Error> {
        let text = self.value(id).await?;
        let Some(aged) = text.and_then(|text| aged(&text, now_ms() - 1000)) else {
            return Err(Error::Usage(format!(
                "{} holds no logical expiry although it was read that way",
                key(id)
            )));
        };
        self.redis.clone().set(key(id), aged).await.map_err(failed("while ageing a cached shop"))
    }

    /// In how many milliseconds from `begin` the keys of these shops expire; those that are not there or never expire are
    /// left out.
    ///
    /// # Errors
    /// [`Error::Redis`].
    pub async fn expiries(&self, ids: &[u64], begin: Instant) -> Result<Vec<i64>, Error> {
        let mut expiries = Vec::with_capacity(ids.len());
        for ids in ids.chunks(BATCH) {
            let keys: Vec<_> = ids.iter().copied().map(key).collect();
            let left = self.each(&keys, "while reading times to live", |pipeline, key| {
                pipeline.pttl(key);
            });
            let left = left.await?;
            let now = i64::try_from(begin.elapsed().as_millis()).unwrap_or(i64::MAX);
            expiries.extend(left.into_iter().filter(|left| *left >= 0).map(|left| now + left));
        }
        Ok(expiries)
    }

    /// Gives the keys of these shops one and the same time to live.
    ///
    /// # Errors
    /// [`Error::Redis`].
    pub async fn set_ttl(&self, ids: &[u64], ttl: Duration) -> Result<(), Error> {
        let ttl = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        let keys: Vec<_> = ids.iter().copied().map(key).collect();
        let set = self.each(&keys, "while setting times to live", |pipeline, key| {
            pipeline.pexpire(key, ttl);
        });
        set.await.map(drop)
    }

    /// Removes the keys of these shops; returns how many were there.
    ///
    /// # Errors
    /// [`Error::Redis`].
    pub async fn remove(&self, ids: &[u64]) -> Result<u64, Error> {
        let keys: Vec<_> = ids.iter().copied().map(key).collect();
        self.unlink(&keys).await
    }

    async fn unlink(&self, keys: &[String]) -> Result<u64, Error> {
        let gone = self.each(keys, "while removing keys", |pipeline, key| {
            pipeline.unlink(key);
        });
        Ok(gone.await?.into_iter().sum::<i64>().unsigned_abs())
    }

    /// The keys of the shops' Bloom filters.
    async fn filters(&self) -> Result<Vec<String>, Error> {
        let failed = failed("while looking for the Bloom filter");
        let mut keys = Vec::new();
        for mut redis in redis_connection::masters(&self.url).await? {
            let options = ScanOptions::default().with_pattern("bloom:shop:*").with_count(BATCH);
            let mut found = redis.scan_options::<String>(options).await.map_err(&failed)?;
            while let Some(key) = found.next_item().await {
                keys.push(key.map_err(&failed)?);
            }
        }
        Ok(keys)
    }

    /// Removes the Bloom filters. The service answers "maybe" until it has filled them anew from the table, by itself,
    /// within seconds.
    ///
    /// # Errors
    /// [`Error::Redis`].
    pub async fn drop_filters(&self) -> Result<(), Error> {
        self.unlink(&self.filters().await?).await.map(drop)
    }

    /// Runs `work` while filters are removed over and over, so that next to nothing is filtered.
    ///
    /// # Errors
    /// [`Error::Redis`], or those of `work`.
    pub async fn without_filters<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let filters = self.filters().await?;
        self.unlink(&filters).await?;
        let removing = async {
            loop {
                sleep(Duration::from_millis(5)).await;
                if let Err(error) = self.unlink(&filters).await {
                    return error;
                }
            }
        };
        tokio::select! {
            done = work => done,
            error = removing => Err(error),
        }
    }

    /// Cuts every connection that has subscribed to a channel; returns how many those were.
    ///
    /// # Errors
    /// [`Error::Redis`].
    pub async fn cut_subscribers(&self) -> Result<u64, Error> {
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg("pubsub");
        let mut cut = 0;
        for mut redis in redis_connection::masters(&self.url).await? {
            let of_server = kill.query_async::<u64>(&mut redis).await;
            cut += of_server.map_err(failed("while cutting invalidation connections"))?;
        }
        Ok(cut)
    }
}

/// The value with another logical expiry; `None` if it is not `{"data":…,"expireTime":…}`.
fn aged(text: &str, expire_time: i64) -> Option<String> {
    let mut value: Value = serde_json::from_str(text).ok()?;
    let fields = value.as_object_mut().filter(|fields| fields.contains_key("data"))?;
    *fields.get_mut("expireTime")? = expire_time.into();
    Some(value.to_string())
}

fn logical_expiry(text: &str) -> Option<i64> {
    let value: Value = serde_json::from_str(text).ok()?;
    value.get("data")?;
    value.get("expireTime")?.as_i64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_expiry_of_a_logical_value_is_changed() {
        let value = r#"{"data":{"id":1,"name":"店"},"expireTime":99}"#;
        let aged_value = aged(value, 5).unwrap();
        assert_eq!(logical_expiry(&aged_value), Some(5));
        assert_eq!(logical_expiry(value), Some(99));
        let data = |text: &str| serde_json::from_str::<Value>(text).unwrap()["data"].clone();
        assert_eq!(data(&aged_value), data(value));
        for other in ["", "{", r#"{"id":1,"expireTime":3}"#, r#"{"data":1}"#, "[]"] {
            assert_eq!(aged(other, 5), None, "{other}");
            assert_eq!(logical_expiry(other), None, "{other}");
        }
    }
}
