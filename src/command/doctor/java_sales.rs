//! For `seckill doctor`: which open sales a Java node published, how that is known, and how they are sold.

use redis::AsyncCommands;

use super::findings::Findings;
use crate::config::DoctorConfig;
use crate::connection::{self, mysql};
use crate::keys::Keys;
use crate::order::store::OrderStore;

/// Sales that are named; of the others only the number is told.
const NAMED: usize = 10;

/// Checks them.
pub(super) async fn check(findings: &Findings, config: &DoctorConfig) -> anyhow::Result<()> {
    let database =
        mysql::connect(&config.database.database_url, 1, config.database.database_timeout).await?;
    let server = config.redis.server()?;
    let redis = connection::redis::connect(server, config.redis.redis_timeout).await?;
    let mut redis = redis.commands();
    let keys = Keys::new(config.keys.style(&config.redis.redis_url)?);
    let sales = OrderStore::new(database, config.time_zone).open_sales().await?;
    let unrecorded: Vec<_> = sales.into_iter().filter(|sale| sale.issued.is_none()).collect();
    if unrecorded.is_empty() {
        findings.good("every open sale has its strategy recorded");
        return Ok(());
    }
    for sale in unrecorded.iter().take(NAMED) {
        let (id, strategy) = (sale.voucher_id, &sale.strategy);
        let counter = keys.stock(id);
        if redis.exists(&counter).await? {
            findings.good(&format!(
                "sale {id}: a Java node published it (issued is NULL, and {counter} exists): sold on \
                 the strategy stream, by that counter; a running instance records it within a second"
            ));
        } else {
            findings.warn(
                &format!("sale {id}: issued is NULL, and {counter} is missing: sold by {strategy}"),
                &format!(
                    "if a Java node with an admission script published it, SET {counter} to its stock \
                     before anybody buys"
                ),
            );
        }
    }
    if unrecorded.len() > NAMED {
        findings.good(&format!("and {} more with issued NULL", unrecorded.len() - NAMED));
    }
    Ok(())
}
