//! A Bloom filter that all nodes share: which keys exist at all. It answers *penetration* where the
//! ids are without end, so that remembering nulls would fill Redis: a "no" costs one round trip and
//! no room. It says "no" only when sure, and is asked only when Redis has no value, so that keys
//! which are cached pay nothing for it.
//!
//! # The numbers
//! For `n` items and a false-positive rate `p`: `m = ⌈−n·ln p / (ln 2)²⌉` bits and
//! `k = round(m/n · ln 2)` positions per item (Bloom 1970); 1 % takes 9.6 bits an item and 7
//! positions. The positions come from one 128-bit XXH3 hash, halved into `a` and `b`, as
//! `a + i·b mod m` (Kirsch & Mitzenmacher, "Less Hashing, Same Performance", 2006). With more items
//! than it was made for the rate rises; it never says "no" to an item that was added.
//!
//! # Never a wrong "no"
//! - One Redis string holds the bits and, behind them, the state: lost together or not at all.
//! - It counts only once filled, and only under the server process that was running then: a
//!   restarted Redis may lack the last second of its log. The scripts in `lua/bloom_*.lua`
//!   see to both.
//! - [`add`](Bloom::add) an item *before* the row is committed, and again afterwards: the first for
//!   a process that dies in between, the second for a filter that was lost and filled anew in
//!   between. The bits of a row that is rolled back do no harm.
//! - Whatever writes rows must add them. Where another program (a Java node) adds rows as well,
//!   do not use the filter.
//!
//! A copy of the bits in each process would save the round trip of a "no"; it would also have to be
//! told of every added item before its row is seen anywhere, and so is not worth it.

use std::f64::consts::LN_2;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use redis::Script;
use xxhash_rust::xxh3::xxh3_128;

use super::conn::{Conn, token};
use super::error::Error;

/// How many positions one script call sets: some ten microseconds each thousand.
const POSITIONS_PER_CALL: usize = 4000;

/// A Redis string has at most 512 MiB, which also has to hold the state.
const MAX_BITS: u64 = (1 << 32) - 8 * 1024;

/// The dimensions of a filter. All nodes must use the same, since they are part of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BloomSize {
    bits: u64,
    positions: u32,
}

impl BloomSize {
    /// For `items` items and a false-positive rate between 0 and 1, both brought into a range that
    /// works (1 item … what fits into 512 MiB; 10⁻⁹ … 0.5).
    pub fn for_items(items: u64, false_positive_rate: f64) -> Self {
        let n = items.max(1) as f64;
        let rate = if false_positive_rate.is_nan() { 0.01 } else { false_positive_rate };
        let p = rate.clamp(1e-9, 0.5);
        let m = (-n * p.ln() / (LN_2 * LN_2)).ceil();
        // Whole bytes, because the state follows.
        let bits = (m as u64).clamp(64, MAX_BITS).next_multiple_of(8);
        let k = (bits as f64 / n * LN_2).round();
        Self { bits, positions: (k as u32).clamp(1, 30) }
    }

    /// Bits in the filter, `m`.
    pub fn bits(&self) -> u64 {
        self.bits
    }

    /// Positions per item, `k`.
    pub fn positions(&self) -> u32 {
        self.positions
    }

    fn bytes(&self) -> u64 {
        self.bits / 8
    }

    /// The positions of `item`.
    fn of(&self, item: &str) -> impl Iterator<Item = u64> + use<> {
        let hash = xxh3_128(item.as_bytes());
        // An even step could meet few positions only, should the number of bits be even as well.
        let (mut at, step) = (hash as u64, (hash >> 64) as u64 | 1);
        let bits = self.bits;
        (0..self.positions).map(move |_| {
            let position = at % bits;
            at = at.wrapping_add(step);
            position
        })
    }
}

/// Why a filter could not be filled.
#[derive(Debug, thiserror::Error)]
pub enum FillError<E> {
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

/// A filter. Clones are handles of the same one. Made by [`Cache::bloom`](super::Cache::bloom).
#[derive(Clone)]
pub struct Bloom(Arc<Shared>);

struct Shared {
    conn: Arc<Conn>,
    key: String,
    size: BloomSize,
    add: Script,
    begin: Script,
    ready: Script,
    check: Script,
}

impl std::fmt::Debug for Bloom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bloom").field("key", &self.0.key).field("size", &self.0.size).finish()
    }
}

impl Bloom {
    pub(super) fn new(conn: Arc<Conn>, name: &str, size: BloomSize) -> Self {
        // Filters of different dimensions never mix.
        let key = format!("bloom:{name}:{}:{}", size.bits, size.positions);
        Self(Arc::new(Shared {
            conn,
            key,
            size,
            add: Script::new(include_str!("../lua/bloom_add.lua")),
            begin: Script::new(include_str!("../lua/bloom_begin.lua")),
            ready: Script::new(include_str!("../lua/bloom_ready.lua")),
            check: Script::new(include_str!("../lua/bloom_check.lua")),
        }))
    }

    /// The Redis key that holds it.
    pub fn key(&self) -> &str {
        &self.0.key
    }

