//! Subcommands besides `serve`. Each prints its result to standard output and fails with a message that says what to do.

use anyhow::bail;

use crate::config::{AuditConfig, DatabaseConfig};
use crate::connection::{migrate, mysql};
use crate::order::audit;
use crate::order::store::OrderStore;

pub mod doctor;
pub mod seed;

/// `seckill migrate`.
pub async fn migrate(config: DatabaseConfig) -> anyhow::Result<()> {
    match migrate::run(&config.database_url).await? {
        0 => println!("the schema is up to date"),
        steps => println!("{steps} migration steps applied"),
    }
    Ok(())
}

/// `seckill audit`: fails where a sale violates what its strategy guarantees.
pub async fn audit(config: AuditConfig) -> anyhow::Result<()> {
    let database = mysql::connect(
        &config.database.database_url,
        1,
        config.database.database_timeout,
    )
    .await?;
    let store = OrderStore::new(database, config.time_zone);
    let findings = audit::audit(&store, config.voucher_id).await?;
    if let Some(id) = config.voucher_id
        && findings.is_empty()
    {
        bail!("voucher {id} is no flash sale");
    }
    if config.json {
        println!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        print!("{}", audit::table(&findings));
    }
    let count = findings
        .iter()
        .filter(|finding| finding.is_violation())
        .count();
    if count > 0 {
        bail!("{count} sales violate what their strategy guarantees");
    }
    Ok(())
}
