//! Two nodes read one hot product: one load, then an invalidation that both see.
//!
//! `REDIS_URL=redis://127.0.0.1/ cargo run --example product`

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cache_aside::{Cache, CacheConfig, CachePolicy, Loader, ReadStrategy};
use redis::Client;
use redis::aio::ConnectionManager;
use serde::{Deserialize, Serialize};

const KEY: &str = "cache:product:7";

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Product {
    id: u64,
    price: u64,
}

/// Stands for a table with one row.
#[derive(Default)]
struct Database {
    price: AtomicU64,
    queries: AtomicU64,
}

impl Database {
    async fn find(&self) -> Result<Option<Product>, std::io::Error> {
        self.queries.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(Some(Product { id: 7, price: self.price.load(Ordering::Relaxed) }))
    }
}

fn loader(database: &Arc<Database>) -> impl Loader<Product, std::io::Error> + use<> {
    let database = database.clone();
    move || {
        let database = database.clone();
        async move { database.find().await }
    }
}

async fn connect(url: &str) -> Result<Cache, redis::RedisError> {
    let client = Client::open(url)?;
    let manager = ConnectionManager::new(client.clone()).await?;
    let cache = Cache::new(manager, client, CacheConfig::default());
    while !cache.stats().local_enabled {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(cache)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let nodes = [connect(&url).await?, connect(&url).await?];
    let policy = CachePolicy::new("product");
    let database = Arc::new(Database::default());
    database.price.store(100, Ordering::Relaxed);
    let _status = nodes[0].invalidate(&[KEY]).await;

    let readers: Vec<_> = (0..1000)
        .map(|i| {
            let (cache, policy) = (nodes[i % 2].clone(), policy.clone());
            let loader = loader(&database);
            tokio::spawn(async move {
                cache.read(ReadStrategy::Layered, KEY, &policy, loader).await.map(drop)
            })
        })
        .collect();
    for reader in readers {
        reader.await??;
    }
    let queries = database.queries.load(Ordering::Relaxed);
    println!("1,000 concurrent readers on two nodes: {queries} query");

    database.price.store(90, Ordering::Relaxed);
    println!("invalidation: {:?}", nodes[0].invalidate(&[KEY]).await);
    // The other node drops its copy when the message arrives.
    tokio::time::sleep(Duration::from_millis(20)).await;
    for (number, cache) in nodes.iter().enumerate() {
        let product = cache.read(ReadStrategy::Layered, KEY, &policy, loader(&database)).await?;
        let price = product.map(|product| product.price);
        println!("node {number} reads price {price:?}");
    }
    println!("{:?}", policy.stats());
    for cache in &nodes {
        cache.shutdown().await;
    }
    Ok(())
}
