//! Which family of servers a database is of, by the version that it states.

use sqlx::MySqlConnection;

/// The families. What a service runs that is compatible with one of them counts as that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    MariaDb,
    MySql,
    /// Its limits of time are settings of its own; those of MySQL it takes and ignores.
    OceanBase,
}

impl Product {
    /// That of a server with this version.
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
