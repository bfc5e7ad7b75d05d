//! Starts, serves and stops: configuration → application state → listening server → graceful shutdown.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, ensure};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::ServeConfig;
use crate::http::auth::AdminToken;
use crate::http::listen::{self, Drain};
use crate::http::middleware::RequestPolicy;
use crate::http::spans;
use crate::order::expiry;
use crate::router;

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
    // On the purchases' connections, of which it uses two at most: users who cancel do not hold it up.
    let orders = state.purchases.context().store.clone();
    let expiry = expiry::run(state.lifetime.on(orders), config.sale.unpaid_seconds);
    let expiry = tokio::spawn(stop_expiry.clone().run_until_cancelled_owned(expiry));

    // Before anybody can know that it serves: a signal that came between would end it without draining.
    let stopped = stop_signal()?;
    let listener = listen::bind(config.http.bind).with_context(|| {
        format!(
            "cannot listen on {}; is another program using it? (--bind)",
            config.http.bind
        )
    })?;
    let address = listener.local_addr()?;
    let name = config
        .http
        .node_name
        .clone()
        .unwrap_or_else(|| address.to_string());
    let spans = spans::from_environment(&name)?;
    if config.sale.lab {
        tracing::warn!(
            "--lab: sign-in codes are public, and sales on unsafe strategies are allowed"
        );
    }
    tracing::info!(%address, lab = config.sale.lab, "serving");
    if config.http.admin_token.is_none() {
        tracing::warn!("ADMIN_TOKEN is not set: nothing can be published through this instance");
    }

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
    let admin_token = AdminToken(config.http.admin_token.clone());
    let zone = config.sale.time_zone;
    let lab = config.sale.lab;
    let routes = router::routes(state.clone(), admin_token, zone, lab);
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
        state.purchases.finished().await;
        if let Err(error) = expiry.await {
            tracing::error!(%error, "the expiry task ended early");
        }
        state.shops.shutdown().await;
        state.users.sessions.shutdown().await;
        all_closed
    })
    .await;
    state.purchases.context().locks.shutdown().await;
    for database in [
        &state.metrics.database,
        &state.metrics.reads,
        &state.metrics.changes,
        &state.health.database,
    ] {
        database.pool.close().await;
    }
    if let Some(spans) = spans {
        // It waits for the exporting thread, which waits for this runtime.
        tokio::task::spawn_blocking(move || spans.shutdown()).await?;
    }
    ensure!(
        matches!(drained, Ok(true)),
        "requests were still in flight after {deadline:?} and were cut off (--drain-deadline-ms)"
    );
    tracing::info!("drained: no request is in flight");
    Ok(())
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
