//! The accept loop and its graceful shutdown: the requests that a balancer sends before it notices the shutdown are not lost.
//!
//! `axum::serve` closes idle connections at the moment at which it stops accepting. That resets requests that a proxy has just
//! sent on them. Here a shutdown takes three steps:
//! 1. Readiness turns false. All goes on as before for a grace period, in which a balancer that asks for readiness turns to
//!    other instances.
//! 2. The listener closes. A proxy that does not ask for readiness is refused, and tries another instance. Replies say
//!    `connection: close` only from now on; earlier they would make a proxy open new connections up to this moment.
//! 3. Idle connections stay open, as a request may be on its way, until their clients close them or a limit is reached.
//!
//! A request that has arrived runs to its end, whether or not its client is still there: a statement that is cut short costs
//! its connection, and a purchase that is cut short leaves its buyer in doubt. A client that sends and never reads, or sends
//! half a request, is cut off after a few seconds, so that it does not hold up a shutdown.
//!
//! Where a request is answered before its body was read, a short rest of the body is read and discarded. After a long rest the
//! connection ends (`client_stream` says how), and the reply says so: a proxy must not send the next request on it.

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::admission::Peer;
use super::client_stream::ClientStream;
use super::middleware::{RequestPolicy, per_request};

/// Connections that the kernel queues until they are accepted: a sale opens with a burst of them.
const BACKLOG: u32 = 4096;

/// Connections that are open at once; further ones wait in the kernel's queue. Each with an unfinished request takes 10 to
/// 20 KiB, and an instance is to live with 512 MiB.
const MAX_CONNECTIONS: usize = 10_000;

/// Most bytes of a request's head, and of what is read of a body at a time. Many connections may each hold so much in memory.
/// The proxies in `deploy/` refuse what is larger themselves.
const MOST_HEAD_BYTES: usize = 8 * 1024;

/// Most unread bytes of a body that are discarded before the reply, so that the connection can be used again.
const MOST_DRAINED_BYTES: u64 = 64 * 1024;

/// Longest wait for these bytes. As a rule they came with the head.
const DRAIN_TIME_LIMIT: Duration = Duration::from_secs(1);

/// The wait for the last connections ends before the deadline, by this much at most, so that purchases have time to finish.
const RESERVED: Duration = Duration::from_secs(2);

/// The steps of a shutdown.
#[derive(Clone, Debug)]
pub struct Drain {
    /// Cancelled to begin it: readiness turns false.
    pub begun: CancellationToken,
    /// How long connections are accepted after it began.
    pub grace: Duration,
    /// How long idle connections are kept open then.
    pub idle: Duration,
    /// The longest that all of it may take; the last connections are waited for somewhat shorter.
    pub deadline: Duration,
}

