//! HTTP server of the baselines.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;
use axum::Router;
use axum::serve::ListenerExt;
use tokio::net::UnixListener;

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

/// Serves on a Unix socket at `path`, in place of the file that may be there, until the process ends.
pub async fn serve_unix(path: &Path, router: Router) -> anyhow::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener = UnixListener::bind(path).with_context(|| path.display().to_string())?;
    Ok(axum::serve(listener, router).await?)
}
