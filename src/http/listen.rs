//! The accept loop and its graceful shutdown: no request is lost that a balancer sends while it has not noticed yet.
//!
//! `axum::serve` closes idle connections in the instant in which it stops accepting, which resets requests that a proxy
//! has just sent on them. Here it takes three steps. Readiness turns false, and all goes on as before for a grace period,
//! in which a balancer that asks for readiness looks elsewhere. Then the listener closes: a proxy that does not ask is
//! refused, and tries another instance. Replies say `connection: close` only from then on; earlier they would make a proxy
//! open new connections up to that very moment. Idle connections stay open for the request that may be on its way, until
//! their clients close them or a limit is reached.
//!
//! A client that sends and never reads, or sends half a request, is cut off after a few seconds, so that it holds up no
//! shutdown.

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures_util::FutureExt;
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::extract::Peer;
use super::sockets::{Listener, UnixSocketListener};

/// Connections that are open at once; further ones wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 20_000;

/// Longest time between a reply and the next request's last header; then the connection is closed. Longer than the proxies
/// in `deploy/` keep idle connections, which is 4 s.
const HEADER_LIMIT: Duration = Duration::from_secs(10);

/// Longest time for which a client may take nothing of a reply.
const WRITE_LIMIT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// What is left of the deadline, at most, when the last connections are waited for no longer: for purchases to finish.
const RESERVED: Duration = Duration::from_secs(2);

/// The steps of a shutdown.
#[derive(Clone, Debug)]
pub struct Drain {
    /// Cancelled to begin it: readiness turns false.
    pub begun: CancellationToken,
    /// Becomes true when the listener is closed: replies say `connection: close`.
    pub closing: Arc<AtomicBool>,
    /// How long connections are accepted after it began.
    pub grace: Duration,
    /// How long idle connections are kept open then.
    pub idle: Duration,
    /// The longest that all of it may take; the last connections are waited for somewhat shorter.
    pub deadline: Duration,
}

/// Serves until `drain` has begun and its grace period is over, then closes the listeners, then the connections: each
/// after its next reply, idle ones after a time. Returns when all are closed, or somewhat before the deadline; the value says
/// whether all were closed. `answer` gets each request. `connections` must be new; it counts the open ones.
pub async fn serve<A, F>(
    tcp: TcpListener,
    unix: Option<UnixSocketListener>,
    answer: A,
    connections: TaskTracker,
    drain: Drain,
) -> bool
where
    A: Fn(Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let server = Server {
        answer,
        graceful: GracefulShutdown::new(),
        slots: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        connections: connections.clone(),
    };
    let stop = async {
        drain.begun.cancelled().await;
        let begun = Instant::now();
        tokio::time::sleep(drain.grace).await;
        begun
    };
    let stop = stop.shared();
    let (begun, _) = tokio::join!(server.accept(tcp, stop.clone()), async {
        if let Some(unix) = unix {
            server.accept(unix, stop.clone()).await;
        }
    });
    drain.closing.store(true, Relaxed);
    connections.close();
    let finish = async {
        if tokio::time::timeout(drain.idle, connections.wait()).await.is_err() {
            server.graceful.shutdown().await;
            connections.wait().await;
        }
    };
    let limit = begun + drain.deadline - RESERVED.min(drain.deadline / 5);
    tokio::time::timeout_at(limit, finish).await.is_ok()
}

/// What all connections share.
struct Server<A> {
    answer: A,
    graceful: GracefulShutdown,
    /// One for each open connection.
    slots: Arc<Semaphore>,
    connections: TaskTracker,
}

