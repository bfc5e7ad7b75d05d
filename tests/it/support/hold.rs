//! A purchase that stands still inside the database until told, so that others meet it where their strategy breaks.

use sqlx::mysql::MySql;
use sqlx::pool::PoolConnection;

use super::database::TestDatabase;

/// A trigger at which the first row to come waits for a named lock; rows that come meanwhile pass.
pub struct Hold {
    gate: PoolConnection<MySql>,
}

impl Hold {
    /// At this event, such as `AFTER INSERT ON tb_voucher_order`, for rows that fulfil a condition on `NEW`.
    pub async fn first(database: &TestDatabase, event: &str, condition: &str) -> Self {
        let [first, gate] = ["first", "gate"].map(|name| format!("CONCAT(DATABASE(), '.{name}')"));
        let mut connection = database.pool.acquire().await.unwrap();
        let closed: i64 = sqlx::query_scalar(&format!("SELECT GET_LOCK({gate}, 0)"))
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        assert_eq!(closed, 1, "nobody else holds anything here");
        // Both locks end with this connection, and so does the wait.
        let trigger = format!(
            "CREATE TRIGGER hold {event} FOR EACH ROW IF {condition} AND IS_FREE_LOCK({first}) THEN \
             DO GET_LOCK({first}, 0), GET_LOCK({gate}, 60), RELEASE_LOCK({gate}), RELEASE_LOCK({first}); \
             END IF"
        );
        database.run("DROP TRIGGER IF EXISTS hold").await;
        database.run(&trigger).await;
        Self { gate: connection }
    }

    /// Lets the row go on, and later ones without a stop.
    pub async fn release(mut self) {
        sqlx::query("DO RELEASE_LOCK(CONCAT(DATABASE(), '.gate'))")
            .execute(&mut *self.gate)
            .await
            .unwrap();
    }
}
