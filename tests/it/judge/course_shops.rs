//! How a learner's node reads and changes shops, stage by stage.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::{get, put};
use axum::{Json, Router};
use chrono::Utc;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use sqlx::mysql::MySqlPool;
use tokio::time::sleep;

use super::course_node::{Answer, fail, ok};

/// How far the author has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shops {
    /// Every read asks the database.
    Uncached,
    /// Redis first; what is there stays, whatever becomes of the shop.
    CachedForEver,
    /// A time to live, cached nulls and a mutex; a change deletes the key first.
    DeletedFirst,
    /// The same; a change deletes the key last.
    DeletedLast,
    /// Only shops that were warmed up, which expire logically; a change deletes the key.
    Warm,
}

struct ShopNode {
    stage: Shops,
    pool: MySqlPool,
    redis: MultiplexedConnection,
}

/// Warms all shops up, as some nodes do when they start.
pub async fn warm_all_up(pool: MySqlPool, redis: MultiplexedConnection) {
    let shops: Vec<u64> = sqlx::query_scalar("SELECT CAST(id AS UNSIGNED) FROM tb_shop")
        .fetch_all(&pool)
        .await
        .unwrap();
    let stage = Shops::Warm;
    let node = ShopNode { stage, pool, redis };
    for shop in shops {
        node.warm_up(shop).await;
    }
}

impl Shops {
    pub fn routes(self, pool: MySqlPool, redis: MultiplexedConnection) -> Router {
        let node = Arc::new(ShopNode {
            stage: self,
            pool,
            redis,
        });
        Router::new()
            .route("/shop/{id}", get(read))
            .route("/shop", put(change))
            .with_state(node)
    }
}

async fn read(State(node): State<Arc<ShopNode>>, Path(id): Path<u64>) -> Answer {
    let shop = match node.stage {
        Shops::Uncached => node.load(id).await,
        Shops::CachedForEver => node.read_simply(id).await,
        Shops::DeletedFirst | Shops::DeletedLast => node.read_with_mutex(id).await,
        Shops::Warm => node.read_warm(id).await,
    };
    shop.map_or_else(|| fail("店铺不存在！"), ok)
}

async fn change(State(node): State<Arc<ShopNode>>, Json(shop): Json<Value>) -> Answer {
    let id = shop["id"].as_u64().unwrap();
    if node.stage == Shops::DeletedFirst {
        node.delete(id).await;
    }
    sqlx::query("UPDATE tb_shop SET name = ? WHERE id = ?")
        .bind(shop["name"].as_str())
        .bind(id)
        .execute(&node.pool)
        .await
        .unwrap();
    if matches!(node.stage, Shops::DeletedLast | Shops::Warm) {
        node.delete(id).await;
    }
    ok(Value::Null)
}

fn key(id: u64) -> String {
    format!("cache:shop:{id}")
}

fn mutex(id: u64) -> String {
    format!("lock:shop:{id}")
}

impl ShopNode {
    async fn load(&self, id: u64) -> Option<Value> {
        let name: Option<String> = sqlx::query_scalar("SELECT name FROM tb_shop WHERE id = ?")
            .bind(id)
            .fetch_optional(&self.pool)
            .await
            .unwrap();
        Some(json!({ "id": id, "name": name? }))
    }

    async fn cached(&self, id: u64) -> Option<String> {
        self.redis.clone().get(key(id)).await.unwrap()
    }

    async fn delete(&self, id: u64) {
        let _: () = self.redis.clone().del(key(id)).await.unwrap();
    }

    async fn read_simply(&self, id: u64) -> Option<Value> {
        if let Some(text) = self.cached(id).await {
            return serde_json::from_str(&text).unwrap();
        }
        let shop = self.load(id).await?;
        let set = self.redis.clone().set(key(id), shop.to_string()).await;
        let () = set.unwrap();
        Some(shop)
    }

    async fn read_with_mutex(&self, id: u64) -> Option<Value> {
        loop {
            if let Some(text) = self.cached(id).await {
                // An empty text is a cached null.
                return serde_json::from_str(&text).ok();
            }
            if self.take_mutex(id).await {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        // Another may have loaded it between the look and the mutex.
        let text = self.cached(id).await;
        let mut shop = text
            .as_deref()
            .and_then(|text| serde_json::from_str(text).ok());
        if text.is_none() {
            shop = self.load(id).await;
            let text = shop.as_ref().map(Value::to_string);
            let seconds = if text.is_some() { 1800 } else { 120 };
            let text = text.unwrap_or_default();
            let set = self.redis.clone().set_ex(key(id), text, seconds).await;
            let () = set.unwrap();
        }
        self.release_mutex(id).await;
        shop
    }

    async fn read_warm(self: Arc<Self>, id: u64) -> Option<Value> {
        let mut value: Value = serde_json::from_str(&self.cached(id).await?).unwrap();
        let time = value["expireTime"].as_i64().unwrap();
        // Hutool makes a `LocalDateTime` of a `long` only: of a smaller number the course's node makes null, and fails.
        assert!(time > i32::MAX.into(), "{value}");
        let is_over = time <= Utc::now().timestamp_millis();
        if is_over && self.take_mutex(id).await {
            let node = self.clone();
            tokio::spawn(async move {
                node.warm_up(id).await;
                node.release_mutex(id).await;
            });
        }
        Some(value["data"].take())
    }

    async fn warm_up(&self, id: u64) {
        let in_twenty_minutes = Utc::now().timestamp_millis() + 1_200_000;
        let shop = self.load(id).await;
        let value = json!({ "data": shop, "expireTime": in_twenty_minutes });
        let set = self.redis.clone().set(key(id), value.to_string()).await;
        let () = set.unwrap();
    }

    async fn take_mutex(&self, id: u64) -> bool {
        let mut set = redis::cmd("SET");
        set.arg(mutex(id)).arg(1).arg("NX").arg("EX").arg(10);
        let taken: Option<String> = set.query_async(&mut self.redis.clone()).await.unwrap();
        taken.is_some()
    }

    async fn release_mutex(&self, id: u64) {
        let _: () = self.redis.clone().del(mutex(id)).await.unwrap();
    }
}