impl<A, F> Server<A>
where
    A: Fn(Request) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    /// Serves the connections of `listener` until `stop`, then closes it; returns the output of `stop`.
    async fn accept<L: Listener>(
        &self,
        listener: L,
        mut stop: impl Future<Output = Instant> + Unpin,
    ) -> Instant {
        let begun = loop {
            let accept = async {
                let slot = self.slots.clone().acquire_owned().await.map_err(io::Error::other)?;
                listener.accept().await.map(|(stream, peer)| (stream, peer, slot))
            };
            let accepted = tokio::select! {
                accepted = accept => accepted,
                begun = &mut stop => break begun,
            };
            match accepted {
                Ok((stream, peer, slot)) => self.handle(stream, peer, Some(slot)),
                Err(error) => {
                    // Probably out of file descriptors: without a pause this loop would spin.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        self.close(listener);
        begun
    }

    /// Closes the listener, and serves the connections that the kernel had queued, which it would reset.
    fn close(&self, listener: impl Listener) {
        let closing = listener.close().and_then(|mut queued| {
            loop {
                match queued() {
                    Ok((stream, peer)) => self.handle(stream, peer, None),
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
    }

    fn handle(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: IpAddr,
        slot: Option<OwnedSemaphorePermit>,
    ) {
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(WRITE_LIMIT));
        let answer = self.answer.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            // Most requests have none, and an empty body of axum's own is not boxed.
            let none = request.body().is_end_stream();
            let mut request =
                request.map(|body| if none { Body::empty() } else { Body::new(body) });
            request.extensions_mut().insert(Peer(peer));
            answer(request).map(Ok::<_, Infallible>)
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_LIMIT)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
        let connection = self.graceful.watch(connection);
        self.connections.spawn(async move {
            let _slot = slot;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended early");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    use axum::response::IntoResponse;
    use testkit::process::TemporaryFolder;

    use super::*;
    use crate::http::sockets::{bind_tcp, bind_unix};

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    const LIMIT: Duration = Duration::from_secs(30);

    /// A drain that has begun, and is over after the grace period of no length and this time for idle connections.
    fn begun(idle: Duration) -> Drain {
        let begun = CancellationToken::new();
        begun.cancel();
        Drain { begun, closing: Arc::default(), grace: Duration::ZERO, idle, deadline: LIMIT }
    }

    type Listeners = (TcpListener, UnixSocketListener);

    async fn serve((tcp, unix): Listeners, drain: Drain) -> bool {
        let answer = |_| async { "here".into_response() };
        super::serve(tcp, Some(unix), answer, TaskTracker::new(), drain).await
    }

    /// Where both listeners are.
    struct Addresses {
        tcp: SocketAddr,
        unix: PathBuf,
        _folder: TemporaryFolder,
    }

    async fn listeners() -> (Listeners, Addresses) {
        let tcp = bind_tcp(([127, 0, 0, 1], 0).into()).expect("a free port");
        let folder = TemporaryFolder::new().expect("a folder");
        let unix = folder.path().join("socket");
        let listener = bind_unix(&unix).await.expect("a Unix socket");
        let address = tcp.local_addr().expect("its address");
        ((tcp, listener), Addresses { tcp: address, unix, _folder: folder })
    }

    trait Connection: Read + Write + Send {}
    impl<C: Read + Write + Send> Connection for C {}
    type Client = Box<dyn Connection>;

    impl Addresses {
        /// A client of each listener.
        fn clients(&self) -> [Client; 2] {
            let tcp = TcpStream::connect(self.tcp).expect("connect");
            tcp.set_read_timeout(Some(LIMIT)).expect("a time limit");
            let unix = UnixStream::connect(&self.unix).expect("connect");
            unix.set_read_timeout(Some(LIMIT)).expect("a time limit");
            [Box::new(tcp), Box::new(unix)]
        }
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

    /// A reply that is larger than all buffers of the system, and nothing is read.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_client_that_never_reads_is_cut_off() {
        let ((tcp, _), addresses) = listeners().await;
        let mut client = TcpStream::connect(addresses.tcp).expect("connect");
        client.write_all(REQUEST).expect("send");
        let arrived = CancellationToken::new();
        let drain = Drain { begun: arrived.clone(), ..begun(Duration::ZERO) };
        let large = move |_| {
            arrived.cancel();
            async { "x".repeat(64 << 20).into_response() }
        };
        let served = super::serve(tcp, None, large, TaskTracker::new(), drain).await;
        assert!(served, "not by the deadline: it would be no time to finish purchases");
        drop(client);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_takes_too_long_is_not_waited_for() {
        let ((tcp, _), addresses) = listeners().await;
        let mut client = TcpStream::connect(addresses.tcp).expect("connect");
        client.write_all(REQUEST).expect("send");
        let (deadline, arrived) = (Duration::from_secs(2), CancellationToken::new());
        // Begins once the request is there: before, its connection would be an idle one.
        let drain = Drain { deadline, begun: arrived.clone(), ..begun(Duration::ZERO) };
        let hangs = move |_| {
            arrived.cancel();
            std::future::pending()
        };
        assert!(!super::serve(tcp, None, hangs, TaskTracker::new(), drain).await);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn connections_in_the_listeners_queue_are_served() {
        let (listeners, addresses) = listeners().await;
        let mut clients: Vec<Client> = (0..64).flat_map(|_| addresses.clients()).collect();
        for client in &mut clients {
            client.write_all(REQUEST).expect("send");
        }
        let serving = tokio::spawn(serve(listeners, begun(LIMIT / 2)));
        let replies =
            tokio::task::spawn_blocking(move || clients.iter_mut().map(read).collect::<Vec<_>>());
        assert_eq!(replies.await.expect("replies"), vec!["HTTP/1.1 200"; 128]);
        assert!(serving.await.expect("served"), "all are closed");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn idle_connections_are_closed_only_after_their_time() {
        let (listeners, addresses) = listeners().await;
        let mut unused = addresses.clients();
        let (idle, begin) = (Duration::from_secs(1), Instant::now());
        let serving = tokio::spawn(serve(listeners, begun(idle)));
        let reading = tokio::task::spawn_blocking(move || unused.each_mut().map(read));
        assert_eq!(reading.await.expect("clients"), ["", ""], "closed, not reset");
        assert!(begin.elapsed() >= idle);
        assert!(serving.await.expect("served"), "all are closed");
    }
}
