//! Whether a database server is one that the migrations and the service can use: its product and version, that it is the only
//! one that takes writes, and that it does.

use std::collections::HashMap;

use anyhow::{bail, ensure};
use sqlx::MySqlConnection;

/// The oldest versions that are supported, of MariaDB and of MySQL.
const OLDEST: [(u32, u32); 2] = [(10, 5), (8, 0)];

/// Products that speak this protocol and are not known to decide an order by its primary key, whatever version they state.
const UNTRIED: [&str; 2] = ["TiDB", "Vitess"];

/// What says of a server that others beside it take writes as well.
const SEVERAL_WRITERS: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
     ('wsrep_on', 'group_replication_group_name', 'group_replication_single_primary_mode')";

/// Checks all of that.
///
/// # Errors
/// What must be repaired, as a sentence for the administrator; or the driver's.
pub async fn version_and_writable(connection: &mut MySqlConnection) -> anyhow::Result<()> {
    let version: String = sqlx::query_scalar("SELECT VERSION()")
        .fetch_one(&mut *connection)
        .await?;
    if let Some(product) = UNTRIED.iter().find(|product| version.contains(**product)) {
        bail!(
            "the database of DATABASE_URL is {product} ({version}), where it is not known that of two rows under one key only one \
             is ever committed as this service needs it; use MySQL, MariaDB, or a service that runs one of them"
        );
    }
    ensure!(
        is_supported(&version),
        "the database of DATABASE_URL is version {version}; MySQL 8.0 or MariaDB 10.5, or newer, is needed"
    );
    let settings: Vec<(String, String)> = sqlx::query_as(SEVERAL_WRITERS)
        .fetch_all(&mut *connection)
        .await?;
    if let Some(cluster) = cluster_of_writers(&settings.into_iter().collect()) {
        bail!(
            "the database of DATABASE_URL is a node of {cluster}, where a row that one node has inserted keeps another node from \
             no insert: an order could be denied and exist. Use a server with one primary"
        );
    }
    ensure!(
        takes_writes(connection).await?,
        "the database of DATABASE_URL is read-only, as a replica is: name the primary, or set read_only=OFF"
    );
    Ok(())
}

/// The cluster whose nodes all take writes, if the server with these settings is one of them.
fn cluster_of_writers(settings: &HashMap<String, String>) -> Option<&'static str> {
    let is = |name: &str, values: [&str; 2]| {
        let value = settings.get(name);
        value.is_some_and(|value| values.contains(&value.as_str()))
    };
    let group = settings.get("group_replication_group_name");
    if is("wsrep_on", ["ON", "1"]) {
        Some("a Galera cluster (wsrep_on)")
    } else if group.is_some_and(|name| !name.is_empty())
        && is("group_replication_single_primary_mode", ["OFF", "0"])
    {
        Some("Group Replication with several primaries")
    } else {
        None
    }
}

/// Whether the server takes writes: it is no replica, and was not made read-only.
pub(super) async fn takes_writes(connection: &mut MySqlConnection) -> sqlx::Result<bool> {
    // Aurora's readers have only the last. As text: MariaDB 12 has other values than ON and OFF.
    let query = "SELECT CAST(@@GLOBAL.read_only AS CHAR), CAST(@@GLOBAL.innodb_read_only AS CHAR)";
    let (server, engine): (String, String) = sqlx::query_as(query).fetch_one(connection).await?;
    Ok([server, engine]
        .iter()
        .all(|value| matches!(value.as_str(), "OFF" | "0")))
}

/// Whether this version, as the server states it, is supported.
fn is_supported(version: &str) -> bool {
    let mut numbers = version
        .split(['.', '-'])
        .map(|number| number.parse::<u32>().unwrap_or(0));
    let version_of = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version_of >= OLDEST[usize::from(!version.contains("MariaDB"))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_the_products_write_them() {
        for supported in [
            "10.5.0-MariaDB",
            "10.11.6-MariaDB-0+deb12u1",
            "8.0.36",
            "9.1.0",
        ] {
            assert!(is_supported(supported), "{supported}");
        }
        assert!(
            UNTRIED
                .iter()
                .any(|product| "8.0.11-TiDB-v8.5.1".contains(product))
        );
        for old in ["5.7.44-log", "10.4.34-MariaDB", "5.6.0", "unknown"] {
            assert!(!is_supported(old), "{old}");
        }
    }
    #[test]
    fn a_server_beside_which_others_take_writes_is_recognised() {
        let cluster = |settings: &[(&str, &str)]| {
            let owned = settings
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_string()));
            cluster_of_writers(&owned.collect())
        };
        let group = ("group_replication_group_name", "aaaaaaaa-aaaa");
        let single = "group_replication_single_primary_mode";
        assert_eq!(cluster(&[("wsrep_on", "OFF")]), None);
        assert_eq!(cluster(&[group, (single, "ON")]), None);
        // The plugin is loaded, and the server is in no group.
        let none = ("group_replication_group_name", "");
        assert_eq!(cluster(&[none, (single, "OFF")]), None);
        assert!(cluster(&[("wsrep_on", "ON")]).is_some());
        assert!(cluster(&[group, (single, "OFF")]).is_some());
    }
}
