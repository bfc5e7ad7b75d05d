//! Time zones of the database's sessions: ours, and the one that a connection gets that sets none, as a Java node's may.

use super::mysql::Database;

/// What `doctor` compares.
#[derive(Debug)]
pub struct TimeZones {
    /// The zone of a connection that sets none, such as `SYSTEM (CST)`.
    pub default_name: String,
    /// Seconds that it is ahead of UTC now; `None` where the server does not know its own zone by that name.
    pub default_offset: Option<i64>,
    /// Seconds that this service's sessions are ahead of UTC.
    pub session_offset: i64,
}

/// Queries [`TimeZones`].
pub async fn time_zones(database: &Database) -> sqlx::Result<TimeZones> {
    let query = sqlx::query_as::<_, (String, String, Option<i64>, i64)>(
        "SELECT @@global.time_zone, @@system_time_zone, \
         CAST(TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), \
           CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', @@global.time_zone)) AS SIGNED), \
         CAST(TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(), NOW()) AS SIGNED)",
    );
    let (global, system, default_offset, session_offset) =
        database.bounded(query.fetch_one(&database.pool)).await?;
    let default_name = if global == "SYSTEM" { format!("{global} ({system})") } else { global };
    Ok(TimeZones { default_name, default_offset, session_offset })
}
