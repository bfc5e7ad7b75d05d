//! `doctor`'s checks of the database: whether it can be used, and whether a committed order survives a power cut, and the loss
//! of the server.

use anyhow::ensure;
use chrono::{FixedOffset, Offset, Utc};

use super::findings::Findings;
use crate::config::{CHANGE_CONNECTIONS, DoctorConfig};
use crate::connection::database_check::{Examination, examine, migrate_first};
use crate::connection::mysql::Database;
use crate::connection::server_settings::ServerSettings;
use crate::order::store::OrderStore;

/// Checks what a start checks, durability, room for connections, rights, clock and time zones. Says whether the tables can be
/// used.
pub(super) async fn check(
    findings: &mut Findings,
    database: &Database,
    config: &DoctorConfig,
) -> anyhow::Result<bool> {
    let zone = config.time_zone;
    let is_ready = check_tables(findings, database).await;
    let server = ServerSettings::read_from(database).await?;
    if let Some(room) = findings.value_or_fail(room_for_connections(&server, config)) {
        findings.good(&room);
    }
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
    let skew = (server.now.and_utc() - Utc::now()).num_seconds().abs();
    if skew > 2 {
        findings.warn(
            &format!("the database's clock is {skew} s away from this node's"),
            "run a time service on every machine; sales follow the database's clock",
        );
    }
    // A Java node's sessions may set no time zone.
    let own_offset = i64::from(
        Utc::now()
            .with_timezone(&zone.0)
            .offset()
            .fix()
            .local_minus_utc(),
    );
    if server.zone_offset != Some(own_offset) {
        let of_server = server.zone_offset.map_or("unknown".to_owned(), offset);
        findings.warn(
            &format!("a session that sets no time zone is at {of_server}; ours is {}", offset(own_offset)),
            &format!(
                "beside a Java node: its JDBC address needs \
                 connectionTimeZone={}&forceConnectionTimeZoneToSession=true, or sales begin at another time there",
                offset(own_offset).replace('+', "%2B")
            ),
        );
    }
    if is_ready {
        findings.good("its version, tables and rights are those that are needed");
        let ids = OrderStore::new(database.clone(), zone)
            .offsets_of_ids()
            .await?;
        let all: i64 = ids.iter().map(|(_, orders)| orders).sum();
        for (ahead, orders) in ids.into_iter().filter(|(ahead, _)| *ahead != own_offset) {
            findings.warn(
                &format!("{orders} of the last {all} orders have ids made at {}", offset(ahead)),
                &format!(
                    "a node runs in another time zone: its ids do not rise with those of the others, and it reads the times \
                     of sales in its own zone; start its JVM with -Duser.timezone={0}, or our node with --time-zone {0}",
                    zone.0
                ),
            );
        }
    }
    Ok(is_ready)
}

async fn check_tables(findings: &mut Findings, database: &Database) -> bool {
    let Some(Examination {
        missing_steps,
        deviations,
    }) = findings.value_or_fail(examine(database).await)
    else {
        return false;
    };
    if missing_steps > 0 {
        findings.fail(&migrate_first(missing_steps));
    }
    for deviation in &deviations.refused {
        findings.fail(&deviation.to_string());
    }
    for deviation in &deviations.borne {
        findings.warn(&deviation.what, &deviation.remedy);
    }
    missing_steps == 0 && deviations.refused.is_empty()
}

/// Whether the server lets an instance open all the connections that it may open.
fn room_for_connections(server: &ServerSettings, config: &DoctorConfig) -> anyhow::Result<String> {
    let purchases = config.database.database_connections;
    let reads = config.read_connections;
    let of_instance = config.database.of_instance(reads);
    let limits = ["max_connections", "max_user_connections"].into_iter();
    let limits = limits.filter_map(|name| Some((server.text(name).parse::<u32>().ok()?, name)));
    // 0 is no limit.
    let lowest = limits.filter(|(most, _)| *most > 0).min();
    let Some((most, name)) = lowest else {
        return Ok(format!("an instance may open {of_instance} connections"));
    };
    ensure!(
        most >= of_instance,
        "{name}={most}, and one instance may open {of_instance} connections (--database-connections {purchases}, \
         --read-connections {reads}, {CHANGE_CONNECTIONS} for payments, 1 for its readiness): purchases beyond it are answered 503. Raise it to \
         {of_instance} for each instance, one more for a rolling restart, or lower these options"
    );
    let instances = most / of_instance;
    Ok(format!(
        "{name}={most} has room for {instances} instances of {of_instance} connections each"
    ))
}

/// What was found: `Ok` where it is good, and with an advice where it is worth a warning.
type Durability = Result<String, (String, &'static str)>;

/// Whether a commit survives a power cut. Recovery rolls back what is prepared in InnoDB and absent from the binary log.
fn power_cut(server: &ServerSettings) -> Durability {
    let has_log = server.is_on("log_bin");
    let log = if has_log { "with" } else { "without" };
    let flush = server.text("innodb_flush_log_at_trx_commit");
    let sync = server.text("sync_binlog");
    if flush == "1" && (!has_log || sync == "1") {
        return Ok(format!("commits survive a power cut, {log} a binary log"));
    }
    let what =
        format!("innodb_flush_log_at_trx_commit={flush}, sync_binlog={sync}, {log} a binary log");
    Err((
        what,
        "a confirmed order can be lost in a power cut; set both to 1",
    ))
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
            "if one may take over, use semi-synchronous replication with AFTER_SYNC, or confirmed orders can be lost",
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
        let limit = server.text("rpl_semi_sync_master_timeout");
        return Ok(format!(
            "commits wait for one of {replicas} replicas (AFTER_SYNC), for at most {limit} ms, after which they are asynchronous"
        ));
    };
    Err((what.to_owned(), advice))
}

/// An offset from UTC, such as `+08:00`.
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
            (
                "innodb_flush_log_at_trx_commit",
                "2",
                "innodb_flush_log_at_trx_commit=2",
            ),
            ("sync_binlog", "0", "sync_binlog=0"),
            (
                "rpl_semi_sync_master_enabled",
                "OFF",
                "do not wait for a replica",
            ),
            ("rpl_semi_sync_master_status", "OFF", "has no replica now"),
            ("rpl_semi_sync_master_clients", "0", "has no replica now"),
            (
                "rpl_semi_sync_master_wait_point",
                "AFTER_COMMIT",
                "wait_point",
            ),
            ("wsrep_on", "ON", "Galera"),
        ] {
            let values = GOOD.into_iter().chain([(name, value)]);
            let values = values
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect();
            let server = ServerSettings {
                values,
                ..Default::default()
            };
            let found = [power_cut(&server), loss_of_the_server(&server)];
            let warned: Vec<String> = found
                .into_iter()
                .filter_map(|found| found.err().map(|(what, _)| what))
                .collect();
            assert_eq!(
                warned.len(),
                usize::from(!says.is_empty()),
                "{name}={value}: {warned:?}"
            );
            assert!(warned.iter().all(|what| what.contains(says)), "{warned:?}");
        }
    }
}