/// Binds `address`, with a backlog sized for a burst. To be called within a tokio runtime.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `drain` has begun and its grace period is over, then closes the listener, then the connections: each
/// after its next reply, idle ones after a time. Returns when all are closed, or somewhat before the deadline; the value says
/// whether all were closed. `connections` must be new; it counts the open ones.
pub async fn serve(
    listener: TcpListener,
    policy: RequestPolicy,
    routes: Router,
    connections: TaskTracker,
    drain: Drain,
) -> bool {
    let server = Server {
        policy: Arc::new(policy),
        routes,
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
    let begun = server.accept(listener, stop).await;
    server.policy.closing.store(true, Relaxed);
    connections.close();
    let limit = begun + drain.deadline - RESERVED.min(drain.deadline / 5);
    let ending = tokio::time::timeout_at(limit, async {
        if tokio::time::timeout(drain.idle, connections.wait())
            .await
            .is_err()
        {
            server.graceful.shutdown().await;
            connections.wait().await;
        }
    });
    ending.await.is_ok()
}

/// What all connections share.
struct Server {
    policy: Arc<RequestPolicy>,
    routes: Router,
    graceful: GracefulShutdown,
    /// One for each open connection.
    slots: Arc<Semaphore>,
    connections: TaskTracker,
}

impl Server {
    /// Serves the connections of `listener` until `stop`, then closes it; returns the output of `stop`.
    async fn accept(&self, listener: TcpListener, stop: impl Future<Output = Instant>) -> Instant {
        tokio::pin!(stop);
        let begun = loop {
            let accept = async {
                let slot = self
                    .slots
                    .clone()
                    .acquire_owned()
                    .await
                    .map_err(io::Error::other)?;
                listener
                    .accept()
                    .await
                    .map(|(stream, peer)| (stream, peer, slot))
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

    /// Closes the listener. Before that it accepts the connections that the kernel has queued, which would be reset otherwise.
    fn close(&self, listener: TcpListener) {
        // Not through tokio, which may not know of the last ones yet.
        let closing = listener.into_std().and_then(|listener| {
            loop {
                let queued = listener.accept().and_then(|(stream, peer)| {
                    stream.set_nonblocking(true)?;
                    Ok((TcpStream::from_std(stream)?, peer))
                });
                match queued {
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

    fn handle(&self, stream: TcpStream, peer: SocketAddr, slot: Option<OwnedSemaphorePermit>) {
        // Nagle's algorithm would hold small replies back for up to 40 ms.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let policy = self.policy.clone();
        let routes = self.routes.clone();
        let at_work = Arc::new(AtomicBool::new(false));
        let stream = ClientStream::new(stream, at_work.clone());
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            // Most requests have no body, and axum's own empty body is not boxed.
            let unread = (!request.body().is_end_stream()).then(Arc::<Mutex<_>>::default);
            let mut request = request.map(|body| match &unread {
                Some(unread) => Body::new(LentBody {
                    body: Some(body),
                    rest: unread.clone(),
                }),
                None => Body::empty(),
            });
            request.extensions_mut().insert(Peer(peer.ip()));
            let policy = policy.clone();
            let routes = routes.clone();
            let at_work = at_work.clone();
            at_work.store(true, Relaxed);
            async move {
                let mut response = per_request(&policy, routes, request).await;
                let unread = unread.and_then(|unread| unread.lock().take());
                if let Some(unread) = unread
                    && !discard_rest(unread).await
                {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(header::CONNECTION, close);
                }
                at_work.store(false, Relaxed);
                Ok::<_, Infallible>(response)
            }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .max_buf_size(MOST_HEAD_BYTES)
            // Without this, a request ends when its client closes its half of the connection.
            .half_close(true)
            .serve_connection(TokioIo::new(stream), service);
        let connection = self.graceful.watch(connection);
        self.connections.spawn(async move {
            let _slot = slot;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended early");
            }
        });
    }
}

/// A request's body. If it is dropped before it was read to its end, for example because the request is refused, it goes back
/// to its connection.
struct LentBody {
    /// Until it has ended.
    body: Option<Incoming>,
    rest: Arc<Mutex<Option<Incoming>>>,
}

impl Drop for LentBody {
    fn drop(&mut self) {
        *self.rest.lock() = self.body.take();
    }
}

impl hyper::body::Body for LentBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = Pin::new(&mut *body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || body.is_end_stream() {
            self.body = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => SizeHint::with_exact(0),
        }
    }
}

/// Reads and discards the rest of a body. `false` where the rest is too long or does not come soon: then the connection cannot
/// be used again.
async fn discard_rest(mut body: Incoming) -> bool {
    let mut allowed = MOST_DRAINED_BYTES;
    if body.size_hint().lower() > allowed {
        return false;
    }
    let drain = async {
        while let Some(frame) = body.frame().await {
            let size = frame.ok()?.data_ref().map_or(0, Bytes::len);
            allowed = allowed.checked_sub(size as u64)?;
        }
        Some(())
    };
    let drained = tokio::time::timeout(DRAIN_TIME_LIMIT, drain).await;
    matches!(drained, Ok(Some(())))
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    const LIMIT: Duration = Duration::from_secs(30);

    /// A drain that begins with `begun`, has no grace period, and keeps idle connections open for `idle`.
    fn drain(begun: CancellationToken, idle: Duration) -> Drain {
        Drain {
            begun,
            grace: Duration::ZERO,
            idle,
            deadline: LIMIT,
        }
    }

    fn begun() -> CancellationToken {
        let begun = CancellationToken::new();
        begun.cancel();
        begun
    }

    fn policy() -> RequestPolicy {
        RequestPolicy {
            timeout: LIMIT,
            closing: Default::default(),
            traced_as: None,
            spans: None,
            replies: Default::default(),
        }
    }

    fn greeting() -> Router {
        Router::new().fallback(async || "here")
    }

    /// A listener, and a client of it.
    async fn connected() -> (TcpListener, TcpStream) {
        let tcp = bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        let client = TcpStream::connect(tcp.local_addr().expect("its address")).await;
        (tcp, client.expect("connect"))
    }

    /// A reply's first bytes.
    async fn status(client: &mut TcpStream) -> String {
        let mut reply = [0; 12];
        let read = tokio::time::timeout(LIMIT, client.read_exact(&mut reply)).await;
        read.expect("in time").expect("a reply");
        String::from_utf8_lossy(&reply).into_owned()
    }

    /// Serves until the test ends.
    fn serve_here(tcp: TcpListener) {
        let drain = drain(CancellationToken::new(), LIMIT);
        tokio::spawn(serve(tcp, policy(), greeting(), TaskTracker::new(), drain));
    }

    /// After its first reply the client sends nothing, or a part of the next head every four seconds. The clock is paused and
    /// moves only to the next timer, so no machine is too slow.
    #[tokio::test]
    async fn a_connection_is_closed_that_sends_no_complete_head_for_ten_seconds() {
        for parts in [&[][..], &["GET / HTTP/1.1\r\n"], &["GET", " / ", "HTTP"]] {
            let (tcp, mut client) = connected().await;
            client.set_nodelay(true).expect("each part at once");
            serve_here(tcp);
            answered(&mut client).await;
            tokio::time::pause();
            tokio::time::sleep(Duration::from_secs(6)).await;
            tokio::time::resume();
            answered(&mut client).await;
            let (mut replies, mut requests) = client.split();
            tokio::time::pause();
            let begin = Instant::now();
            let send = async {
                for part in parts {
                    requests.write_all(part.as_bytes()).await.expect("send");
                    tokio::time::sleep(Duration::from_secs(4)).await;
                }
            };
            let mut last_bytes = Vec::new();
            let ends = tokio::time::timeout(LIMIT * 10, replies.read_to_end(&mut last_bytes));
            let closed = async {
                ends.await.expect("an end").expect("no reset");
                begin.elapsed().as_secs_f64()
            };
            let (seconds, ()) = tokio::join!(closed, send);
            assert!(
                (9.0..=11.0).contains(&seconds),
                "after {parts:?}: {seconds} s"
            );
            tokio::time::resume();
        }
    }

    /// The limit of ten seconds is for the head. A body has the time limit of the request.
    #[tokio::test]
    async fn a_body_may_take_longer_than_a_head() {
        let (tcp, mut client) = connected().await;
        let reads = Router::new().fallback(async |_: Bytes| "read");
        let drain = drain(CancellationToken::new(), LIMIT);
        tokio::spawn(serve(tcp, policy(), reads, TaskTracker::new(), drain));
        let head =
            b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n";
        client.write_all(head).await.expect("send");
        assert_eq!(status(&mut client).await, "HTTP/1.1 100");
        tokio::time::pause();
        tokio::time::sleep(Duration::from_secs(25)).await;
        tokio::time::resume();
        client.write_all(b"xx").await.expect("send");
        let mut reply = vec![0; 40];
        client.read_exact(&mut reply).await.expect("a reply");
        let reply = String::from_utf8_lossy(&reply);
        assert!(reply.contains("HTTP/1.1 200"), "{reply}");
    }

    /// Sends a request, and reads the reply to its end.
    async fn answered(client: &mut TcpStream) {
        client.write_all(REQUEST).await.expect("send");
        let mut reply = Vec::new();
        while !reply.ends_with(b"here") {
            let read = tokio::time::timeout(LIMIT, client.read_buf(&mut reply)).await;
            assert!(read.expect("in time").expect("a reply") > 0, "closed");
        }
    }

    /// One connection in place of ten thousand.
    #[tokio::test]
    async fn a_connection_too_many_waits_until_another_is_closed() {
        let pages = include_str!("../../docs/OPERATIONS.md").replace('\n', " ");
        assert!(pages.contains("at most 10,000 are open"));
        assert_eq!(MAX_CONNECTIONS, 10_000, "docs/OPERATIONS.md says so");
        let (tcp, mut first) = connected().await;
        let address = tcp.local_addr().expect("its address");
        let server = Server {
            policy: Arc::new(policy()),
            routes: greeting(),
            graceful: GracefulShutdown::new(),
            slots: Arc::new(Semaphore::new(1)),
            connections: TaskTracker::new(),
        };
        tokio::spawn(async move { server.accept(tcp, std::future::pending()).await });
        answered(&mut first).await;
        let mut second = TcpStream::connect(address).await.expect("connect");
        second.write_all(REQUEST).await.expect("send");
        for _ in 0..20 {
            answered(&mut first).await;
            let read = second.try_read(&mut [0]);
            let waits = read
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
            assert!(waits, "{read:?}");
        }
        drop(first);
        assert_eq!(status(&mut second).await, "HTTP/1.1 200");
    }

    /// The reply is larger than all buffers of the system, and the client reads nothing of it.
    #[tokio::test]
    async fn a_client_that_never_reads_is_cut_off() {
        let (tcp, mut client) = connected().await;
        client.write_all(REQUEST).await.expect("send");
        let arrived = CancellationToken::new();
        let drain = drain(arrived.clone(), Duration::ZERO);
        let large = Router::new().fallback(move || {
            arrived.cancel();
            async { "x".repeat(64 << 20) }
        });
        let served = serve(tcp, policy(), large, TaskTracker::new(), drain).await;
        assert!(
            served,
            "not by the deadline: it would be no time to finish purchases"
        );
        drop(client);
    }

    #[tokio::test]
    async fn a_drain_with_its_grace_ends_by_the_deadline_although_a_request_hangs() {
        let (tcp, mut client) = connected().await;
        client.write_all(REQUEST).await.expect("send");
        // Begins once the request is there: before, its connection would be an idle one.
        let arrived = CancellationToken::new();
        let drain = drain(arrived.clone(), Duration::ZERO);
        let drain = Drain {
            grace: Duration::from_secs(10),
            deadline: Duration::from_secs(20),
            ..drain
        };
        let began = Arc::new(OnceLock::new());
        let begins = began.clone();
        let hangs = Router::new().fallback(move || {
            // From here on no byte is waited for.
            tokio::time::pause();
            begins.get_or_init(Instant::now);
            arrived.cancel();
            std::future::pending::<()>()
        });
        assert!(!serve(tcp, policy(), hangs, TaskTracker::new(), drain).await);
        let took = began.get().expect("it arrived").elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
    }

    /// One client closes its half while its request is at work, the other all of it.
    #[tokio::test]
    async fn a_request_whose_client_is_gone_runs_to_its_end() {
        for closes_all in [false, true] {
            let (tcp, mut client) = connected().await;
            let [arrived, go_on, ended] = std::array::from_fn(|_| CancellationToken::new());
            let signals = (arrived.clone(), go_on.clone(), ended.clone());
            let slow = Router::new().fallback(async move || {
                let (arrived, go_on, ended) = signals.clone();
                arrived.cancel();
                go_on.cancelled().await;
                ended.cancel();
            });
            let drain = drain(CancellationToken::new(), LIMIT);
            let tasks = TaskTracker::new();
            tokio::spawn(serve(tcp, policy(), slow, tasks, drain));
            client.write_all(REQUEST).await.expect("send");
            arrived.cancelled().await;
            client.shutdown().await.expect("its half");
            let open_client = (!closes_all).then_some(client);
            // By now the server's side has heard of it.
            tokio::time::sleep(Duration::from_millis(50)).await;
            go_on.cancel();
            let ended = tokio::time::timeout(LIMIT, ended.cancelled()).await;
            ended.expect("an end of the work");
            if let Some(mut client) = open_client {
                assert_eq!(status(&mut client).await, "HTTP/1.1 200");
            }
        }
    }

    #[tokio::test]
    async fn connections_in_the_listeners_queue_are_served() {
        let (tcp, first) = connected().await;
        let mut clients = vec![first];
        for _ in 0..64 {
            let address = tcp.local_addr().expect("its address");
            clients.push(TcpStream::connect(address).await.expect("connect"));
        }
        for client in &mut clients {
            client.write_all(REQUEST).await.expect("send");
        }
        let drain = drain(begun(), LIMIT / 2);
        let serving = serve(tcp, policy(), greeting(), TaskTracker::new(), drain);
        let serving = tokio::spawn(serving);
        for mut client in clients {
            assert_eq!(status(&mut client).await, "HTTP/1.1 200");
        }
        assert!(serving.await.expect("served"), "all are closed");
    }

    #[tokio::test]
    async fn idle_connections_are_closed_only_after_their_time() {
        let (tcp, mut unused) = connected().await;
        let idle = Duration::from_secs(1);
        let begin = Instant::now();
        let drain = drain(begun(), idle);
        let serving = serve(tcp, policy(), greeting(), TaskTracker::new(), drain);
        let serving = tokio::spawn(serving);
        let closed = tokio::time::timeout(LIMIT, unused.read(&mut [0]))
            .await
            .expect("in time");
        assert_eq!(closed.expect("no reset"), 0);
        assert!(begin.elapsed() >= idle);
        assert!(serving.await.expect("served"), "all are closed");
    }
}
