//! Whether a database server is one that the migrations and the service can use: its version, and that it takes writes.

use anyhow::ensure;
use sqlx::MySqlConnection;

/// The oldest versions that are supported, of MariaDB and of MySQL.
const OLDEST: [(u32, u32); 2] = [(10, 5), (8, 0)];

/// Checks both.
///
/// # Errors
/// What must be repaired, as a sentence for the administrator; or the driver's.
pub async fn version_and_writable(connection: &mut MySqlConnection) -> anyhow::Result<()> {
    let version: String = sqlx::query_scalar("SELECT VERSION()")
        .fetch_one(&mut *connection)
        .await?;
    ensure!(
        is_supported(&version),
        "the database of DATABASE_URL is version {version}; MySQL 8.0 or MariaDB 10.5, or newer, is needed"
    );
    ensure!(
        takes_writes(connection).await?,
        "the database of DATABASE_URL is read-only, as a replica is: name the primary, or set read_only=OFF"
    );
    Ok(())
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
        for old in ["5.7.44-log", "10.4.34-MariaDB", "5.6.0", "unknown"] {
            assert!(!is_supported(old), "{old}");
        }
    }
}
