//! `doctor` beside Java nodes: which open sales one of them published, and how these are sold.

use redis::AsyncCommands;

use super::findings::Findings;
use crate::connection::redis::RoutedConnection;
use crate::keys::Keys;
use crate::order::store::OrderStore;

/// Says of each open sale without a recorded strategy how it is sold.
pub(super) async fn check(
    findings: &Findings,
    store: &OrderStore,
    redis: &mut RoutedConnection,
    keys: &Keys,
) -> anyhow::Result<()> {
    let sales = store.open_sales(None).await?;
    let mut unrecorded = sales.iter().filter(|sale| sale.issued.is_none()).peekable();
    if unrecorded.peek().is_none() {
        findings.good("every open sale has its strategy recorded");
    }
    for sale in unrecorded {
        let (id, strategy, counter) =
            (sale.voucher_id, &sale.strategy, keys.stock(sale.voucher_id));
        if redis.exists(&counter).await? {
            findings.good(&format!(
                "sale {id}: a Java node published it (issued is NULL, and {counter} exists): sold on the strategy \
                 stream, by that counter; a running instance records it within a second"
            ));
        } else {
            findings.warn(
                &format!("sale {id}: issued is NULL, and {counter} is missing: sold by {strategy}"),
                &format!(
                    "if a Java node with an admission script published it, SET {counter} to its stock before anybody buys"
                ),
            );
        }
    }
    Ok(())
}
