//! The record, in Redis, of the key style that all nodes use. A node of another style would admit by counters of its own and
//! read a stream that no other writes to.

use anyhow::{Context, ensure};
use redis::{AsyncCommands, RedisResult};

use super::KeyStyle;

/// Where it is recorded.
const STYLE_KEY: &str = "seckill:key-style";

/// Records the style, unless one is recorded.
///
/// # Errors
/// Another style is recorded, with the flags to change; or Redis does not answer.
pub async fn record(redis: &mut impl AsyncCommands, style: KeyStyle) -> anyhow::Result<()> {
    let found = async {
        keep(redis, style).await?;
        recorded(redis).await
    };
    let recorded = found.await.context("the key style cannot be recorded in Redis")?;
    let recorded =
        recorded.context("Redis lost the record of the key style just now; start again")?;
    let style = style.to_string();
    ensure!(
        recorded == style,
        "other instances on this Redis use the key style `{recorded}` ({STYLE_KEY}), and this one `{style}`: set \
         --key-style (KEY_STYLE) alike, or switch all of them as docs/OPERATIONS.md says"
    );
    Ok(())
}

/// Records the style where none is recorded, as after a loss.
///
/// # Errors
/// Redis does not answer.
pub async fn keep(redis: &mut impl AsyncCommands, style: KeyStyle) -> RedisResult<()> {
    redis.set_nx(STYLE_KEY, style.to_string()).await
}

/// The style that is recorded, as text.
///
/// # Errors
/// Redis does not answer.
pub async fn recorded(redis: &mut impl AsyncCommands) -> RedisResult<Option<String>> {
    redis.get(STYLE_KEY).await
}
