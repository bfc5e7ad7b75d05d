//! Writing shops: the database first, then everybody is made to forget. A write runs to its end even
//! when its client hangs up: else the database would have the new value and the caches the old.

use super::model::ShopChange;
use super::reads::{Inner, Shops, key};
use super::{geo, reads};
use crate::error::Error;
use cache::Delivery;

impl Shops {
    /// Inserts a shop that passed its check; returns its id.
    pub async fn create(&self, shop: ShopChange) -> Result<i64, Error> {
        let inner = self.0.clone();
        let task = self.0.tasks.spawn(async move { inner.create(shop).await });
        task.await.map_err(|fault| Error::Internal(format!("shop write: {fault}")))?
    }

    /// Changes the fields that are given.
    pub async fn update(&self, id: i64, change: ShopChange) -> Result<(), Error> {
        let inner = self.0.clone();
        let task = self.0.tasks.spawn(async move { inner.update(id, change).await });
        task.await.map_err(|fault| Error::Internal(format!("shop write: {fault}")))?
    }

    /// Waits for writes under way, then ends the cache's background work.
    pub async fn shutdown(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.0.cache.shutdown().await;
    }
}

impl Inner {
    async fn create(&self, shop: ShopChange) -> Result<i64, Error> {
        let filter = self.shop.filter.clone();
        let id = self
            .store
            .insert(&shop, async |id| {
                // Before the commit: a shop that exists must never be filtered out.
                let Some(filter) = &filter else { return Ok(()) };
                filter.add(&key(id)).await.map_err(|fault| {
                    tracing::warn!(%fault, "a new shop could not be added to the filter");
                    Error::Unavailable("Redis")
                })
            })
            .await?;
        if let Some(filter) = &filter
            && let Err(fault) = filter.add(&key(id)).await
        {
            // Only a filter that was lost and filled anew between the two can lack it now.
            tracing::warn!(%fault, shop_id = id, "a new shop could not be added to the filter again");
        }
        // "Does not exist" may be remembered under the new id.
        self.forget(vec![key(id), geo::key(shop.type_id.unwrap_or_default())]).await;
        Ok(id)
    }

    async fn update(&self, id: i64, change: ShopChange) -> Result<(), Error> {
        let before = self.store.find(id).await?.ok_or(Error::ShopNotFound)?;
        if !self.store.update(id, &change).await? {
            return Err(Error::ShopNotFound);
        }
        let mut keys = vec![reads::key(id)];
        if change.x.is_some() || change.y.is_some() || change.type_id.is_some() {
            keys.push(geo::key(before.type_id));
            keys.extend(change.type_id.filter(|id| *id != before.type_id).map(geo::key));
        }
        self.forget(keys).await;
        Ok(())
    }

    async fn forget(&self, keys: Vec<String>) {
        if self.cache.invalidate(&keys).await == Delivery::Pending {
            tracing::warn!(?keys, "Redis could not be told of a change yet; it will be");
        }
    }
}
