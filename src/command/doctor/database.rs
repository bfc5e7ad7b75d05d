//! `doctor`: the database: whether it can be used, and what "committed" means on it: whether an order survives a power cut,
//! and the loss of the server.

use chrono::{FixedOffset, Offset, TimeDelta, Utc};

use super::findings::Findings;
use crate::clock::Zone;
use crate::connection::database_check::ready_to_serve;
use crate::connection::mysql::Database;
use crate::connection::server_settings::ServerSettings;
use crate::order::store::OrderStore;

/// A transaction that nobody goes on with should end within this time, seconds: until then it may hold a sale's row.
const MAX_IDLE: u64 = 60;

/// Clocks further apart than this are worth a warning.
const MAX_SKEW: TimeDelta = TimeDelta::seconds(2);

/// Checks what a start checks, durability, rights, connections, clock, idle transactions and time zones.
pub(super) async fn check(
    findings: &mut Findings,
    database: &Database,
    zone: Zone,
    connections: u32,
) -> anyhow::Result<()> {
    let is_ready = findings.end(ready_to_serve(database).await).is_some();
    let server = ServerSettings::of(database).await?;
    for durability in [power_cut(&server), loss_of_the_server(&server)] {
        match durability {
            Ok(what) => findings.good(&what),
            Err((what, advice)) => findings.warn(&what, advice),
        }
    }
    if !server.writes_anyway.is_empty() {
        let rights = server.writes_anyway.join(", ");
        findings.warn(
            &format!("the user may write to a read-only server ({rights})"),
            "revoke it: after a failover, an order could be written to the old primary alone",
        );
    }
    let accepted = server.number("max_connections").unwrap_or_default();
    if accepted < 2 * u64::from(connections) {
        findings.warn(
            &format!("max_connections={accepted} for {connections} an instance"),
            "raise it, or lower --database-connections",
        );
    }
    let skew = (server.now.and_utc() - Utc::now()).abs();
    if skew > MAX_SKEW {
        findings.warn(
            &format!("the database's clock is {} s away from this node's", skew.num_seconds()),
            "run a time service on every machine; sales follow the database's clock",
        );
    }
    let settings = ["idle_transaction_timeout", "idle_write_transaction_timeout", "wait_timeout"];
    // 0 means never.
    let idle =
        settings.into_iter().filter_map(|name| server.number(name)).filter(|limit| *limit > 0);
    if idle.min().is_none_or(|limit| limit > MAX_IDLE) {
        findings.warn(
            "a transaction that another client, such as a Java node, leaves open keeps its rows locked for long",
            "set idle_write_transaction_timeout=10 on MariaDB, a lower wait_timeout on MySQL",
        );
    }
    default_zone(findings, &server, zone);
    if is_ready {
        findings.good("its version, tables and rights are those that are needed");
        zones_of_ids(findings, &OrderStore::new(database.clone(), zone), zone).await?;
    }
    Ok(())
}

