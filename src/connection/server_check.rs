//! Whether the migrations and the service can use a database server: its product and version, whether it takes writes, and
//! whether it is the only one that does.

use std::collections::HashMap;

use anyhow::{bail, ensure};
use sqlx::MySqlConnection;

use super::product::{self, Product};

/// Products that speak MySQL's protocol, and of which it is not known that an order can be decided by its primary key. They are
/// refused whatever version they state. Each has a text that `VERSION()` or the version's comment contains, and a name.
const UNTRIED: [(&str, &str); 7] = [
    ("TiDB", "TiDB"),
    ("Vitess", "Vitess"),
    ("TDDL", "PolarDB-X"),
    ("PolarDB-X", "PolarDB-X"),
    ("Dolt", "Dolt"),
    ("Xpand", "MariaDB Xpand"),
    ("SingleStore", "SingleStore"),
];

/// The settings that say whether other servers of the same cluster take writes as well.
const SEVERAL_WRITERS: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
     ('wsrep_on', 'group_replication_group_name', 'group_replication_single_primary_mode')";

/// Checks the product and the version, that the server takes writes, and that it is the only one that does.
///
/// # Errors
/// What must be repaired, as a sentence for the administrator; or the driver's.
pub async fn version_and_writable(connection: &mut MySqlConnection) -> anyhow::Result<()> {
    let version = product::version(connection).await?;
    let comment: String = sqlx::query_scalar("SELECT @@version_comment")
        .fetch_one(&mut *connection)
        .await?;
    if let Some(product) = untried(&version, &comment) {
        bail!(
            "the database of DATABASE_URL is {product} ({version}), where it is not known that of two rows under one key only one \
             is ever committed as this service needs it; use MySQL, MariaDB, OceanBase, or a service that runs one of them"
        );
    }
    let product = Product::from_version(&version);
    let stated = match product {
        Product::MariaDb | Product::MySql => version,
        // Its VERSION() begins with the version of MySQL that it resembles.
        Product::OceanBase => comment,
    };
    ensure!(
        is_supported(product, &stated),
        "the database of DATABASE_URL is version {stated}; MySQL 8.0, MariaDB 10.5 or OceanBase 4.3, or newer, is needed"
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

/// The product with this version and comment, where it is one of [`UNTRIED`].
fn untried(version: &str, comment: &str) -> Option<&'static str> {
    let (_, product) = UNTRIED
        .iter()
        .find(|(sign, _)| version.contains(sign) || comment.contains(sign))?;
    Some(product)
}

/// The cluster whose nodes all take writes, if the server with these settings is one of them.
fn cluster_of_writers(settings: &HashMap<String, String>) -> Option<&'static str> {
    let is_set_to = |name: &str, values: [&str; 2]| {
        let value = settings.get(name);
        value.is_some_and(|value| values.contains(&value.as_str()))
    };
    let group = settings.get("group_replication_group_name");
    if is_set_to("wsrep_on", ["ON", "1"]) {
        Some("a Galera cluster (wsrep_on)")
    } else if group.is_some_and(|name| !name.is_empty())
        && is_set_to("group_replication_single_primary_mode", ["OFF", "0"])
    {
        Some("Group Replication with several primaries")
    } else {
        None
    }
}

/// Whether the server takes writes: it is no replica, and was not made read-only.
pub(super) async fn takes_writes(connection: &mut MySqlConnection) -> sqlx::Result<bool> {
    // Aurora's readers set only `innodb_read_only`. As text, because MariaDB 12 has other values than ON and OFF.
    let query = "SELECT CAST(@@GLOBAL.read_only AS CHAR), CAST(@@GLOBAL.innodb_read_only AS CHAR)";
    let (server, engine): (String, String) = sqlx::query_as(query).fetch_one(connection).await?;
    Ok([server, engine]
        .iter()
        .all(|value| matches!(value.as_str(), "OFF" | "0")))
}

/// Whether this version, as the server states it, is supported.
fn is_supported(product: Product, stated: &str) -> bool {
    let oldest = match product {
        Product::MariaDb => (10, 5),
        Product::MySql => (8, 0),
        Product::OceanBase => (4, 3),
    };
    let mut words = stated.split(' ');
    let version = words.find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    let mut numbers = version
        .unwrap_or_default()
        .split(['.', '-'])
        .map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= oldest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_the_products_write_them() {
        use Product::{MariaDb, MySql, OceanBase};
        for (product, supported) in [
            (MariaDb, "10.5.0-MariaDB"),
            (MariaDb, "10.11.6-MariaDB-0+deb12u1"),
            (MySql, "8.0.36"),
            (MySql, "9.1.0"),
            (
                OceanBase,
                "OceanBase 4.3.5.3 seekdb (r1.4.0.0) (Built 1-d0cb)",
            ),
            (OceanBase, "OceanBase_CE 4.3.0.1 (r100000242024032211)"),
        ] {
            assert!(is_supported(product, supported), "{supported}");
        }
        for (product, old) in [
            (MySql, "5.7.44-log"),
            (MariaDb, "10.4.34-MariaDB"),
            (MySql, "5.6.0"),
            (MySql, "unknown"),
            (OceanBase, "OceanBase 4.2.1.1 (r101010012023111012)"),
        ] {
            assert!(!is_supported(product, old), "{old}");
        }
        assert_eq!(
            Product::from_version("5.7.25-OceanBase-v4.3.5.1"),
            OceanBase
        );
        assert_eq!(untried("8.0.11-TiDB-v8.5.1", ""), Some("TiDB"));
        assert_eq!(untried("8.0.33", "Dolt"), Some("Dolt"));
        assert_eq!(untried("8.0.36", "MySQL Community Server - GPL"), None);
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
