//! `doctor`: what "committed" means on this database, by its settings: whether an order survives a power cut, and whether
//! it survives the loss of the server.

use std::collections::HashMap;

use super::findings::Findings;
use crate::connection::mysql::{self, Database};

/// Global variables and status values, by name. Those that a product does not have are absent.
type Values = HashMap<String, String>;

/// Reads the settings, and says what they mean.
pub(super) async fn check(findings: &mut Findings, database: &Database) -> anyhow::Result<()> {
    // MySQL 8.4 renamed `master` to `source`.
    let queries = [
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'log_bin', \
         'sync_binlog', 'read_only', 'wsrep_on') OR Variable_name LIKE 'rpl_semi_sync_%'",
        "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_%'",
    ];
    let mut values = Values::new();
    for query in queries {
        let rows = mysql::show(database, query).await?;
        let usual = |name: String| name.to_lowercase().replace("_source_", "_master_");
        values.extend(rows.into_iter().map(|(name, value)| (usual(name), value)));
    }
    for Statement { kind, what, advice } in statements(&values) {
        match kind {
            Kind::Good => findings.good(&what),
            Kind::Warning => findings.warn(&what, advice),
            Kind::Failure => findings.fail(&what, advice),
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Good,
    Warning,
    Failure,
}

/// One line of the report; `advice` is empty where all is well.
struct Statement {
    kind: Kind,
    what: String,
    advice: &'static str,
}

fn statements(values: &Values) -> Vec<Statement> {
    let of = |name: &str| values.get(name).map_or("", String::as_str);
    let on = |name: &str| matches!(of(name).to_uppercase().as_str(), "ON" | "1" | "YES");
    let mut found = Vec::new();
    let mut add = |kind, what: String, advice| found.push(Statement { kind, what, advice });

    if on("read_only") {
        add(
            Kind::Failure,
            "the server is read-only, as replicas are".to_owned(),
            "point DATABASE_URL at the primary, or set read_only=OFF",
        );
    }

    let (flush, sync) = (of("innodb_flush_log_at_trx_commit"), of("sync_binlog"));
    if flush != "1" {
        add(
            Kind::Warning,
            format!("innodb_flush_log_at_trx_commit={flush}"),
            "a confirmed order can be lost in a power cut; set it to 1",
        );
    } else if on("log_bin") && sync != "1" {
        // Recovery rolls back what is prepared in InnoDB and absent from the binary log.
        add(
            Kind::Warning,
            format!("sync_binlog={sync}, with the binary log on"),
            "a confirmed order can be lost in a power cut; set it to 1",
        );
    } else {
        let with = if on("log_bin") { ", sync_binlog=1" } else { ", no binary log" };
        add(
            Kind::Good,
            format!("commits survive a power cut (innodb_flush_log_at_trx_commit=1{with})"),
            "",
        );
    }

    if on("wsrep_on") {
        add(
            Kind::Warning,
            "the server is a node of a Galera cluster".to_owned(),
            "let one node take all writes: docs/OPERATIONS.md, \"A database that fails over\"",
        );
    } else if !on("log_bin") {
        add(Kind::Good, "no replica: it has no binary log".to_owned(), "");
    } else if !on("rpl_semi_sync_master_enabled") {
        add(
            Kind::Warning,
            "commits do not wait for a replica".to_owned(),
            "if a replica may take over, use semi-synchronous replication with AFTER_SYNC, or confirmed orders can be lost",
        );
    } else {
        let (point, replicas) =
            (of("rpl_semi_sync_master_wait_point"), of("rpl_semi_sync_master_clients"));
        let timeout = of("rpl_semi_sync_master_timeout");
        if !on("rpl_semi_sync_master_status") || replicas == "0" {
            add(
                Kind::Warning,
                format!("semi-synchronous replication has no replica now ({replicas} connected)"),
                "commits are asynchronous: a failover loses confirmed orders; connect the replica",
            );
        } else if point != "AFTER_SYNC" {
            add(
                Kind::Warning,
                format!("rpl_semi_sync_…_wait_point={point}"),
                "others can read, and confirm, an order that a failover loses; set it to AFTER_SYNC",
            );
        } else {
            add(
                Kind::Good,
                format!(
                    "commits wait for one of {replicas} replicas (AFTER_SYNC), for at most {timeout} ms, \
                     after which they are asynchronous"
                ),
                "",
            );
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURABLE: [(&str, &str); 3] =
        [("innodb_flush_log_at_trx_commit", "1"), ("sync_binlog", "1"), ("log_bin", "ON")];
    const SEMI_SYNC: [(&str, &str); 4] = [
        ("rpl_semi_sync_master_enabled", "ON"),
        ("rpl_semi_sync_master_status", "ON"),
        ("rpl_semi_sync_master_clients", "1"),
        ("rpl_semi_sync_master_wait_point", "AFTER_SYNC"),
    ];

    /// The report for these settings, those that come later standing; each line with its kind.
    fn report(settings: &[(&str, &str)]) -> Vec<(Kind, String)> {
        let all = DURABLE.iter().chain(&SEMI_SYNC).chain(settings);
        let values = all.map(|(name, value)| (name.to_string(), value.to_string())).collect();
        statements(&values).into_iter().map(|found| (found.kind, found.what)).collect()
    }

    #[test]
    fn a_durable_primary_with_a_semi_synchronous_replica_is_good() {
        let report = report(&[]);
        assert_eq!(report.len(), 2);
        assert!(report.iter().all(|(kind, _)| *kind == Kind::Good), "{report:?}");
    }

    #[test]
    fn each_setting_that_can_lose_an_order_is_named() {
        for (settings, says) in [
            (&[("innodb_flush_log_at_trx_commit", "2")][..], "innodb_flush_log_at_trx_commit=2"),
            (&[("sync_binlog", "0")], "sync_binlog=0"),
            (&[("rpl_semi_sync_master_enabled", "OFF")], "do not wait for a replica"),
            (&[("rpl_semi_sync_master_status", "OFF")], "has no replica now"),
            (&[("rpl_semi_sync_master_clients", "0")], "has no replica now"),
            (&[("rpl_semi_sync_master_wait_point", "AFTER_COMMIT")], "wait_point=AFTER_COMMIT"),
            (&[("wsrep_on", "ON")], "Galera"),
        ] {
            let report = report(settings);
            let warned = report.iter().filter(|(kind, _)| *kind == Kind::Warning);
            let warned: Vec<_> = warned.map(|(_, what)| what.as_str()).collect();
            assert!(matches!(warned[..], [one] if one.contains(says)), "{settings:?}: {report:?}");
        }
    }

    #[test]
    fn a_server_without_a_binary_log_has_no_replica_and_needs_no_sync_of_it() {
        let report = report(&[("log_bin", "OFF"), ("sync_binlog", "0")]);
        assert!(report.iter().all(|(kind, _)| *kind == Kind::Good), "{report:?}");
    }

    #[test]
    fn a_read_only_server_is_a_failure() {
        assert_eq!(report(&[("read_only", "ON")])[0].0, Kind::Failure);
    }
}
