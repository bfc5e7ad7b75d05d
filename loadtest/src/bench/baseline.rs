//! Baselines: programs as fast as possible that do less than the service. Each runs in a process of its own, as the
//! service does (`loadtest baseline`).

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::Context;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use axum::serve::ListenerExt;
use chrono::Utc;
use clap::Args;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::{Executor, MySqlPool};
use tokio::net::TcpListener;

/// The variable with the database of a baseline.
pub const DATABASE: &str = "BASELINE_DATABASE_URL";

/// Which baseline, and where.
#[derive(Debug, Args)]
pub struct Baseline {
    /// Address to listen on
    #[arg(long)]
    bind: SocketAddr,
    /// Serve the tuned one-transaction-per-order, on this database [default: a bare axum route, the upper bound of this
    /// framework on this machine]
    #[arg(long, env = DATABASE, hide_env_values = true)]
    database_url: Option<String>,
}

/// Serves it until the process is ended.
pub async fn serve(Baseline { bind, database_url }: Baseline) -> anyhow::Result<()> {
    let router = match database_url {
        Some(url) => transaction(&url).await?,
        None => bare_route(),
    };
    let listener = TcpListener::bind(bind)
        .await
        .with_context(|| bind.to_string())?;
    let listener = listener.tap_io(|stream| {
        // Without it the rate would be that of delayed acknowledgements.
        if let Err(error) = stream.set_nodelay(true) {
            eprintln!("cannot set TCP_NODELAY: {error}");
        }
    });
    Ok(axum::serve(listener, router.route("/health/ready", any(|| async {}))).await?)
}

fn json(body: impl IntoResponse) -> Response {
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

/// An order's reply.
const ORDERED: &str =
    r#"{"success":true,"data":663823142027984897,"orderId":"663823142027984897"}"#;

/// The reply when nothing is left.
const SOLD_OUT: &str = r#"{"success":false,"errorMsg":"库存不足！","code":"SOLD_OUT"}"#;

/// A shop, as long as the one that is read beside it.
const SHOP: &str = r#"{"success":true,"data":{"id":1,"name":"压测 load tests","typeId":10,"images":"","address":"127.0.0.1","x":120.15,"y":30.32,"avgPrice":80,"sold":0,"comments":0,"score":0,"openHours":"00:00-24:00","createTime":"2026-01-01T00:00:00","updateTime":"2026-01-01T00:00:00"}}"#;

/// Sends the same bodies as the service and does no work for them: no session, no database, no middleware. It answers
/// purchases with an order, those under `/sold-out` with "sold out", and reads with a shop.
fn bare_route() -> Router {
    let reply = |body: &'static str| any(move || async move { json(body) });
    Router::new()
        .route("/voucher-order/seckill/{id}", reply(ORDERED))
        .route("/sold-out/voucher-order/seckill/{id}", reply(SOLD_OUT))
        .route("/shop/{id}", reply(SHOP))
}

/// Connections to the database of the tuned one-transaction-per-order.
const CONNECTIONS: u32 = 32;

/// The next order's id; no earlier process has used it.
static NEXT_ID: LazyLock<AtomicI64> =
    LazyLock::new(|| AtomicI64::new(Utc::now().timestamp_micros()));

/// What a careful engineer writes for a flash sale on a relational database, without group commit and without a lock.
///
/// Tuned: the order is inserted first and the hot stock row updated last, so that it is locked for one statement and
/// the commit only; prepared statements, READ COMMITTED, `autocommit = 0` instead of a BEGIN (three round trips per
/// order), no ping before a connection is used, nodelay, mimalloc. The driver's pool pings each connection when it is
/// handed back, beside the reply: a fourth round trip, which has no setting. **It does less than the service**: no
/// session check (a token is the user's id) and no ids from Redis (a counter in memory), no check of the sale's window, no
/// limits, no log. The same unique index refuses second orders, as errors: in the benchmark there are none.
async fn transaction(database_url: &str) -> anyhow::Result<Router> {
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
        .connect(database_url)
        .await?;
    Ok(Router::new()
        .route("/voucher-order/seckill/{id}", post(buy))
        .with_state(pool))
}

async fn buy(
    State(pool): State<MySqlPool>,
    Path(voucher): Path<u64>,
    headers: HeaderMap,
) -> Response {
    let token = headers
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let Some(user) = token.and_then(|token| u64::from_str_radix(token, 16).ok()) else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    match order(&pool, user, voucher).await {
        Ok(Some(id)) => json(format!(
            r#"{{"success":true,"data":{id},"orderId":"{id}"}}"#
        )),
        Ok(None) => json(SOLD_OUT),
        // The order may exist: for the audit the outcome of a reply without a code is unknown.
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// Makes an order; returns its id, `None` when nothing is left.
async fn order(pool: &MySqlPool, user: u64, voucher: u64) -> sqlx::Result<Option<i64>> {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let mut connection = pool.acquire().await?;
    let outcome = async {
        let insert =
            sqlx::query("INSERT INTO tb_voucher_order (id, user_id, voucher_id) VALUES (?, ?, ?)");
        insert
            .bind(id)
            .bind(user)
            .bind(voucher)
            .execute(&mut *connection)
            .await?;
        let decrement = sqlx::query(
            "UPDATE tb_seckill_voucher SET stock = stock - 1 WHERE voucher_id = ? AND stock > 0",
        );
        let updated = decrement.bind(voucher).execute(&mut *connection).await?;
        let is_left = updated.rows_affected() > 0;
        connection
            .execute(if is_left { "COMMIT" } else { "ROLLBACK" })
            .await?;
        Ok::<_, sqlx::Error>(is_left.then_some(id))
    }
    .await;
    if outcome.is_err() {
        // Its transaction may be open: the server rolls back when the connection closes.
        connection.close_on_drop();
    }
    outcome
}
