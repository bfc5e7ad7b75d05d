//! Tuned one-transaction-per-order: what a careful engineer writes for a flash sale on a relational database, without
//! group commit and without a lock.
//!
//! Tuned: the order is inserted first and the hot stock row updated last, so that it is locked for one statement and
//! the commit only; prepared statements, READ COMMITTED, `autocommit = 0` instead of a BEGIN (three round trips per
//! order), no ping before a connection is used, nodelay, ids from a leased block, mimalloc. The driver's pool pings each
//! connection when it is handed back, beside the reply: a fourth round trip, which has no setting. **It does less than the
//! service**: no session check (a map in memory has the tokens' users), no check of the sale's window, no limits, no log.
//! The same unique index refuses second orders.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use chrono::Utc;
use lock::RoutedConnection;
use redis::AsyncCommands;
use sqlx::mysql::{MySqlConnection, MySqlPoolOptions};
use sqlx::{Executor, MySqlPool};
use tokio::sync::Mutex;
use workload::redis_connection;

use super::bare_route;

/// The zero of the ids' seconds: 2022-01-01T00:00:00.
const EPOCH_SECONDS: i64 = 1_640_995_200;

/// Numbers that are taken at a time.
const BLOCK: i64 = 1_000;

/// Addresses and sizes.
#[derive(Debug, clap::Args)]
pub struct Settings {
    /// Address to listen on
    #[arg(long)]
    bind: SocketAddr,
    /// File of lines `token user`
    #[arg(long)]
    buyers: PathBuf,
    /// Connections to the database
    #[arg(long)]
    connections: u32,
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    redis_url: String,
}

struct App {
    pool: MySqlPool,
    ids: Ids,
    users: HashMap<String, u64>,
}

/// Ids in the service's form and from its counter, whose numbers are taken by the thousand.
struct Ids {
    redis: RoutedConnection,
    /// The numbers that are left.
    block: Mutex<Range<i64>>,
}

impl Ids {
    async fn next(&self) -> anyhow::Result<i64> {
        // In the zone of the instances that are measured beside it: the counter is the local day's.
        let now = Utc::now().with_timezone(&chrono_tz::Asia::Shanghai).naive_local();
        let mut block = self.block.lock().await;
        let number = match block.next() {
            Some(number) => number,
            None => {
                let counter = now.format("icr:order:%Y:%m:%d").to_string();
                let last: i64 = self.redis.clone().incr(counter, BLOCK).await?;
                *block = last - BLOCK + 2..last + 1;
                last - BLOCK + 1
            }
        };
        Ok((now.and_utc().timestamp() - EPOCH_SECONDS) << 32 | number)
    }
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
        .max_connections(settings.connections)
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
    let redis = redis_connection::connect(&settings.redis_url).await?;
    let ids = Ids { redis, block: Mutex::new(0..0) };
    let router = Router::new()
        .route("/voucher-order/seckill/{id}", post(buy))
        .route("/health/ready", any(|| async { bare_route::ORDERED }))
        .with_state(Arc::new(App { pool, ids, users }));
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
    let id = app.ids.next().await?;
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
