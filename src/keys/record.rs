//! The record, in Redis, of the key style that all nodes use. A node of another style would admit by counters of its own and
//! read a stream that no other writes to.

use anyhow::{Context, ensure};
use redis::AsyncCommands;

use super::KeyStyle;

/// Where it is recorded.
const STYLE_KEY: &str = "seckill:key-style";

/// Records the style, unless one is recorded.
///
/// # Errors
/// Another style is recorded, with the flags to change; or Redis does not answer.
pub async fn record(redis: &mut impl AsyncCommands, style: KeyStyle) -> anyhow::Result<()> {
    let recorded = async {
        let _first: bool = redis.set_nx(STYLE_KEY, style.to_string()).await?;
        redis.get::<_, String>(STYLE_KEY).await
    };
    let recorded = recorded.await.context("the key style cannot be recorded in Redis")?;
    ensure!(
        recorded == style.to_string(),
        "other instances on this Redis use the key style `{recorded}` ({STYLE_KEY}), and this one `{style}`: set \
         --key-style (KEY_STYLE) and --stream-shards (STREAM_SHARDS) alike, or switch all of them as docs/OPERATIONS.md says"
    );
    Ok(())
}
