//! Shops around a point, nearest first. Each shop type has a GEO index in Redis: built from the
//! database when it is missing, deleted when a shop of the type is written. Without Redis the database
//! computes the distances.

use std::time::Duration;

use super::keys;
use super::model::Paging;
use super::store::ShopStore;
use crate::connection::fresh_cache::FreshCache;
use crate::connection::redis::RoutedConnection;
use crate::error::{Cause, Error};
use crate::scripts::GEO_STORE;
use cache::lease_key;

/// Radius of a search, metres.
pub const RADIUS: f64 = 5000.0;

/// Time to live of an index, seconds: bounds the effect of an invalidation that was lost.
const INDEX_SECONDS: u32 = 3600;

/// Time to live of the lease of a build, milliseconds: after it, the build counts as abandoned.
const LEASE_MS: u32 = 10_000;

/// How long an index is not built again after a build. If it is missing then, its type has no shops, or one was written since.
/// Meanwhile the database computes the distances.
const BUILT_FOR: Duration = Duration::from_secs(1);

/// The GEO indexes of all shop types.
#[derive(Clone)]
pub struct GeoIndex {
    redis: RoutedConnection,
    store: ShopStore,
    /// The latest builds, by shop type. A build reads all shops of its type, and anybody can ask for a type, so there must not
    /// be many.
    builds: FreshCache<i64, (), Error>,
}

impl GeoIndex {
    /// Indexes in this Redis, built from this store.
    pub fn new(redis: RoutedConnection, store: ShopStore) -> Self {
        GeoIndex {
            redis,
            store,
            builds: FreshCache::new(BUILT_FOR, 1024),
        }
    }

    /// A page of a type's shops within [`RADIUS`] of a point (longitude, latitude), nearest first, as (id, metres).
    pub async fn nearest(
        &self,
        type_id: i64,
        point: (f64, f64),
        page: Paging,
    ) -> Result<Vec<(i64, f64)>, Error> {
        let count = page.offset + u64::from(page.limit);
        match self.search_or_build(type_id, point, count).await {
            Ok(Some(found)) => {
                let skip = usize::try_from(page.offset).unwrap_or(usize::MAX);
                Ok(found.into_iter().skip(skip).collect())
            }
            // The type has no shops, or one was written while the index was built; or Redis is away.
            Ok(None) | Err(Error::Unavailable(Cause::Redis)) => {
                self.store.nearest(type_id, point, RADIUS, page).await
            }
            Err(error) => Err(error),
        }
    }

    async fn search_or_build(
        &self,
        type_id: i64,
        point: (f64, f64),
        count: u64,
    ) -> Result<Option<Vec<(i64, f64)>>, Error> {
        if let Some(found) = self.search(type_id, point, count).await? {
            return Ok(Some(found));
        }
        self.builds
            .get(type_id, async || self.build(type_id).await)
            .await?;
        self.search(type_id, point, count).await
    }

    /// Searches the index; `None` if it is missing.
    async fn search(
        &self,
        type_id: i64,
        (x, y): (f64, f64),
        count: u64,
    ) -> Result<Option<Vec<(i64, f64)>>, Error> {
        let index = keys::geo_index(type_id);
        let mut search = redis::cmd("GEOSEARCH");
        search
            .arg(&index)
            .arg("FROMLONLAT")
            .arg(x)
            .arg(y)
            .arg("BYRADIUS")
            .arg(RADIUS)
            .arg("m");
        search.arg("ASC").arg("COUNT").arg(count).arg("WITHDIST");
        // The search alone cannot tell a missing index from one without a shop within the radius.
        let mut both = redis::pipe();
        both.atomic().exists(&index).add_command(search);
        let (exists, found): (bool, _) = both.query_async(&mut self.redis.clone()).await?;
        Ok(exists.then_some(found))
    }

    async fn build(&self, type_id: i64) -> Result<(), Error> {
        let index = keys::geo_index(type_id);
        let lease_name = lease_key(&index);
        let mut redis = self.redis.clone();
        // Before the database is read: a shop that is written after this deletes the lease. Concurrent builders share the
        // lease, and any of them may store.
        let mut claim = redis::pipe();
        claim
            .atomic()
            .cmd("SET")
            .arg(&lease_name)
            .arg(uuid::Uuid::new_v4().to_string());
        claim
            .arg("NX")
            .arg("PX")
            .arg(LEASE_MS)
            .ignore()
            .get(&lease_name);
        let (lease,): (String,) = claim.query_async(&mut redis).await?;
        let positions = self.store.positions(type_id).await?;
        let mut store = GEO_STORE.key(index);
        store.key(lease_name).arg(lease).arg(INDEX_SECONDS);
        for (id, x, y) in &positions {
            store.arg(x).arg(y).arg(id);
        }
        let stored: bool = store.invoke_async(&mut redis).await?;
        tracing::debug!(type_id, shops = positions.len(), stored, "GEO index built");
        Ok(())
    }
}
