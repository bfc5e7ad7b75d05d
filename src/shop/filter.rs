//! The Bloom filter of the shops that exist, which keeps reads of absent ids from the database.

use std::time::Duration;

use super::keys;
use super::store::ShopStore;
use cache::{BloomFilter, BloomSize, Cache};

/// Number of shops the filter is sized for; with more, its false-positive rate rises.
const SHOPS: u64 = 1_000_000;

/// Share of absent ids that still reach the database: 1 %, in 1.2 MB.
const FALSE_POSITIVE_RATE: f64 = 0.01;

/// Interval between checks whether Redis still has the filter.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The filter, which `cache` keeps filled with the keys of all shops in `store`.
pub fn existing_shops(cache: &Cache, store: &ShopStore) -> BloomFilter {
    let filter = cache.bloom_filter("shop", BloomSize::for_items(SHOPS, FALSE_POSITIVE_RATE));
    let store = store.clone();
    cache.keep_filled(filter.clone(), CHECK_INTERVAL, move |last_key| {
        let store = store.clone();
        async move {
            let last_id = last_key.as_deref().and_then(keys::shop_id);
            let ids = store.ids_after(last_id.unwrap_or(0)).await?;
            Ok::<_, crate::error::Error>(ids.into_iter().map(keys::shop).collect())
        }
    });
    filter
}
