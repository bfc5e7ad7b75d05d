//! Shops around a point, nearest first: the GEO index of each type in Redis, built from the database
//! when it is missing, dropped when a shop of the type is written, and done without when Redis is
//! away.

use std::sync::LazyLock;

use redis::Script;
use redis::aio::ConnectionManager;

use super::store::ShopStore;
use crate::error::Error;
use cache::lease_key;

/// How far a search reaches, metres.
pub const RADIUS: f64 = 5000.0;

/// How long an index is used before it is built anew, seconds: bounds what a lost deletion can do.
const INDEX_SECONDS: u32 = 3600;

/// How long building may take before it counts as abandoned, milliseconds.
const LEASE_MS: u32 = 10_000;

static SEARCH: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/geo_search.lua")));
static CLAIM: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/geo_claim.lua")));
static STORE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/geo_store.lua")));

/// The GEO indexes.
#[derive(Clone)]
pub struct GeoIndex {
    redis: ConnectionManager,
    store: ShopStore,
}

/// The key of a type's index; to be invalidated when one of its shops is written, which also makes
/// the lease of a build under way void.
pub fn key(type_id: i64) -> String {
    format!("shop:geo:{type_id}")
}

impl GeoIndex {
    /// Indexes on this Redis, built from this store.
    pub fn new(redis: ConnectionManager, store: ShopStore) -> Self {
        GeoIndex { redis, store }
    }

    /// Shops of a type within [`RADIUS`] of a point (longitude, latitude), nearest first, from
    /// `offset`, at most `limit`, as (id, metres).
    pub async fn near(
        &self,
        type_id: i64,
        point: (f64, f64),
        offset: u64,
        limit: u32,
    ) -> Result<Vec<(i64, f64)>, Error> {
        match self.indexed(type_id, point, offset + u64::from(limit)).await {
            Ok(found) => {
                let skip = usize::try_from(offset).unwrap_or(usize::MAX);
                Ok(found.into_iter().skip(skip).collect())
            }
            Err(Error::Unavailable("Redis")) => {
                self.store.near(type_id, point, RADIUS, offset, limit).await
            }
            Err(fault) => Err(fault),
        }
    }

    async fn indexed(
        &self,
        type_id: i64,
        point: (f64, f64),
        count: u64,
    ) -> Result<Vec<(i64, f64)>, Error> {
        if let Some(found) = self.search(type_id, point, count).await? {
            return Ok(found);
        }
        self.build(type_id).await?;
        match self.search(type_id, point, count).await? {
            Some(found) => Ok(found),
            // The type has no shops, or one was written while the index was built.
            None => {
                let limit = u32::try_from(count).unwrap_or(u32::MAX);
                self.store.near(type_id, point, RADIUS, 0, limit).await
            }
        }
    }

    /// `None` where the index is missing.
    async fn search(
        &self,
        type_id: i64,
        (x, y): (f64, f64),
        count: u64,
    ) -> Result<Option<Vec<(i64, f64)>>, Error> {
        Ok(SEARCH
            .key(key(type_id))
            .arg(x)
            .arg(y)
            .arg(RADIUS)
            .arg(count)
            .invoke_async(&mut self.redis.clone())
            .await?)
    }

    async fn build(&self, type_id: i64) -> Result<(), Error> {
        let index = key(type_id);
        let lease_name = lease_key(&index);
        let mut redis = self.redis.clone();
        // Before the database is read: a shop written after this makes the lease void.
        let lease: String = CLAIM
            .key(&lease_name)
            .arg(uuid::Uuid::new_v4().to_string())
            .arg(LEASE_MS)
            .invoke_async(&mut redis)
            .await?;
        let places = self.store.places(type_id).await?;
        let mut store = STORE.key(index);
        store.key(lease_name).arg(lease).arg(INDEX_SECONDS);
        for (id, x, y) in &places {
            store.arg(x).arg(y).arg(id);
        }
        let stored: bool = store.invoke_async(&mut redis).await?;
        tracing::debug!(type_id, shops = places.len(), stored, "GEO index built");
        Ok(())
    }
}
