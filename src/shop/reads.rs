//! Reading shops: one shop and the list of types through the cache, lists and searches from the
//! database.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use super::filter::existing_shops;
use super::geo::GeoIndex;
use super::keys;
use super::model::{Paging, Shop, ShopType};
use super::store::ShopStore;
use crate::clock::Zone;
use crate::config::SaleConfig;
use crate::connection::fresh_cache::FreshCache;
use crate::connection::redis::RoutedConnection;
use crate::error::{Cause, Error};
use crate::request::rate_limiter::RateLimiter;
use cache::{Cache, CachePolicy, CachedValue, PolicyStats, ReadError, ReadStrategy};

/// The shop service: what other features and the handlers use. Cheap to clone.
#[derive(Clone)]
pub struct Shops(pub(super) Arc<Inner>);

pub(super) struct Inner {
    /// The SQL, on two pools of connections: no number of anonymous reads keeps an administrator from writing.
    reads: ShopStore,
    pub(super) writes: ShopStore,
    pub(super) lists: FreshCache<ListQuery, Bytes, Error>,
    pub(super) cache: Cache,
    pub(super) geo: GeoIndex,
    pub(super) shop_policy: CachePolicy,
    types_policy: CachePolicy,
    read_strategy: ReadStrategy,
    lab: bool,
    per_shop_limiter: RateLimiter<i64>,
    pub(super) zone: Zone,
}

/// A list of shops that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListQuery {
    /// Shops of a type.
    Type(i64, Paging),
    /// Shops of a type near a point (longitude, latitude), whose coordinates are given by their bits.
    Near(i64, (u64, u64), Paging),
    /// Shops whose name contains a text.
    Name(String, Paging),
}

/// How long the reply of a list is valid. Writes on this instance are seen at once.
const LIST_FRESH_FOR: Duration = Duration::from_millis(300);

impl Shops {
    /// Shops that are read by `reads`, through this cache, and written by `writes`.
    pub fn new(
        reads: ShopStore,
        writes: ShopStore,
        cache: Cache,
        redis: RoutedConnection,
        config: &SaleConfig,
    ) -> Self {
        let filter = config.shop_filter.then(|| existing_shops(&cache, &reads));
        Shops(Arc::new(Inner {
            geo: GeoIndex::new(redis, reads.clone()),
            reads,
            writes,
            lists: FreshCache::new(LIST_FRESH_FOR, 1024),
            cache,
            shop_policy: CachePolicy {
                bloom_filter: filter,
                ..CachePolicy::new("shop")
            },
            types_policy: CachePolicy::new("shop-type"),
            read_strategy: config.shop_cache,
            lab: config.lab,
            per_shop_limiter: RateLimiter::new(config.per_shop_per_second),
            zone: config.time_zone,
        }))
    }

    /// Counts of reads, by policy name.
    pub fn stats(&self) -> [(&'static str, PolicyStats); 2] {
        [&self.0.shop_policy, &self.0.types_policy].map(|policy| (policy.name, policy.stats()))
    }

    /// One shop, by the configured read strategy, or in the lab by `choice`. Refused if this shop was
    /// requested too often.
    pub async fn get(
        &self,
        id: i64,
        choice: Option<ReadStrategy>,
    ) -> Result<Option<Arc<CachedValue<Shop>>>, Error> {
        self.0.per_shop_limiter.check(&id)?;
        if id < 1 {
            return Ok(None);
        }
        let store = self.0.reads.clone();
        let load = move || {
            let store = store.clone();
            async move { store.find(id).await }
        };
        let strategy = self.read_strategy(choice);
        Ok(self
            .0
            .cache
            .read(strategy, &keys::shop(id), &self.0.shop_policy, load)
            .await?)
    }

    /// Whether a shop exists. Read from the database, because a voucher is to be published for it.
    pub async fn exists(&self, id: i64) -> Result<bool, Error> {
        Ok(self.0.writes.find(id).await?.is_some())
    }

    /// All shop types.
    pub async fn types(
        &self,
        choice: Option<ReadStrategy>,
    ) -> Result<Arc<CachedValue<Vec<ShopType>>>, Error> {
        let store = self.0.reads.clone();
        let load = move || {
            let store = store.clone();
            async move { store.types().await.map(Some) }
        };
        let strategy = self.read_strategy(choice);
        let types = self
            .0
            .cache
            .read(strategy, keys::SHOP_TYPES, &self.0.types_policy, load)
            .await?;
        types.ok_or_else(|| Error::Internal("the list of shop types is a cached null".to_owned()))
    }

    /// A page of shops: by id; near a point, the nearest first, with their distances.
    pub async fn list(&self, query: &ListQuery) -> Result<Vec<Value>, Error> {
        let Inner {
            reads, geo, zone, ..
        } = &*self.0;
        let shops = match query {
            ListQuery::Type(type_id, page) => reads.list_by_type(*type_id, *page).await?,
            ListQuery::Name(part, page) => reads.search_by_name(part, *page).await?,
            ListQuery::Near(type_id, (x, y), page) => {
                let point = (f64::from_bits(*x), f64::from_bits(*y));
                let found = geo.nearest(*type_id, point, *page).await?;
                let ids: Vec<i64> = found.iter().map(|(id, _)| *id).collect();
                let shops = reads.find_many(&ids).await?;
                let view = |(id, distance): &(i64, f64)| {
                    let mut shop = shops.iter().find(|shop| shop.id == *id)?.clone();
                    shop.distance = Some(*distance);
                    Some(shop.view(*zone))
                };
                return Ok(found.iter().filter_map(view).collect());
            }
        };
        Ok(shops.iter().map(|shop| shop.view(*zone)).collect())
    }

    fn read_strategy(&self, choice: Option<ReadStrategy>) -> ReadStrategy {
        match choice {
            Some(strategy) if self.0.lab => strategy,
            _ => self.0.read_strategy,
        }
    }
}

impl From<ReadError<Error>> for Error {
    fn from(error: ReadError<Error>) -> Self {
        match error {
            ReadError::Load(error) => Error::clone(&error),
            ReadError::Overloaded | ReadError::TimedOut => Error::Unavailable(Cause::Database),
            other => Error::Internal(other.to_string()),
        }
    }
}
