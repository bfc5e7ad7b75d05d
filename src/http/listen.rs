//! The listener, and how it ends. `axum::serve` closes idle connections in the same instant it stops
//! accepting, which resets requests that a proxy has just put on them. Here the two are apart:
//! when draining starts, readiness turns false and every reply says `connection: close`, while
//! connections are still accepted for a short grace; then the listener closes, and connections end
//! as their requests do.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::client_address::Peer;

/// Connections the kernel may hold until they are accepted: a sale opens with a burst of them.
const BACKLOG: u32 = 4096;

/// A connection that has not sent its request's headers by then is closed.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Binds `address`, with a backlog sized for a burst.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves `router` until `draining` is cancelled, then for `grace` longer, then lets open
/// connections finish their requests. Returns when all are closed, or `deadline` after draining
/// began; the return value says whether all were closed by then. `connections` is new, and counts the open
/// ones.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    connections: TaskTracker,
    draining: CancellationToken,
    grace: Duration,
    deadline: Duration,
) -> bool {
    let graceful = GracefulShutdown::new();
    let stop = async {
        draining.cancelled().await;
        tokio::time::sleep(grace).await;
    };
    tokio::pin!(stop);
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        match stream {
            Ok((stream, peer)) => {
                handle(stream, peer.ip(), router.clone(), &graceful, &connections);
            }
            Err(fault) => {
                // Out of file descriptors, most likely: pause, or this loop would spin.
                tracing::warn!(%fault, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    connections.close();
    let finish = async {
        graceful.shutdown().await;
        connections.wait().await;
    };
    tokio::time::timeout(deadline.saturating_sub(grace), finish).await.is_ok()
}

fn handle(
    stream: TcpStream,
    peer: IpAddr,
    router: Router,
    graceful: &GracefulShutdown,
    connections: &TaskTracker,
) {
    // Nagle's algorithm would hold small replies back for up to 40 ms.
    if let Err(fault) = stream.set_nodelay(true) {
        tracing::debug!(%fault, "cannot set TCP_NODELAY");
    }
    let service = router.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        request
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let connection = graceful.watch(connection);
    connections.spawn(async move {
        if let Err(fault) = connection.await {
            tracing::debug!(%fault, "connection ended early");
        }
    });
}
