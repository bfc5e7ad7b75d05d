//! Starts, serves and stops: configuration → application state → listening server → graceful shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, ensure};
use axum::Router;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::ServeConfig;
use crate::http::auth::AdminToken;
use crate::http::listen::{self, Drain};
use crate::http::middleware::RequestPolicy;
use crate::http::spans;
use crate::order::expiry;
use crate::router;
use crate::router::AppState;

mod state;

/// Serves until SIGTERM or Ctrl-C, then shuts down gracefully.
///
/// # Errors
/// Where the start fails, with what to do about it, or where requests did not finish within the drain deadline.
pub async fn serve(config: ServeConfig) -> anyhow::Result<()> {
    config.check()?;
    let draining = CancellationToken::new();
    let connections = TaskTracker::new();
    let state = state::connect(&config, draining.clone(), connections.clone()).await?;
    let state = Arc::new(state);
    let stop_expiry = CancellationToken::new();
    let expiry = start_expiry(&config, &state, stop_expiry.clone());

    // Before the instance can be seen to serve: a signal in between would end it without draining.
    let stopped = stop_signal()?;
    let listener = listen::bind(config.http.bind).with_context(|| {
        format!(
            "cannot listen on {}; is another program using it? (--bind)",
            config.http.bind
        )
    })?;
    let address = listener.local_addr()?;
    let name = config.http.node_name.clone();
    let name = name.unwrap_or_else(|| address.to_string());
    let spans = spans::from_environment(&name)?;
    log_start(&config, address);

    let deadline = config.http.drain_deadline;
    let drain = Drain {
        begun: draining.clone(),
        grace: config.http.drain_grace,
        idle: config.http.drain_idle,
        deadline,
    };
    let policy = RequestPolicy {
        timeout: config.http.request_timeout,
        closing: AtomicBool::new(false),
        traced_as: config.sale.lab.then(|| name.into()),
        spans: spans.clone(),
        replies: state.metrics.replies.clone(),
    };
    let routes = routes(&config, state.clone());
    let server = listen::serve(listener, policy, routes, connections, drain);
    tokio::pin!(server);
    tokio::select! {
        // Ends only by draining, which starts below.
        _ = &mut server => {}
        signal = stopped => {
            tracing::info!(signal, "draining: readiness is false, purchases in flight finish");
            draining.cancel();
        }
    }
    stop_expiry.cancel();
    let drained = tokio::time::timeout(deadline, async {
        let all_closed = (&mut server).await;
        finish_work(&state, expiry).await;
        all_closed
    })
    .await;
    log_lost_orders(&state);
    close_connections(&state).await;
    if let Some(spans) = spans {
        // `shutdown` blocks until the exporting thread is done, and that thread sends on this runtime.
        tokio::task::spawn_blocking(move || spans.shutdown()).await?;
    }
    ensure!(
        matches!(drained, Ok(true)),
        "requests were still in flight after {deadline:?} and were cut off (--drain-deadline-ms)"
    );
    tracing::info!("drained: no request is in flight");
    Ok(())
}

/// Cancels unpaid orders until `stop`. It uses two of the purchases' connections at most, so that users who cancel orders do
/// not hold it up.
fn start_expiry(
    config: &ServeConfig,
    state: &AppState,
    stop: CancellationToken,
) -> JoinHandle<Option<()>> {
    let orders = state.purchases.context().store.clone();
    let lifetime = state.lifetime.with_store(orders);
    let expiry = expiry::run(lifetime, config.sale.unpaid_seconds);
    tokio::spawn(stop.run_until_cancelled_owned(expiry))
}

fn routes(config: &ServeConfig, state: Arc<AppState>) -> Router {
    let admin_token = AdminToken(config.http.admin_token.clone());
    router::routes(state, admin_token, config.sale.time_zone, config.sale.lab)
}

fn log_start(config: &ServeConfig, address: SocketAddr) {
    if config.sale.lab {
        tracing::warn!(
            "--lab: sign-in codes are public, and sales on unsafe strategies are allowed"
        );
    }
    tracing::info!(%address, lab = config.sale.lab, "serving");
    if config.http.admin_token.is_none() {
        tracing::warn!("ADMIN_TOKEN is not set: nothing can be published through this instance");
    }
}

/// Waits for what goes on without a request: purchases, expiry, and the tasks of caches and sessions.
async fn finish_work(state: &AppState, expiry: JoinHandle<Option<()>>) {
    state.purchases.finished().await;
    if let Err(error) = expiry.await {
        tracing::error!(%error, "the expiry task ended early");
    }
    state.shops.shutdown().await;
    state.users.sessions.shutdown().await;
}

/// Says what was still in the queue of the strategy `memory-queue`.
fn log_lost_orders(state: &AppState) {
    let lost = state.purchases.context().memory_queue.waiting();
    if lost > 0 {
        tracing::error!(
            lost,
            "confirmed orders of memory-queue are lost: they were not written in time"
        );
    }
}

async fn close_connections(state: &AppState) {
    state.purchases.context().locks.shutdown().await;
    for database in [
        &state.metrics.database,
        &state.metrics.reads,
        &state.metrics.changes,
        &state.health.database,
    ] {
        database.pool.close().await;
    }
}

/// From this call on, SIGTERM and SIGINT do not end the process: the future waits for the first, and returns its name.
fn stop_signal() -> anyhow::Result<impl Future<Output = &'static str>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}
