//! Per-user lock in Redis as tutorials begin it: `SET key value NX PX lease`, and at the end a plain `DEL`. The value is not
//! looked at, so the `DEL` removes the lock, whoever owns it. The lease ends in mid-work, and a second request acquires the
//! lock; the first one finishes and deletes the second one's lock; a third acquires it. Requests that overlap see no order
//! of each other. To compare the value before the `DEL` would be half a cure: the lease can end between the two commands (a
//! level of the page `/learn` shows it). [`super::setnx_lock`] does both in one script. Unsafe on purpose.

use std::time::Duration;

use redis::{AsyncCommands, RedisResult};

use super::{Error, Purchase, conditional};
use crate::connection::redis::RoutedConnection;
use crate::order::steps;
use crate::request::trace;

/// Shorter than a purchase often takes, so that the demonstration needs no pause of a process. A longer lease makes the
/// same violation rarer.
const LEASE: Duration = Duration::from_millis(3);

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
    // Nobody checks whose lock this is by now.
    let released: RedisResult<()> = redis.clone().del(&key).await;
    if let Err(error) = released {
        tracing::warn!(%error, lock = key, "the purchase lock could not be released");
    }
    trace::mark("unlocked", "place=redis");
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
