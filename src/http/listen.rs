//! The HTTP listener and its graceful shutdown: no request is lost that a balancer sends while it has not noticed yet.
//!
//! `axum::serve` closes idle connections in the instant in which it stops accepting, which resets requests that a proxy
//! has just sent on them. Here it takes three steps. Readiness turns false, and all goes on as before for a grace period,
//! in which a balancer that asks for readiness looks elsewhere. Then the listener closes: a proxy that does not ask is
//! refused, and tries another instance. Replies say `connection: close` only from then on; earlier they would make a proxy
//! open new connections up to that very moment. Idle connections stay open for the request that may be on its way, until
//! their clients close them or a limit is reached.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures_util::FutureExt;
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection_timer::ConnectionTimer;
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

/// The steps of a shutdown.
#[derive(Clone, Debug)]
pub struct Drain {
    /// Cancelled to begin it: readiness turns false.
    pub begun: CancellationToken,
    /// Cancelled when the listener is closed: replies say `connection: close`.
    pub closing: CancellationToken,
    /// How long connections are accepted after it began.
    pub grace: Duration,
    /// How long idle connections are kept open then.
    pub idle: Duration,
    /// The longest that all of it may take.
    pub deadline: Duration,
}

/// Serves until `drain` has begun and its grace period is over, then closes the listener, then the connections: each
/// after its next reply, idle ones after a time. Returns when all are closed, or at the deadline; the value says whether
/// all were closed. `answer` gets each request, with a timer that its connection keeps. `connections` must be new; it
/// counts the open ones.
pub async fn serve<A, F>(
    listener: TcpListener,
    answer: A,
    connections: TaskTracker,
    drain: Drain,
) -> bool
where
    A: Fn(Request, ConnectionTimer) -> F + Clone + Send + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let graceful = GracefulShutdown::new();
    let handle = |stream: TcpStream, peer: SocketAddr| {
        handle(stream, peer.ip(), answer.clone(), &graceful, &connections);
    };
    let stop = async {
        drain.begun.cancelled().await;
        let begun = Instant::now();
        tokio::time::sleep(drain.grace).await;
        begun
    };
    tokio::pin!(stop);
    let begun = loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            begun = &mut stop => break begun,
        };
        match stream {
            Ok((stream, peer)) => handle(stream, peer),
            Err(error) => {
                // Probably out of file descriptors: without a pause this loop would spin.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    for (stream, peer) in close(listener) {
        handle(stream, peer);
    }
    drain.closing.cancel();
    connections.close();
    let finish = async {
        if tokio::time::timeout(drain.idle, connections.wait()).await.is_err() {
            graceful.shutdown().await;
            connections.wait().await;
        }
    };
    tokio::time::timeout_at(begun + drain.deadline, finish).await.is_ok()
}

/// Closes the listener; returns the connections that the kernel had queued, which it would reset.
fn close(listener: TcpListener) -> Vec<(TcpStream, SocketAddr)> {
    let mut accepted = Vec::new();
    // Not by tokio, which may not have heard of the last ones yet.
    let closing = listener.into_std().and_then(|listener| {
        loop {
            match listener.accept() {
                Ok((stream, peer)) => {
                    stream.set_nonblocking(true)?;
                    accepted.push((TcpStream::from_std(stream)?, peer));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // Its client was gone before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
        }
    });
    if let Err(error) = closing {
        tracing::warn!(%error, "cannot accept the last connections");
    }
    accepted
}

fn handle<A, F>(
    stream: TcpStream,
    peer: IpAddr,
    answer: A,
    graceful: &GracefulShutdown,
    connections: &TaskTracker,
) where
    A: Fn(Request, ConnectionTimer) -> F + Send + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    // Nagle's algorithm would hold small replies back for up to 40 ms.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let timer = ConnectionTimer::on_this_runtime();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        // Most requests have none, and an empty body of axum's own is not boxed.
        let none = request.body().is_end_stream();
        let mut request = request.map(|body| if none { Body::empty() } else { Body::new(body) });
        request.extensions_mut().insert(Peer(peer));
        answer(request, timer.clone()).map(Ok::<_, Infallible>)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(ConnectionTimer::on_this_runtime())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let connection = graceful.watch(connection);
    connections.spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection ended early");
        }
    });
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream as Client;

    use axum::response::IntoResponse;

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    const LIMIT: Duration = Duration::from_secs(30);

    /// A drain that has begun, and is over after the grace period of no length and this time for idle connections.
    fn begun(idle: Duration) -> Drain {
        let (begun, closing) = (CancellationToken::new(), CancellationToken::new());
        begun.cancel();
        Drain { begun, closing, grace: Duration::ZERO, idle, deadline: LIMIT }
    }

    async fn serve(listener: TcpListener, drain: Drain) -> bool {
        let answer = |_, _| async { "here".into_response() };
        super::serve(listener, answer, TaskTracker::new(), drain).await
    }

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        let address = listener.local_addr().expect("its address");
        (listener, address)
    }

    fn client(address: SocketAddr) -> Client {
        let client = Client::connect(address).expect("connect");
        client.set_read_timeout(Some(LIMIT)).expect("a time limit");
        client
    }

    /// A reply's first bytes; fewer at the end of the connection.
    fn read(client: &mut Client) -> String {
        let mut reply = [0; 12];
        let mut length = 0;
        while length < reply.len() {
            match client.read(&mut reply[length..]).expect("no reset") {
                0 => break,
                more => length += more,
            }
        }
        String::from_utf8_lossy(&reply[..length]).into_owned()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn connections_in_the_listeners_queue_are_served() {
        let (listener, address) = listener();
        let mut clients: Vec<Client> = (0..64).map(|_| client(address)).collect();
        for client in &mut clients {
            client.write_all(REQUEST).expect("send");
        }
        let serving = tokio::spawn(serve(listener, begun(LIMIT / 2)));
        let replies =
            tokio::task::spawn_blocking(move || clients.iter_mut().map(read).collect::<Vec<_>>());
        assert_eq!(replies.await.expect("replies"), vec!["HTTP/1.1 200"; 64]);
        assert!(serving.await.expect("served"), "all are closed");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn idle_connections_are_closed_only_after_their_time() {
        let (listener, address) = listener();
        let (mut used, mut unused) = (client(address), client(address));
        let drain = begun(Duration::from_millis(600));
        let (closing, begin) = (drain.closing.clone(), Instant::now());
        let serving = tokio::spawn(serve(listener, drain));
        closing.cancelled().await;
        tokio::task::spawn_blocking(move || {
            Client::connect(address).expect_err("the listener is closed");
            used.write_all(REQUEST).expect("send");
            assert_eq!(read(&mut used), "HTTP/1.1 200", "a request that was on its way");
            drop(used);
            assert_eq!(read(&mut unused), "", "closed, not reset");
        })
        .await
        .expect("clients");
        assert!(begin.elapsed() >= Duration::from_millis(600));
        assert!(serving.await.expect("served"), "all are closed");
    }
}
