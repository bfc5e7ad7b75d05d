//! What the service is held against: programs as fast as we can make them that do less. Each runs in a
//! process of its own, as the service does (`bench baseline …`).

use std::net::SocketAddr;

use anyhow::Context;
use axum::Router;
use axum::serve::ListenerExt;

pub mod bare;
pub mod plain;

/// Serves until the process is ended.
async fn serve(bind: SocketAddr, router: Router) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(bind).await.with_context(|| bind.to_string())?;
    let listener = listener.tap_io(|stream| {
        // Without this the measured rate is that of delayed acknowledgements.
        if let Err(fault) = stream.set_nodelay(true) {
            eprintln!("cannot set TCP_NODELAY: {fault}");
        }
    });
    Ok(axum::serve(listener, router).await?)
}
