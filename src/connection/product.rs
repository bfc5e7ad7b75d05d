//! The family that a database server belongs to, by the version that it states.

use sqlx::MySqlConnection;

/// The families. A server that is compatible with one of them counts as that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    MariaDb,
    MySql,
    /// Its time limits are settings of its own; it accepts those of MySQL and ignores them.
    OceanBase,
}

impl Product {
    /// The family of a server with this version.
    pub fn from_version(version: &str) -> Self {
        if version.contains("OceanBase") {
            Product::OceanBase
        } else if version.contains("MariaDB") {
            Product::MariaDb
        } else {
            Product::MySql
        }
    }
}

/// The version that the server states.
pub async fn version(connection: &mut MySqlConnection) -> sqlx::Result<String> {
    sqlx::query_scalar("SELECT VERSION()")
        .fetch_one(connection)
        .await
}
