//! For `seckill doctor`: whether the key style agrees with the one that other instances on this Redis use.

use redis::AsyncCommands;

use super::findings::Findings;
use crate::keys::KeyStyle;
use crate::keys::record::recorded;

/// Checks it.
pub(super) async fn check(
    findings: &mut Findings,
    redis: &mut impl AsyncCommands,
    style: KeyStyle,
) -> anyhow::Result<()> {
    match recorded(redis).await? {
        None => findings.good(&format!("key style {style}, which the first start records")),
        Some(other) if other == style.to_string() => {
            findings.good(&format!("key style {style}, as recorded"));
        }
        Some(other) => findings.fail(
            &format!("key style {style}, while other instances use {other}"),
            "set --key-style (KEY_STYLE) alike, or switch all instances as \
             docs/OPERATIONS.md says",
        ),
    }
    Ok(())
}
