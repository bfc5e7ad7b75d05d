//! HTTP server of the baselines.

use std::net::SocketAddr;

use anyhow::Context;
use axum::Router;
use axum::serve::ListenerExt;

/// Serves until the process ends.
pub async fn serve(bind: SocketAddr, router: Router) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(bind).await.with_context(|| bind.to_string())?;
    let listener = listener.tap_io(|stream| {
        // Without it the rate would be that of delayed acknowledgements.
        if let Err(error) = stream.set_nodelay(true) {
            eprintln!("cannot set TCP_NODELAY: {error}");
        }
    });
    Ok(axum::serve(listener, router).await?)
}
