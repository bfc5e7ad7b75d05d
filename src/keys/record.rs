//! The record, in Redis, of the key style that all nodes use. A node of another style would admit by counters of its own and
//! read a stream that no other writes to.

use anyhow::{Context, bail, ensure};
use redis::{AsyncCommands, RedisResult};

use super::KeyStyle;

/// The key under which the style is recorded.
const STYLE_KEY: &str = "seckill:key-style";

/// Records the style if none is recorded, and checks that the recorded one is this one.
pub async fn record(redis: &mut impl AsyncCommands, style: KeyStyle) -> anyhow::Result<()> {
    keep(redis, style)
        .await
        .context("the key style cannot be recorded in Redis")?;
    let is_recorded = is_recorded(redis, style).await?;
    ensure!(
        is_recorded,
        "Redis lost the record of the key style just now; start again"
    );
    Ok(())
}

/// Records the style if none is recorded, as is the case after Redis lost data.
pub async fn keep(redis: &mut impl AsyncCommands, style: KeyStyle) -> RedisResult<()> {
    redis.set_nx(STYLE_KEY, style.to_string()).await
}

/// Whether the style is recorded.
///
/// # Errors
/// Another style is recorded, and the message names the flags to change; or Redis does not answer.
pub async fn is_recorded(redis: &mut impl AsyncCommands, style: KeyStyle) -> anyhow::Result<bool> {
    let recorded: Option<String> = redis.get(STYLE_KEY).await?;
    let style = style.to_string();
    if let Some(other) = recorded.as_ref().filter(|recorded| **recorded != style) {
        bail!(
            "other instances on this Redis use the key style `{other}` ({STYLE_KEY}), and this one `{style}`: set \
             --key-style (KEY_STYLE) alike, or switch all of them as docs/OPERATIONS.md says"
        );
    }
    Ok(recorded.is_some())
}
