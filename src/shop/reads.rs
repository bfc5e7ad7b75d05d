//! Reading shops. How each read is cached is one line: the policies in [`Shops::new`].

use std::sync::Arc;

use redis::aio::ConnectionManager;
use tokio_util::task::TaskTracker;

use super::geo::GeoIndex;
use super::model::{Shop, ShopType, ShopView};
use super::store::ShopStore;
use crate::clock::Zone;
use crate::error::Error;
use crate::request::rate_limiter::RateLimiter;
use cache::{Cache, Cached, Kind, Policy, PolicyStats, ReadError};

/// Key of the list of shop types.
pub const TYPES_KEY: &str = "cache:shop:type";

/// The shops, as other features and the routes see them. Cheap to clone.
#[derive(Clone)]
pub struct Shops(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) store: ShopStore,
    pub(super) cache: Cache,
    pub(super) geo: GeoIndex,
    pub(super) shop: Policy,
    types: Policy,
    kind: Kind,
    lab: bool,
    hot: RateLimiter<i64>,
    zone: Zone,
    /// Writes that must not end with their client.
    pub(super) tasks: TaskTracker,
}

/// How shops are read.
pub struct ShopReads {
    /// The way shops and shop types are cached.
    pub kind: Kind,
    /// How shops are cached in particular; see [`Policy`].
    pub shop: Policy,
    /// Whether a request may pick another way for itself.
    pub lab: bool,
    /// Requests a second for one shop on this instance; 0 for no limit.
    pub per_shop_per_second: u32,
    /// In which date-times are shown.
    pub zone: Zone,
}

/// The key of one shop.
pub fn key(id: i64) -> String {
    format!("cache:shop:{id}")
}

impl Shops {
    /// Shops of this store, read through this cache.
    pub fn new(store: ShopStore, cache: Cache, redis: ConnectionManager, reads: ShopReads) -> Self {
        Shops(Arc::new(Inner {
            geo: GeoIndex::new(redis, store.clone()),
            store,
            cache,
            shop: reads.shop,
            types: Policy::named("shop-type"),
            kind: reads.kind,
            lab: reads.lab,
            hot: RateLimiter::new(reads.per_shop_per_second),
            zone: reads.zone,
            tasks: TaskTracker::new(),
        }))
    }

    /// The zone in which date-times are shown.
    pub fn zone(&self) -> Zone {
        self.0.zone
    }

    /// What reads did so far, by policy name.
    pub fn stats(&self) -> [(&'static str, PolicyStats); 2] {
        [&self.0.shop, &self.0.types].map(|policy| (policy.name, policy.stats()))
    }

    /// One shop, by the configured way, or in the lab by the one asked for.
    pub async fn get(
        &self,
        id: i64,
        choice: Option<Kind>,
    ) -> Result<Option<Arc<Cached<Shop>>>, Error> {
        self.0.hot.check(&id)?;
        if id < 1 {
            return Ok(None);
        }
        let store = self.0.store.clone();
        let load = move || {
            let store = store.clone();
            async move { store.find(id).await }
        };
        let kind = self.kind(choice);
        Ok(self.0.cache.read(kind, &key(id), &self.0.shop, load).await?)
    }

    /// Whether a shop exists, by the database: a voucher is published for it.
    pub async fn exists(&self, id: i64) -> Result<bool, Error> {
        Ok(self.0.store.find(id).await?.is_some())
    }

    /// All shop types.
    pub async fn types(&self, choice: Option<Kind>) -> Result<Arc<Cached<Vec<ShopType>>>, Error> {
        let store = self.0.store.clone();
        let load = move || {
            let store = store.clone();
            async move { store.types().await.map(Some) }
        };
        let kind = self.kind(choice);
        let types = self.0.cache.read(kind, TYPES_KEY, &self.0.types, load).await?;
        types.ok_or_else(|| Error::Internal("the list of shop types is a cached null".to_owned()))
    }

    /// A type's shops, by id.
    pub async fn of_type(
        &self,
        type_id: i64,
        offset: u64,
        limit: u32,
    ) -> Result<Vec<ShopView>, Error> {
        Ok(self.views(self.0.store.of_type(type_id, offset, limit).await?))
    }

    /// The shops whose name contains `part`, by id.
    pub async fn of_name(
        &self,
        part: &str,
        offset: u64,
        limit: u32,
    ) -> Result<Vec<ShopView>, Error> {
        Ok(self.views(self.0.store.of_name(part, offset, limit).await?))
    }

    /// A type's shops around a point (longitude, latitude), nearest first, with their distances.
    pub async fn near(
        &self,
        type_id: i64,
        point: (f64, f64),
        offset: u64,
        limit: u32,
    ) -> Result<Vec<ShopView>, Error> {
        let found = self.0.geo.near(type_id, point, offset, limit).await?;
        let ids: Vec<i64> = found.iter().map(|(id, _)| *id).collect();
        let shops = self.0.store.these(&ids).await?;
        let view = |(id, distance): &(i64, f64)| {
            let shop = shops.iter().find(|shop| shop.id == *id)?;
            Some(shop.view(self.0.zone, Some(*distance)))
        };
        Ok(found.iter().filter_map(view).collect())
    }

    fn kind(&self, choice: Option<Kind>) -> Kind {
        choice.filter(|_| self.0.lab).unwrap_or(self.0.kind)
    }

    fn views(&self, shops: Vec<Shop>) -> Vec<ShopView> {
        shops.iter().map(|shop| shop.view(self.0.zone, None)).collect()
    }
}

impl From<ReadError<Error>> for Error {
    fn from(fault: ReadError<Error>) -> Self {
        match fault {
            ReadError::Load(fault) => match *fault {
                Error::Unavailable(what) => Error::Unavailable(what),
                Error::Conflict => Error::Conflict,
                ref other => Error::Internal(other.to_string()),
            },
            ReadError::Overloaded | ReadError::TimedOut => Error::Unavailable("the database"),
            ReadError::BrokenOff => Error::Internal("a load broke off".to_owned()),
        }
    }
}
