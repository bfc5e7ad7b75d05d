//! The cache's keys in Redis: `cache:shop:{id}` and the shops' Bloom filter. The tool looks at these keys, makes them
//! expire, and removes what it caused; it never invents a value.

use std::time::{Duration, Instant};

use chrono::Utc;
use redis::{AsyncCommands, Pipeline, RedisError, ScanOptions};
use redis_link::RoutedConnection;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;
use workload::{Access, Error, redis_connection};

/// Keys in one pipeline.
const BATCH: usize = 1000;

/// A connection to the service's Redis that comes back after an outage.
#[derive(Clone)]
pub struct RedisKeys {
    url: String,
    redis: RoutedConnection,
}

/// A value that never leaves, with the time until which it is good, in epoch milliseconds.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Logical {
    data: Value,
    expire_time: i64,
}

fn key(id: u64) -> String {
    format!("cache:shop:{id}")
}

fn failed(what: &'static str) -> impl Fn(RedisError) -> Error {
    move |source| Error::Redis { what, source }
}

impl RedisKeys {
    pub async fn open(access: &Access) -> Result<Self, Error> {
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

    async fn value(&self, id: u64) -> Result<Option<String>, Error> {
        self.redis.clone().get(key(id)).await.map_err(failed("while reading a cached shop"))
    }

    /// Whether a shop is there and, where it has a logical expiry, that lies in the future.
    pub async fn is_fresh(&self, id: u64) -> Result<bool, Error> {
        Ok(self.value(id).await?.is_some_and(|text| {
            let logical = serde_json::from_str::<Logical>(&text).ok();
            logical.is_none_or(|value| value.expire_time > Utc::now().timestamp_millis())
        }))
    }

    /// Lets the key of a shop expire by itself, 1 ms from now.
    pub async fn expire(&self, id: u64) -> Result<(), Error> {
        let expired: Result<bool, _> = self.redis.clone().pexpire(key(id), 1).await;
        expired.map(drop).map_err(failed("while letting a key expire"))
    }

    /// Puts the logical expiry of a shop into the past, leaving its value as it is.
    ///
    /// # Errors
    /// [`Error::Redis`]; [`Error::Usage`]: the key does not hold a value with a logical expiry.
    pub async fn expire_logically(&self, id: u64) -> Result<(), Error> {
        let text = self.value(id).await?.unwrap_or_default();
        let Logical { data, .. } = serde_json::from_str(&text).map_err(|_| {
            Error::Usage(
                "a shop was stored without the logical expiry that x-lab-cache asked for: are all \
                 instances started with --lab, on the Redis of REDIS_URL?"
                    .to_owned(),
            )
        })?;
        let past = Utc::now().timestamp_millis() - 1000;
        let aged = json!({"data": data, "expireTime": past}).to_string();
        self.redis.clone().set(key(id), aged).await.map_err(failed("while ageing a cached shop"))
    }

    /// In how many milliseconds from `begin` the keys of these shops expire; those that are not there or never expire are
    /// left out.
    pub async fn expiries(&self, ids: &[u64], begin: Instant) -> Result<Vec<i64>, Error> {
        let mut expiries = Vec::with_capacity(ids.len());
        for ids in ids.chunks(BATCH) {
            let keys: Vec<_> = ids.iter().copied().map(key).collect();
            let left = self.each(&keys, "while reading times to live", |pipeline, key| {
                pipeline.pttl(key);
            });
            let left = left.await?;
            let now = begin.elapsed().as_millis() as i64;
            expiries.extend(left.into_iter().filter(|left| *left >= 0).map(|left| now + left));
        }
        Ok(expiries)
    }

    /// Removes the keys of these shops; returns how many were there.
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
    pub async fn drop_filters(&self) -> Result<(), Error> {
        self.unlink(&self.filters().await?).await.map(drop)
    }

    /// Runs `work` while filters are removed over and over, so that next to nothing is filtered.
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
