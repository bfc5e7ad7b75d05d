//! A Bloom filter in Redis that all nodes share: which keys exist at all. It protects the source
//! from *cache penetration* where absent ids are unbounded, so that caching nulls would fill Redis: a
//! "no" costs one round trip and no memory. It says "no" only when that is certain, and is checked
//! only when Redis has no value, so that reads of cached keys pay nothing for it.
//!
//! # Dimensions
//! For `n` items and a false-positive rate `p`: `m = ⌈−n·ln p / (ln 2)²⌉` bits and
//! `k = round(m/n · ln 2)` positions per item (Bloom 1970); 1 % takes 9.6 bits an item and 7
//! positions. The positions come from one 128-bit XXH3 hash, split into `a` and `b`, as
//! `a + i·b mod m` (Kirsch & Mitzenmacher, "Less Hashing, Same Performance", 2006). With more items
//! than planned the rate rises; it never says "no" to an item that was added.
//!
//! # Never a wrong "no"
//! - One Redis string holds the bits and, behind them, the state: both are lost together or not at all.
//! - It is used only once filled, and only while the server process that was running then still runs:
//!   a restarted Redis may lack the last second of its log. The scripts in `lua/bloom_*.lua` check
//!   both.
//! - [`add`](filter::BloomFilter::add) an item *before* the row is committed, and again afterwards:
//!   the process may die after the commit, and the filter may be lost and filled again between the
//!   first call and the commit. The bits of a row that is rolled back do no harm.
//! - Every program that inserts rows must add them to the filter. If one of them does not, do not use
//!   the filter.
//!
//! A copy of the bits in each process would save the round trip of a "no"; it would also have to
//! receive every added item before its row is visible anywhere, and so is not worth it.

pub(crate) mod filter;
pub(crate) mod size;
