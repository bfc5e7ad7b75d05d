//! Tuned one-transaction-per-order: what a careful engineer writes for a flash sale on a relational database, without
//! group commit and without a lock.
//!
//! Tuned: the order is inserted first and the hot stock row updated last, so that it is locked for one statement and
//! the commit only; prepared statements, READ COMMITTED, `autocommit = 0` instead of a BEGIN (three round trips per
//! order), no ping before a connection is used, nodelay, mimalloc. The driver's pool pings each connection when it is
//! handed back, beside the reply: a fourth round trip, which has no setting. **It does less than the service**: no
//! session check (a token is the user's id) and no ids from Redis (a counter in memory), no check of the sale's window, no
//! limits, no log. The same unique index refuses second orders, as errors: in the benchmark there are none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use chrono::Utc;
use sqlx::mysql::{MySqlConnection, MySqlPoolOptions};
use sqlx::{Executor, MySqlPool};

/// Connections to the database.
const CONNECTIONS: u32 = 32;

/// Its addresses.
#[derive(Debug, clap::Args)]
pub struct Settings {
    /// Address to listen on
    #[arg(long)]
    pub bind: SocketAddr,
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
}

struct App {
    pool: MySqlPool,
    /// The next order's id; no earlier process has used it.
    next_id: AtomicI64,
}

pub async fn router(settings: &Settings) -> anyhow::Result<Router> {
    let pool = MySqlPoolOptions::new()
        .max_connections(CONNECTIONS)
        .test_before_acquire(false)
        .after_connect(|connection, _| {
            Box::pin(async move {
                connection
                    .execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                    .await?;
                connection.execute("SET autocommit = 0").await.map(drop)
            })
        })
        .connect(&settings.database_url)
        .await?;
    let next_id = AtomicI64::new(Utc::now().timestamp_micros());
    Ok(Router::new()
        .route("/voucher-order/seckill/{id}", post(buy))
        .route("/health/ready", any(|| async {}))
        .with_state(Arc::new(App { pool, next_id })))
}

async fn buy(
    State(app): State<Arc<App>>,
    UrlPath(voucher): UrlPath<u64>,
    headers: HeaderMap,
) -> Response {
    let token = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(user) = token.and_then(|token| u64::from_str_radix(token, 16).ok()) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let (status, body) = match order(&app, user, voucher).await {
        Ok(Some(id)) => {
            (StatusCode::OK, format!(r#"{{"success":true,"data":{id},"orderId":"{id}"}}"#))
        }
        Ok(None) => (StatusCode::OK, r#"{"success":false,"code":"SOLD_OUT"}"#.to_owned()),
        // The order may exist; the audit treats it so.
        Err(_) => {
            let body = r#"{"success":false,"code":"OUTCOME_UNKNOWN"}"#;
            (StatusCode::SERVICE_UNAVAILABLE, body.to_owned())
        }
    };
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}

/// The order's id; `None` when nothing is left.
async fn order(app: &App, user: u64, voucher: u64) -> anyhow::Result<Option<i64>> {
    let id = app.next_id.fetch_add(1, Ordering::Relaxed);
    let mut connection = app.pool.acquire().await?;
    let outcome = transact(&mut connection, id, user, voucher).await;
    if outcome.is_err() {
        // Its transaction may be open: the server rolls back when the connection closes.
        connection.close_on_drop();
    }
    Ok(outcome?.then_some(id))
}

/// Whether it made the order.
async fn transact(
    connection: &mut MySqlConnection,
    id: i64,
    user: u64,
    voucher: u64,
) -> sqlx::Result<bool> {
    let insert =
        sqlx::query("INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES (?, ?, ?)");
    insert.bind(id).bind(user).bind(voucher).execute(&mut *connection).await?;
    let decrement = sqlx::query(
        "UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id = ? AND stock > 0",
    );
    let decremented = decrement.bind(voucher).execute(&mut *connection).await?.rows_affected() > 0;
    connection.execute(if decremented { "COMMIT" } else { "ROLLBACK" }).await?;
    Ok(decremented)
}
