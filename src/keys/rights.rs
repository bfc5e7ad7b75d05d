//! The check at start that Redis can do, and its user may do, what the service needs. Without it, a missing right would show
//! in the middle of a sale. A replica, a sentinel, one master of a cluster and an old version fail here, too.

use redis::AsyncCommands;

use crate::connection::redis::RoutedConnection;
use crate::scripts::RIGHTS_CHECK;

/// For each kind of key, a name of its form that no key has.
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

/// Checks keys, commands, scripts and channels.
///
/// # Errors
/// One sentence that names the setting, and what does not work.
pub async fn check(redis: &RoutedConnection) -> anyhow::Result<()> {
    let cannot = |what: &str, error: redis::RedisError| {
        anyhow::anyhow!(
            "REDIS_URL (--redis-url): what the service does with {what} fails ({error}): it needs the master of Redis 6.2 \
             or newer (redis-sentinel:// finds it, redis-cluster:// is for a cluster), and a user with the rights that \
             docs/OPERATIONS.md lists"
        )
    };
    for key in SAMPLES {
        let checked = RIGHTS_CHECK
            .key(key)
            .invoke_async::<i64>(&mut redis.clone())
            .await;
        if let Err(error) = checked {
            let kind = format!("keys like {}", key.replace("rights", "…"));
            return Err(cannot(&kind, error));
        }
    }
    // A session's fields and time to live are written in one transaction.
    let mut transaction = redis::pipe();
    transaction.atomic().exists(SAMPLES[2]);
    let tried = transaction
        .query_async::<Vec<bool>>(&mut redis.clone())
        .await;
    tried.map_err(|error| cannot("MULTI and EXEC", error))?;
    let published = redis.clone().publish::<_, _, i64>(CHANNEL, "rights").await;
    published.map_err(|error| cannot("the channel cache:invalidate", error))?;
    Ok(())
}
