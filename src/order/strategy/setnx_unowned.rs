//! Per-user lock in Redis as tutorials begin it: `SET key value NX PX lease`, and at the end a `DEL` without a look at the
//! value: it deletes the lock, whoever holds it (误删). The lease of the first request ends in mid-work, and a second one
//! acquires the lock; the first one ends, even by a rollback, and deletes the second one's lock; a third acquires it and
//! works beside the second. To compare the value before the `DEL` would be half a cure: these are two commands, and the lease
//! can end between them (a level of the page `/learn` shows it). [`super::setnx_lock`] does both in one script. Unsafe on
//! purpose.

use redis::{AsyncCommands, RedisResult};
use strategies::SETNX_UNOWNED_LEASE as LEASE;

use super::{Error, Purchase, conditional};
use crate::connection::redis::RoutedConnection;
use crate::order::steps;
use crate::request::trace;

/// Buys; see the module.
pub async fn buy(purchase: Purchase<'_>) -> Result<i64, Error> {
    let redis = &purchase.context.redis;
    let order = purchase.new_order().await?;
    let key = format!("lock:setnx-unowned:order:{}", purchase.buyer.user_id);
    // A request that finds the lock held tries once more, when the lease may have ended.
    if acquire(redis, &key, order.id).await?.is_none() {
        tokio::time::sleep(LEASE).await;
        acquire(redis, &key, order.id)
            .await?
            .ok_or(Error::LockBusy)?;
    }
    let outcome = conditional::place_order(purchase, &order).await;
    if let Err(error) = release(redis, &key, order.id).await {
        tracing::warn!(%error, lock = key, "the purchase lock could not be released");
    }
    outcome
}

async fn acquire(redis: &RoutedConnection, key: &str, owner: i64) -> RedisResult<Option<String>> {
    let mut set = redis::cmd("SET");
    set.arg(key)
        .arg(owner)
        .arg("NX")
        .arg("PX")
        .arg(LEASE.as_millis() as u64);
    trace::step(set.query_async(&mut redis.clone()), steps::tried_in_redis).await
}

/// Deletes the lock, whoever holds it by now.
async fn release(redis: &RoutedConnection, key: &str, owner: i64) -> RedisResult<()> {
    let mut redis = redis.clone();
    // A DEL that returns the value, so that the trace can say whose lock it was.
    let deleting = redis.get_del::<_, Option<i64>>(key);
    trace::step(deleting, steps::deleted(owner)).await.map(drop)
}
