//! The Bloom filter in Redis: check, add, fill.

use std::fmt::{self, Debug, Display};
use std::sync::Arc;
use std::time::Duration;

use redis::Script;

use super::size::BloomSize;
use crate::connection::redis_commands::{RedisCommands, unique_token};
use crate::error::Error;

/// How many bits one script call sets, so as not to block Redis: some ten microseconds per thousand.
const POSITIONS_PER_CALL: usize = 4000;

/// Why a Bloom filter could not be filled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BloomFillError<E> {
    /// The source of the items failed.
    #[error("the items could not be read: {0}")]
    Source(E),
    /// Redis failed.
    #[error(transparent)]
    Cache(#[from] Error),
    /// Redis lost data, or restarted, while the filter was being filled.
    #[error("Redis lost data while the filter was being filled")]
    Lost,
}

/// A Bloom filter in Redis, made by [`Cache::bloom_filter`](crate::Cache::bloom_filter). Clones are
/// handles of the same filter.
#[derive(Clone)]
pub struct BloomFilter(Arc<Inner>);

struct Inner {
    redis: Arc<RedisCommands>,
    key: String,
    size: BloomSize,
    add: Script,
    check: Script,
    fill_begin: Script,
    fill_end: Script,
}

impl Debug for BloomFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BloomFilter")
            .field("key", &self.0.key)
            .field("size", &self.0.size)
            .finish()
    }
}

impl BloomFilter {
    pub(crate) fn new(redis: Arc<RedisCommands>, name: &str, size: BloomSize) -> Self {
        Self(Arc::new(Inner {
            redis,
            // The dimensions in the key keep filters of different dimensions apart.
            key: format!("bloom:{name}:{}:{}", size.bits, size.positions),
            size,
            add: Script::new(include_str!("../../lua/bloom_add.lua")),
            check: Script::new(include_str!("../../lua/bloom_check.lua")),
            fill_begin: Script::new(include_str!("../../lua/bloom_fill_begin.lua")),
            fill_end: Script::new(include_str!("../../lua/bloom_fill_end.lua")),
        }))
    }

    /// The Redis key that holds it: `bloom:<name>:<bits>:<positions>`.
    pub fn key(&self) -> &str {
        &self.0.key
    }

    /// Whether `item` may have been added. `false` is certain; `true` is also the answer of a
    /// filter that is not filled, was lost, or cannot be reached.
    pub async fn may_contain(&self, item: &str) -> bool {
        let mut call = self.0.check.key(&self.0.key);
        call.arg(self.0.size.bytes());
        for position in self.0.size.positions_of(item) {
            call.arg(position);
        }
        self.0
            .redis
            .run_script::<u8>(&call)
            .await
            .map_or(true, |answer| answer != 0)
    }

    /// Adds `item`; call it before its row is committed, and once more afterwards.
    ///
    /// # Errors
    /// If Redis did not confirm. A row that is not committed yet must then not be committed.
    pub async fn add(&self, item: &str) -> Result<(), Error> {
        self.add_all(&[item]).await
    }

    async fn add_all(&self, items: &[impl AsRef<str>]) -> Result<(), Error> {
        let positions: Vec<u64> = items
            .iter()
            .flat_map(|item| self.0.size.positions_of(item.as_ref()))
            .collect();
        for chunk in positions.chunks(POSITIONS_PER_CALL) {
            let mut call = self.0.add.key(&self.0.key);
            for position in chunk {
                call.arg(position);
            }
            self.0.redis.run_script::<u64>(&call).await?;
        }
        Ok(())
    }

    /// Fills it unless it is ready. `pages` is called with the last item of the page before (at
    /// first `None`) and returns the next items, or none at the end. Returns how many items were
    /// added; 0 if it was ready. Several nodes may fill it at the same time.
    ///
    /// # Errors
    /// If it is not ready afterwards; until it is, [`may_contain`](Self::may_contain) says `true`.
    pub async fn fill<F, E>(
        &self,
        pages: &impl Fn(Option<String>) -> F,
    ) -> Result<u64, BloomFillError<E>>
    where
        F: Future<Output = Result<Vec<String>, E>>,
    {
        let mut begin = self.0.fill_begin.key(&self.0.key);
        begin.arg(self.0.size.bytes()).arg(unique_token());
        let token: String = self.0.redis.run_script(&begin).await?;
        if token.is_empty() {
            return Ok(0);
        }
        let mut last = None;
        let mut added = 0;
        loop {
            let mut page = pages(last.take()).await.map_err(BloomFillError::Source)?;
            self.add_all(&page).await?;
            added += page.len() as u64;
            last = page.pop();
            if last.is_none() {
                break;
            }
        }
        let mut end = self.0.fill_end.key(&self.0.key);
        end.arg(self.0.size.bytes()).arg(token);
        let ready: bool = self.0.redis.run_script(&end).await?;
        if ready {
            Ok(added)
        } else {
            Err(BloomFillError::Lost)
        }
    }

    /// Checks every `interval` whether it is ready, and fills it if not. Never returns.
    pub(crate) async fn keep_filled<F, E>(
        &self,
        interval: Duration,
        pages: &impl Fn(Option<String>) -> F,
    ) where
        F: Future<Output = Result<Vec<String>, E>>,
        E: Display,
    {
        let mut ticks = tokio::time::interval(interval.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match self.fill(pages).await {
                Ok(0) => {}
                Ok(items) => tracing::info!(key = self.0.key, items, "Bloom filter filled"),
                Err(error) => {
                    let key = &self.0.key;
                    tracing::warn!(key, %error, "Bloom filter not filled; it filters nothing");
                }
            }
        }
    }
}
