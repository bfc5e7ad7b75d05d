//! What a database server says of itself, for `doctor`.

use std::collections::HashMap;

use super::mysql::Database;

const VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'log_bin', \
     'sync_binlog', 'wsrep_on', 'max_connections', 'max_user_connections') OR Variable_name LIKE 'rpl_semi_sync_%'";

const STATUS: &str = "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_%'";

/// The clock in UTC, and how far a session that sets no time zone is ahead of it.
const CLOCK: &str = "SELECT UTC_TIMESTAMP(6), CAST(TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), \
     CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', @@global.time_zone)) AS SIGNED)";

/// The user's rights to write on a read-only server: SUPER on older servers, CONNECTION_ADMIN on MySQL, READ_ONLY ADMIN on
/// MariaDB.
const WRITES_ANYWAY: &str = "SELECT PRIVILEGE_TYPE FROM information_schema.USER_PRIVILEGES \
     WHERE REPLACE(GRANTEE, '''', '') = CURRENT_USER() \
     AND PRIVILEGE_TYPE IN ('SUPER', 'CONNECTION_ADMIN', 'READ_ONLY ADMIN')";

/// A server's settings.
#[derive(Debug, Default)]
pub struct ServerSettings {
    /// Global variables and status values by their names in lower case. Those that a product does not have are absent.
    pub values: HashMap<String, String>,
    /// The server's clock, UTC.
    pub now: chrono::NaiveDateTime,
    /// Seconds that a session without a time zone is ahead of UTC; `None` where the server does not know its own zone.
    pub zone_offset: Option<i64>,
    /// The user's rights with which a read-only server takes writes.
    pub writes_anyway: Vec<String>,
}

impl ServerSettings {
    /// Asks the server.
    pub async fn read_from(database: &Database) -> sqlx::Result<Self> {
        let mut settings = ServerSettings::default();
        for query in [VARIABLES, STATUS] {
            let rows = database
                .read(async |c| sqlx::query_as(query).fetch_all(c).await)
                .await;
            let rows: Vec<(String, String)> = rows?;
            for (name, value) in rows {
                // MySQL 8.4 renamed `master` to `source`.
                let usual_name = name.to_lowercase().replace("_source_", "_master_");
                settings.values.insert(usual_name, value);
            }
        }
        let clock = database.read(async |c| sqlx::query_as(CLOCK).fetch_one(c).await);
        (settings.now, settings.zone_offset) = clock.await?;
        let rights = database.read(async |c| sqlx::query_scalar(WRITES_ANYWAY).fetch_all(c).await);
        settings.writes_anyway = rights.await?;
        Ok(settings)
    }

    /// A value; empty where the server has none.
    pub fn text(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    /// Whether a switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        matches!(self.text(name).to_uppercase().as_str(), "ON" | "1" | "YES")
    }
}
