//! Whether the Redis user has the rights that the service needs: asked at start, so that a missing one is no surprise
//! in the middle of a sale.

use redis::AsyncCommands;

use crate::connection::redis::RoutedConnection;
use crate::scripts::RIGHTS_CHECK;

/// A name like those of each kind of key, which no key has.
const SAMPLES: [&str; 11] = [
    "login:code:rights",
    "{login:code:rights}:sends",
    "login:token:rights",
    "cache:shop:rights",
    "{cache:shop:rights}:lease",
    "shop:geo:rights",
    "bloom:shop:rights",
    "lock:order:rights",
    "icr:order:rights",
    "seckill:stock:rights",
    "stream.orders.rights",
];

/// The channel of invalidations, whose receivers ignore a message that names no key.
const CHANNEL: &str = "cache:invalidate";

/// Checks the rights to keys, commands, scripts and channels.
///
/// # Errors
/// One sentence that names the setting, and what is not allowed.
pub async fn check(redis: &RoutedConnection) -> anyhow::Result<()> {
    let lacks = |what: &str, error: redis::RedisError| {
        anyhow::anyhow!(
            "REDIS_URL (--redis-url): the Redis user lacks a right that the service needs for {what}; \
             docs/OPERATIONS.md lists them ({error})"
        )
    };
    for key in SAMPLES {
        let asked = RIGHTS_CHECK.key(key).invoke_async::<i64>(&mut redis.clone()).await;
        asked
            .map_err(|error| lacks(&format!("keys like {}", key.replace("rights", "…")), error))?;
    }
    // A session's fields and time to live are written in one transaction.
    let mut transaction = redis::pipe();
    transaction.atomic().exists(SAMPLES[2]);
    let tried = transaction.query_async::<Vec<bool>>(&mut redis.clone()).await;
    tried.map_err(|error| lacks("MULTI and EXEC", error))?;
    let published = redis.clone().publish::<_, _, i64>(CHANNEL, "rights").await;
    published.map_err(|error| lacks("the channel cache:invalidate", error))?;
    Ok(())
}
