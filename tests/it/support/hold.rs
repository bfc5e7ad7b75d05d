//! Stops one purchase inside the database until it is released, so that others run at the very moment at which their strategy
//! may break.

use sqlx::mysql::MySql;
use sqlx::pool::PoolConnection;

use super::database::TestDatabase;

/// A trigger that makes the first row wait for a named lock. Rows that come while it waits pass.
pub struct Hold {
    gate: PoolConnection<MySql>,
}

impl Hold {
    /// Creates the trigger at this event, such as `AFTER INSERT ON tb_voucher_order`, for rows that fulfil a condition on `NEW`.
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

    /// Lets the row go on. Later rows do not wait.
    pub async fn release(mut self) {
        sqlx::query("DO RELEASE_LOCK(CONCAT(DATABASE(), '.gate'))")
            .execute(&mut *self.gate)
            .await
            .unwrap();
    }
}
