//! Writing shops: the database first, then the caches are invalidated.

use super::keys;
use super::model::ShopChange;
use super::reads::{Inner, Shops};
use crate::error::{Cause, Error};
use crate::idempotency::RecordedWrite;
use cache::InvalidationStatus;

impl Shops {
    /// Inserts a shop that passed [`ShopChange::check_new`]; returns its id, or that of the request with the same key.
    pub async fn create(&self, write: RecordedWrite, shop: ShopChange) -> Result<i64, Error> {
        self.0.create(write, shop).await
    }

    /// Changes the fields that are given.
    pub async fn update(&self, id: i64, change: ShopChange) -> Result<(), Error> {
        self.0.update(id, change).await
    }

    /// Ends the cache's background work. To be called after the last request.
    pub async fn shutdown(&self) {
        self.0.cache.shutdown().await;
    }
}

impl Inner {
    async fn create(&self, write: RecordedWrite, shop: ShopChange) -> Result<i64, Error> {
        let filter = self.shop_policy.bloom_filter.clone();
        let created = self
            .writes
            .insert(write, &shop, async |id| {
                // Before the commit: a shop that exists must never be filtered out.
                let Some(filter) = &filter else { return Ok(()) };
                filter.add(&keys::shop(id)).await.map_err(|error| {
                    tracing::warn!(%error, "a new shop could not be added to the filter");
                    Error::Unavailable(Cause::Redis)
                })
            })
            .await;
        let mut changed = vec![keys::geo_index(shop.type_id.unwrap_or_default())];
        if let Ok(id) = created {
            if let Some(filter) = &filter
                && let Err(error) = filter.add(&keys::shop(id)).await
            {
                // The filter lacks the shop only if it was lost, and filled again, between the two calls.
                tracing::warn!(%error, shop_id = id, "a new shop could not be added to the filter again");
            }
            // There may be a cached null under the new id.
            changed.push(keys::shop(id));
        }
        if may_be_committed(&created) {
            self.invalidate(changed).await;
        }
        created
    }

    async fn update(&self, id: i64, change: ShopChange) -> Result<(), Error> {
        let before = self.writes.find(id).await?.ok_or(Error::ShopNotFound)?;
        let updated = self.writes.update(id, &change).await;
        let mut keys = vec![keys::shop(id)];
        if change.x.is_some() || change.y.is_some() || change.type_id.is_some() {
            keys.push(keys::geo_index(before.type_id));
            let new_type = change.type_id.filter(|id| *id != before.type_id);
            keys.extend(new_type.map(keys::geo_index));
        }
        if may_be_committed(&updated) {
            self.invalidate(keys).await;
        }
        updated
    }

    async fn invalidate(&self, keys: Vec<String>) {
        self.lists.invalidate_all();
        if self.cache.invalidate(&keys).await == InvalidationStatus::Pending {
            tracing::warn!(?keys, "invalidation pending: Redis did not confirm it yet");
        }
    }
}

/// Whether the database may have the new value, so that the caches must not keep the old one.
fn may_be_committed<T>(written: &Result<T, Error>) -> bool {
    matches!(written, Ok(_) | Err(Error::OutcomeUnknown(_)))
}
