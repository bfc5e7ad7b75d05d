//! `doctor`: the database.

use super::findings::{Findings, skew};
use super::{durability, time_zones};
use crate::config::DoctorConfig;
use crate::connection::database_check::tables_and_rights;
use crate::connection::mysql::{Database, IdleLimit, ServerFacts};
use crate::connection::server_check::is_supported;
use crate::connection::{migrate, mysql};

/// A transaction that nobody goes on with should end within this time, seconds: until then it may hold a sale's row.
const MAX_IDLE: u64 = 60;

/// Checks version, durability, connections, clock, idle transactions and schema.
pub(super) async fn check(
    findings: &mut Findings,
    database: &Database,
    config: &DoctorConfig,
) -> anyhow::Result<()> {
    let facts = mysql::facts(database).await?;
    if is_supported(&facts.version) {
        findings.good(&format!("version {}", facts.version));
    } else {
        findings
            .fail(&format!("version {}", facts.version), "use MySQL 8.0 or MariaDB 10.5, or newer");
    }
    durability::check(findings, database).await?;
    if !facts.writes_anyway.is_empty() {
        findings.warn(
            &format!(
                "the user may write to a read-only server ({})",
                facts.writes_anyway.join(", ")
            ),
            "revoke it: after a failover, an order could be written to the old primary alone",
        );
    }
    let wanted = i64::from(config.database.database_connections);
    if facts.max_connections < 2 * wanted {
        findings.warn(
            &format!("max_connections={} for {wanted} an instance", facts.max_connections),
            "raise it, or lower --database-connections",
        );
    }
    skew(findings, "the database", facts.now.and_utc());
    idle_transactions(findings, &facts);
    let zone = config.time_zone;
    time_zones::check_sessions(findings, database, zone).await?;
    // Apart: the one connection must be free for the orders.
    let missing = migrate::missing(&mut *database.pool.acquire().await?).await?;
    match missing {
        0 => {
            findings.good("the schema is up to date");
            match tables_and_rights(&mut *database.pool.acquire().await?).await {
                Ok(()) => findings.good("the tables can be written"),
                Err(error) => findings.fail(&format!("{error:#}"), "repair it before a start"),
            }
            time_zones::check_ids(findings, database, zone).await?;
        }
        steps => {
            findings.fail(&format!("{steps} migration steps are missing"), "run `seckill migrate`")
        }
    }
    Ok(())
}

/// Says when the server ends a transaction whose client was stopped or cut off.
fn idle_transactions(findings: &mut Findings, facts: &ServerFacts) {
    match &facts.own_idle {
        Some(limit) if limit.seconds <= MAX_IDLE => findings.good(&format!(
            "a transaction of this service that is left open ends after {} s ({})",
            limit.seconds, limit.setting
        )),
        _ => findings.warn(
            "a transaction of this service that is left open keeps its rows locked for long",
            "the server ignores the session's setting; use MariaDB 10.3 or MySQL 5.7, or newer",
        ),
    }
    match &facts.idle {
        Some(limit) if limit.seconds <= MAX_IDLE => {}
        limit => {
            let after = match limit {
                Some(IdleLimit { seconds, setting }) => {
                    format!("only after {seconds} s ({setting})")
                }
                None => "never".to_owned(),
            };
            findings.warn(
                &format!("a transaction that another client, such as a Java node, leaves open ends {after}"),
                "set idle_write_transaction_timeout=10 on MariaDB, a lower wait_timeout on MySQL",
            );
        }
    }
}
