//! The HTTP listener and its graceful shutdown. `axum::serve` closes idle connections at the same instant as it stops
//! accepting, which resets requests that a proxy has just sent on them. Here the two are apart: when draining starts,
//! readiness turns false and every reply says `connection: close`, while connections are still accepted for a grace
//! period; then the listener closes, and each connection closes after its request.

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

use super::extract::Peer;

/// Connections that the kernel queues until they are accepted: a sale opens with a burst of them.
const BACKLOG: u32 = 4096;

/// Time limit for a request's headers; a slower connection is closed.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Binds `address`, with a backlog sized for a burst. To be called within a tokio runtime.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves `router` until `draining` is cancelled, then for `grace` longer, then lets open connections finish their
/// requests. Returns when all are closed, or `deadline` after draining began; the value says whether all were closed.
/// `connections` must be new; it counts the open ones.
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
            Err(error) => {
                // Probably out of file descriptors: without a pause this loop would spin.
                tracing::warn!(%error, "cannot accept a connection");
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
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
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
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection ended early");
        }
    });
}
