//! Tuned one-transaction-per-order: what a careful engineer writes for a flash sale on a relational database, without
//! group commit and without a lock.
//!
//! Tuned: the order is inserted first and the hot stock row updated last, so that it is locked for one statement and
//! the commit only; prepared statements, READ COMMITTED, `autocommit = 0` instead of a BEGIN (three round trips per
//! order), no ping before a connection is used, nodelay, mimalloc. The driver's pool pings each connection when it is
//! handed back, beside the reply: a fourth round trip, which has no setting. **It does less than the service**: no
//! session check and no ids from Redis (a map and a counter in memory), no check of the sale's window, no limits, no log.
//! The same unique index refuses second orders.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::Context;
use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use chrono::Utc;
use sqlx::mysql::{MySqlConnection, MySqlPoolOptions};
use sqlx::{Executor, MySqlPool};

use super::bare_route;

/// Connections to the database.
const CONNECTIONS: u32 = 32;

/// Addresses, and the buyers.
#[derive(Debug, clap::Args)]
pub struct Settings {
    /// Address to listen on
    #[arg(long)]
    bind: SocketAddr,
    /// File of lines `token user`
    #[arg(long)]
    buyers: PathBuf,
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
}

struct App {
    pool: MySqlPool,
    /// The next order's id; no earlier process has used it.
    next_id: AtomicI64,
    users: HashMap<String, u64>,
}

/// Serves until the process ends.
pub async fn serve(settings: &Settings) -> anyhow::Result<()> {
    let buyers = &settings.buyers;
    let text = std::fs::read_to_string(buyers).with_context(|| buyers.display().to_string())?;
    let users = text
        .lines()
        .map(|line| {
            let (token, user) = line.split_once(' ').context("a line is `token user`")?;
            Ok((token.to_owned(), user.parse()?))
        })
        .collect::<anyhow::Result<_>>()?;
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
    let router = Router::new()
        .route("/voucher-order/seckill/{id}", post(buy))
        .route("/health/ready", any(|| async { bare_route::ORDERED }))
        .with_state(Arc::new(App { pool, next_id, users }));
    super::server::serve(settings.bind, router).await
}

async fn buy(
    State(app): State<Arc<App>>,
    UrlPath(voucher): UrlPath<u64>,
    headers: HeaderMap,
) -> Response {
    let token = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(user) = token.and_then(|token| app.users.get(token)) else {
        return refused(StatusCode::UNAUTHORIZED, "UNAUTHORIZED");
    };
    match order(&app, *user, voucher).await {
        Ok(Outcome::Ordered(id)) => {
            let body = format!(r#"{{"success":true,"data":{id},"orderId":"{id}"}}"#);
            ([(CONTENT_TYPE, "application/json")], body).into_response()
        }
        Ok(Outcome::SoldOut) => refused(StatusCode::OK, "SOLD_OUT"),
        Ok(Outcome::AlreadyOrdered) => refused(StatusCode::OK, "ALREADY_ORDERED"),
        // The order may exist; the audit treats it so.
        Err(_) => refused(StatusCode::SERVICE_UNAVAILABLE, "OUTCOME_UNKNOWN"),
    }
}

enum Outcome {
    Ordered(i64),
    SoldOut,
    AlreadyOrdered,
}

async fn order(app: &App, user: u64, voucher: u64) -> anyhow::Result<Outcome> {
    let id = app.next_id.fetch_add(1, Ordering::Relaxed);
    let mut connection = app.pool.acquire().await?;
    let outcome = transact(&mut connection, id, user, voucher).await;
    if outcome.is_err() {
        // Its transaction may be open: the server rolls back when the connection closes.
        connection.close_on_drop();
    }
    outcome
}

async fn transact(
    connection: &mut MySqlConnection,
    id: i64,
    user: u64,
    voucher: u64,
) -> anyhow::Result<Outcome> {
    let insert =
        sqlx::query("INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES (?, ?, ?)");
    match insert.bind(id).bind(user).bind(voucher).execute(&mut *connection).await {
        Ok(_) => {}
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
            connection.execute("ROLLBACK").await?;
            return Ok(Outcome::AlreadyOrdered);
        }
        Err(error) => return Err(error.into()),
    }
    let decrement = sqlx::query(
        "UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id = ? AND stock > 0",
    );
    if decrement.bind(voucher).execute(&mut *connection).await?.rows_affected() == 0 {
        connection.execute("ROLLBACK").await?;
        return Ok(Outcome::SoldOut);
    }
    connection.execute("COMMIT").await?;
    Ok(Outcome::Ordered(id))
}

fn refused(status: StatusCode, code: &str) -> Response {
    let body = format!(r#"{{"success":false,"code":"{code}"}}"#);
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}
