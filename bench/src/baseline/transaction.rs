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
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use seckill::id::IdGenerator;
use seckill::keys::{KeyStyle, Keys};
use sqlx::mysql::{MySqlConnection, MySqlPoolOptions};
use sqlx::{Executor, MySqlPool};

use super::bare_route;

/// Addresses and sizes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address to listen on.
    pub bind: SocketAddr,
    /// The database.
    pub database_url: String,
    /// Redis, for the blocks of ids.
    pub redis_url: String,
    /// Connections to the database.
    pub connections: u32,
}

struct App {
    pool: MySqlPool,
    ids: IdGenerator,
    users: HashMap<String, u64>,
}

/// Serves; `buyers` is a file of lines `token user`.
pub async fn serve(settings: &Settings, buyers: &Path) -> anyhow::Result<()> {
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
    let server = seckill::connection::redis::server(&settings.redis_url.clone().into())?;
    let redis = seckill::connection::redis::connect(server, Duration::from_secs(1)).await?;
    // In the service's zone: its instances use the same counter of ids.
    let clock = seckill::clock::Zone(chrono_tz::Asia::Shanghai).seconds();
    let ids =
        IdGenerator::new(redis.commands(), Arc::new(clock), Keys::new(KeyStyle::Default), 1000);
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