/// Good, or worth a warning: what, and the advice.
type Durability = Result<String, (String, &'static str)>;

/// Whether a commit survives a power cut.
fn power_cut(server: &ServerSettings) -> Durability {
    let advice = "a confirmed order can be lost in a power cut; set it to 1";
    let flush = server.text("innodb_flush_log_at_trx_commit");
    if flush != "1" {
        return Err((format!("innodb_flush_log_at_trx_commit={flush}"), advice));
    }
    // Recovery rolls back what is prepared in InnoDB and absent from the binary log.
    match (server.is_on("log_bin"), server.text("sync_binlog")) {
        (true, "1") => Ok("commits survive a power cut, with a binary log".to_owned()),
        (true, sync) => Err((format!("sync_binlog={sync}, with the binary log on"), advice)),
        (false, _) => Ok("commits survive a power cut, without a binary log".to_owned()),
    }
}

/// Whether a commit survives the loss of the server.
fn loss_of_the_server(server: &ServerSettings) -> Durability {
    let replicas = server.text("rpl_semi_sync_master_clients");
    let (what, advice) = if server.is_on("wsrep_on") {
        (
            "the server is a node of a Galera cluster",
            "let one node take all writes: docs/OPERATIONS.md, \"A database that fails over\"",
        )
    } else if !server.is_on("log_bin") {
        return Ok("no replica: it has no binary log".to_owned());
    } else if !server.is_on("rpl_semi_sync_master_enabled") {
        (
            "commits do not wait for a replica",
            "if a replica may take over, use semi-synchronous replication with AFTER_SYNC, or confirmed orders can be lost",
        )
    } else if !server.is_on("rpl_semi_sync_master_status") || replicas == "0" {
        (
            "semi-synchronous replication has no replica now",
            "commits are asynchronous: a failover loses confirmed orders; connect the replica",
        )
    } else if server.text("rpl_semi_sync_master_wait_point") != "AFTER_SYNC" {
        (
            "rpl_semi_sync_…_wait_point is not AFTER_SYNC",
            "others can read, and confirm, an order that a failover loses; set it to AFTER_SYNC",
        )
    } else {
        return Ok(format!(
            "commits wait for one of {replicas} replicas (AFTER_SYNC), for at most {} ms, after which they are asynchronous",
            server.text("rpl_semi_sync_master_timeout")
        ));
    };
    Err((what.to_owned(), advice))
}

/// Compares the zone of a session that sets none, as a Java node's may, with ours.
fn default_zone(findings: &Findings, server: &ServerSettings, zone: Zone) {
    let own = seconds_ahead(zone);
    let of_server = server.zone_offset.map_or("unknown".to_owned(), offset);
    if server.zone_offset != Some(own) {
        findings.warn(
            &format!("a session that sets no time zone is at {of_server}; ours is {}", offset(own)),
            &format!(
                "beside a Java node: its JDBC address needs \
                 connectionTimeZone={}&forceConnectionTimeZoneToSession=true, or sales begin at another time there",
                offset(own).replace('+', "%2B")
            ),
        );
    }
}

/// Compares the zones in which the last order ids were made with ours.
async fn zones_of_ids(findings: &Findings, store: &OrderStore, zone: Zone) -> anyhow::Result<()> {
    let (own, found) = (seconds_ahead(zone), store.offsets_of_ids().await?);
    let all: i64 = found.iter().map(|(_, orders)| orders).sum();
    for (ahead, orders) in found.into_iter().filter(|(ahead, _)| *ahead != own) {
        findings.warn(
            &format!("{orders} of the last {all} orders have ids made at {}", offset(ahead)),
            &format!(
                "a node runs in another time zone: its ids do not rise with those of the others, and it reads the times \
                 of sales in its own zone; start its JVM with -Duser.timezone={0}, or our node with --time-zone {0}",
                zone.0
            ),
        );
    }
    Ok(())
}

fn seconds_ahead(zone: Zone) -> i64 {
    i64::from(Utc::now().with_timezone(&zone.0).offset().fix().local_minus_utc())
}

/// Such as `+08:00`.
fn offset(seconds: i64) -> String {
    let offset = i32::try_from(seconds).ok().and_then(FixedOffset::east_opt);
    offset.map_or_else(|| format!("{seconds} s"), |offset| offset.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 7] = [
        ("innodb_flush_log_at_trx_commit", "1"),
        ("sync_binlog", "1"),
        ("log_bin", "ON"),
        ("rpl_semi_sync_master_enabled", "ON"),
        ("rpl_semi_sync_master_status", "ON"),
        ("rpl_semi_sync_master_clients", "1"),
        ("rpl_semi_sync_master_wait_point", "AFTER_SYNC"),
    ];

    #[test]
    fn each_setting_that_can_lose_an_order_is_named() {
        for (name, value, says) in [
            ("log_bin", "OFF", ""),
            ("innodb_flush_log_at_trx_commit", "2", "innodb_flush_log_at_trx_commit=2"),
            ("sync_binlog", "0", "sync_binlog=0"),
            ("rpl_semi_sync_master_enabled", "OFF", "do not wait for a replica"),
            ("rpl_semi_sync_master_status", "OFF", "has no replica now"),
            ("rpl_semi_sync_master_clients", "0", "has no replica now"),
            ("rpl_semi_sync_master_wait_point", "AFTER_COMMIT", "wait_point"),
            ("wsrep_on", "ON", "Galera"),
        ] {
            let values = GOOD.into_iter().chain([(name, value)]);
            let values = values.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let server = ServerSettings { values, ..Default::default() };
            let found = [power_cut(&server), loss_of_the_server(&server)];
            let warned: Vec<_> = found.into_iter().filter_map(Result::err).collect();
            match &warned[..] {
                [] => assert_eq!(says, "", "{name}={value}"),
                [(what, _)] => assert!(!says.is_empty() && what.contains(says), "{what}"),
                two => panic!("{name}={value}: {two:?}"),
            }
        }
    }
}
