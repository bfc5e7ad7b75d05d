//! `doctor` beside Java nodes: which open sales one of them published, and how these are sold.

use redis::AsyncCommands;

use super::findings::Findings;
use crate::connection::redis::RoutedConnection;
use crate::keys::Keys;
use crate::order::store::OrderStore;

/// Names the open sales without a recorded strategy that have no counter either.
pub(super) async fn check(
    findings: &Findings,
    store: &OrderStore,
    redis: &mut RoutedConnection,
    keys: &Keys,
) -> anyhow::Result<()> {
    for sale in store.open_sales(None).await?.iter().filter(|sale| sale.issued.is_none()) {
        let (id, strategy, counter) =
            (sale.voucher_id, &sale.strategy, keys.stock(sale.voucher_id));
        if redis.exists(&counter).await? {
            findings.good(&format!(
                "sale {id}: a Java node published it; sold on the strategy stream, by {counter}"
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