    /// Whether `item` may have been added. `false` is certain; `true` is also the answer of a
    /// filter that cannot tell: not filled, lost, or Redis away.
    pub async fn may_contain(&self, item: &str) -> bool {
        let mut call = self.0.check.key(&self.0.key);
        call.arg(self.0.size.bytes());
        for position in self.0.size.of(item) {
            call.arg(position);
        }
        self.0.conn.run::<u8>(&call).await.map_or(true, |answer| answer != 0)
    }

    /// Add `item`; to be done before its row is committed, and once more afterwards.
    ///
    /// # Errors
    /// When Redis did not confirm. A row that is not committed yet must then not be.
    pub async fn add(&self, item: &str) -> Result<(), Error> {
        self.add_all(std::slice::from_ref(&item)).await
    }

    /// Add many items.
    ///
    /// # Errors
    /// As [`add`](Self::add); some may have been added.
    pub async fn add_all<I: AsRef<str>>(&self, items: &[I]) -> Result<(), Error> {
        let positions: Vec<u64> =
            items.iter().flat_map(|item| self.0.size.of(item.as_ref())).collect();
        for part in positions.chunks(POSITIONS_PER_CALL) {
            let mut call = self.0.add.key(&self.0.key);
            for position in part {
                call.arg(position);
            }
            self.0.conn.run::<u64>(&call).await?;
        }
        Ok(())
    }

    /// Fill it, unless it is ready. `pages` is called with the last item of the page before (at
    /// first `None`) and returns the next items, or none at the end. Returns how many items were
    /// added; 0 when it was ready.
    ///
    /// # Errors
    /// When it is not ready afterwards; until it is, it answers "maybe".
    pub async fn fill<F, E>(
        &self,
        pages: &impl Fn(Option<String>) -> F,
    ) -> Result<u64, FillError<E>>
    where
        F: Future<Output = Result<Vec<String>, E>>,
    {
        let mut begin = self.0.begin.key(&self.0.key);
        begin.arg(self.0.size.bytes()).arg(token());
        let filling: String = self.0.conn.run(&begin).await?;
        if filling.is_empty() {
            return Ok(0);
        }
        let (mut last, mut added) = (None, 0);
        loop {
            let mut page = pages(last.take()).await.map_err(FillError::Source)?;
            self.add_all(&page).await?;
            added += page.len() as u64;
            last = page.pop();
            if last.is_none() {
                break;
            }
        }
        let mut ready = self.0.ready.key(&self.0.key);
        ready.arg(self.0.size.bytes()).arg(filling);
        let ready: bool = self.0.conn.run(&ready).await?;
        if ready { Ok(added) } else { Err(FillError::Lost) }
    }

    /// Look every `period` whether it is ready, and fill it when it is not.
    pub(super) async fn keep_filled<F, E>(
        &self,
        period: Duration,
        pages: &impl Fn(Option<String>) -> F,
    ) where
        F: Future<Output = Result<Vec<String>, E>>,
        E: Display,
    {
        let mut turns = tokio::time::interval(period.max(Duration::from_millis(1)));
        turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            match self.fill(pages).await {
                Ok(0) => {}
                Ok(items) => tracing::info!(key = self.0.key, items, "bloom filter filled"),
                Err(error) => {
                    let key = &self.0.key;
                    tracing::warn!(key, fault = %error, "bloom filter not filled; it answers maybe");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_follow_the_formulae() {
        let size = BloomSize::for_items(1_000_000, 0.01);
        assert_eq!(size.bits(), 9_585_064);
        assert_eq!(size.positions(), 7);
        let size = BloomSize::for_items(1000, 0.001);
        assert_eq!((size.bits(), size.positions()), (14_384, 10));
    }

    #[test]
    fn absurd_dimensions_stay_usable() {
        for (items, rate) in [(0, 0.0), (u64::MAX, 0.01), (10, f64::NAN), (10, 7.0), (10, -1.0)] {
            let size = BloomSize::for_items(items, rate);
            assert!(
                (64..1 << 32).contains(&size.bits()) && size.bits().is_multiple_of(8),
                "{size:?}"
            );
            assert!((1..=30).contains(&size.positions()), "{size:?}");
            assert!(size.of("x").all(|position| position < size.bits()));
        }
    }

    /// The rate is kept, over the same positions as on the server.
    #[test]
    fn the_stated_rate_of_false_positives_is_kept() {
        let size = BloomSize::for_items(10_000, 0.01);
        let mut bits = vec![false; size.bits() as usize];
        for id in 0..10_000 {
            size.of(&format!("cache:shop:{id}"))
                .for_each(|position| bits[position as usize] = true);
        }
        let contains =
            |id: u32| size.of(&format!("cache:shop:{id}")).all(|position| bits[position as usize]);
        assert!((0..10_000).all(contains));
        let wrong = (10_000..110_000).filter(|id| contains(*id)).count();
        assert!((500..1300).contains(&wrong), "{wrong} of 100,000 at 1 %");
    }
}
