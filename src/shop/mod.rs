//! Shops: `GET /shop/{id}`. Reads go to the database.

use axum::extract::State;

use crate::error::Error;
use crate::http::extract::Path;
use crate::http::reply::{self, Reply};

pub mod store;

pub use store::Shop;

/// The shops, as other features and the routes see them.
#[derive(Clone)]
pub struct Shops {
    store: store::ShopStore,
}

impl Shops {
    /// Shops kept in this store.
    pub fn new(store: store::ShopStore) -> Self {
        Shops { store }
    }

    /// Whether a shop exists.
    pub async fn exists(&self, id: i64) -> Result<bool, Error> {
        Ok(self.store.find(id).await?.is_some())
    }
}

/// `GET /shop/{id}`: one shop.
pub async fn get(State(shops): State<Shops>, Path(id): Path<i64>) -> Reply<Shop> {
    let shop = shops.store.find(id).await?.ok_or(Error::ShopNotFound)?;
    Ok(reply::data(shop))
}
