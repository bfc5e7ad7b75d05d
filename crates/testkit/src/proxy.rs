//! A fault-injecting TCP proxy in front of a database or Redis: a server that hangs, connections that
//! break, lost replies, late requests. It also counts requests. It parses no protocol; the modes for
//! COMMIT and [`Mode::LoseRequest`] search the bytes of a request.
//!
//! Clients come from 127.0.0.1. Each other address has a mode of its own: servers that replicate from the one behind
//! the proxy, or watch it, connect from addresses such as 127.0.0.2 (Redis' `bind-source-addr`), and are cut off alone.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

/// How much later than its resent copy a [late request](Mode::DelayRequest) arrives.
const LATE_BY: Duration = Duration::from_millis(30);

/// The request COMMIT of MySQL's protocol: a query's code and its text, or the last of several statements in one text. The
/// word alone is part of READ COMMITTED, which every new connection sets.
const COMMITS: [&[u8]; 2] = [b"\x03COMMIT", b"; COMMIT"];

/// What the proxy does to its connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Passes everything on.
    Forward,
    /// Keeps connections open and passes nothing on.
    Hang,
    /// Keeps connections open, and passes requests on and the replies later.
    HangReplies,
    /// Closes every connection, also new ones.
    Cut,
    /// Closes the connection in place of the reply to a COMMIT.
    LoseCommitReply,
    /// As [`Mode::LoseCommitReply`] once, then as [`Mode::Cut`].
    LoseCommitReplyThenCut,
    /// Closes the connection in place of passing on a COMMIT.
    LoseCommit,
    /// As [`Mode::LoseCommitReply`], for requests that contain this text.
    LoseReplyTo(&'static str),
    /// As [`Mode::LoseReplyTo`] once, then as [`Mode::Cut`].
    LoseReplyToThenCut(&'static str),
    /// Closes the connection in place of the next reply; then as [`Mode::Forward`].
    LoseReply,
    /// Closes the connection of the next request, and passes the request on a moment later, when the
    /// client may have sent it again; then as [`Mode::Forward`].
    DelayRequest,
    /// Closes the connection of the next request, and keeps the request until [`Proxy::pass_held`]; then as
    /// [`Mode::Forward`].
    HoldRequest,
    /// Keeps each request that contains this text until [`Proxy::pass_held`], also when its client has closed
    /// its connection meanwhile. Its reply is lost.
    HoldRequests(&'static str),
    /// Passes requests on and drops replies. A connection with a dropped reply is closed when this
    /// mode ends, as its later replies would be read as the dropped ones.
    DropReplies,
    /// Closes the connection in place of passing on a request that contains this text.
    LoseRequest(&'static str),
    /// Closes the connection in place of every reply.
    LoseReplies,
    /// Connections that are open when this is set are half-open for good, whatever mode follows but
    /// [`Mode::Cut`]: they pass nothing any more in either direction and are not closed, not even
    /// when their client closes. It is a middlebox that forgot its flows. New ones work.
    HalfOpen,
    /// Keeps each COMMIT until another mode is set, and its connection to the server open until then,
    /// even when its client has closed.
    HoldCommits,
    /// Passes each request that contains this text on after this time, as [`Mode::HoldCommits`] does.
    DelayRequests(&'static str, Duration),
}

/// A running proxy, which ends with its connections when dropped.
#[derive(Debug)]
#[must_use = "dropping the proxy cuts its clients off"]
pub struct Proxy {
    /// `127.0.0.1:<port>`
    pub address: SocketAddr,
    mode: Arc<watch::Sender<Mode>>,
    others: Arc<Others>,
    requests: Arc<AtomicU64>,
    half_opened: Arc<AtomicU64>,
    held: Arc<Held>,
    _tasks: JoinSet<()>,
}

/// The requests that are kept: how many, and what lets them go.
#[derive(Debug, Default)]
struct Held {
    number: watch::Sender<usize>,
    pass: Notify,
}

/// The modes for those that do not come from 127.0.0.1.
#[derive(Debug, Default)]
struct Others(Mutex<HashMap<IpAddr, Arc<watch::Sender<Mode>>>>);

impl Others {
    fn mode(&self, from: IpAddr) -> Arc<watch::Sender<Mode>> {
        let mut modes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        modes.entry(from).or_insert_with(|| Arc::new(watch::channel(Mode::Forward).0)).clone()
    }
}

impl Proxy {
    /// A proxy in front of `server`, such as `127.0.0.1:13306`.
    pub async fn start(server: String) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mode = Arc::new(watch::channel(Mode::Forward).0);
        let mut tasks = JoinSet::new();
        let modes = mode.clone();
        let others = Arc::<Others>::default();
        let modes_of_others = others.clone();
        let requests = Arc::new(AtomicU64::new(0));
        let count = requests.clone();
        let half_opened = Arc::new(AtomicU64::new(0));
        let times = half_opened.clone();
        let held = Arc::<Held>::default();
        let holding = held.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                // An accept fails if its client is gone already, or for lack of file descriptors.
                match listener.accept().await {
                    Ok((client, from)) => {
                        let (mode, flow) = if from.ip() == IpAddr::V4(Ipv4Addr::LOCALHOST) {
                            (modes.clone(), Flow::new(times.clone()))
                        } else {
                            (modes_of_others.mode(from.ip()), Flow::new(Arc::default()))
                        };
                        let (server, count) = (server.clone(), count.clone());
                        let held = holding.clone();
                        connections.spawn(connection(client, server, mode, count, flow, held));
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Proxy { address, mode, others, requests, half_opened, held, _tasks: tasks })
    }

    /// A Redis client that goes through it.
    #[allow(clippy::expect_used)]
    pub fn redis(&self) -> redis::Client {
        redis::Client::open(format!("redis://{}/", self.address)).expect("a valid address")
    }

    /// The number of requests: a client's bytes read at once count as one.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// How many requests it [keeps](Mode::HoldRequests).
    pub fn held(&self) -> usize {
        *self.held.number.borrow()
    }

    /// Passes on the requests that it keeps; returns when the server has answered them.
    pub async fn pass_held(&self) {
        self.held.pass.notify_waiters();
        // Fails only if the proxy is gone.
        self.held.number.subscribe().wait_for(|number| *number == 0).await.ok();
    }

    /// Changes what it does to connections from 127.0.0.1, from now on.
    pub fn set(&self, mode: Mode) {
        if mode == Mode::HalfOpen {
            self.half_opened.fetch_add(1, Ordering::SeqCst);
        }
        self.mode.send_replace(mode);
    }

    /// Changes what it does, from now on, to connections from this address, which is not 127.0.0.1. They cannot be
    /// [half-open](Mode::HalfOpen).
    pub fn set_for(&self, from: IpAddr, mode: Mode) {
        self.others.mode(from).send_replace(mode);
    }

    /// What it does now; the modes for one reply or request end by themselves.
    pub fn mode(&self) -> Mode {
        *self.mode.borrow()
    }
}

/// Whether a connection was opened before the last [`Mode::HalfOpen`].
struct Flow {
    half_opened: Arc<AtomicU64>,
    at_accept: u64,
}

impl Flow {
    fn new(half_opened: Arc<AtomicU64>) -> Self {
        let at_accept = half_opened.load(Ordering::SeqCst);
        Self { half_opened, at_accept }
    }

    /// Never returns if it was.
    async fn unless_half_open(&self) {
        if self.half_opened.load(Ordering::SeqCst) != self.at_accept {
            std::future::pending().await
        }
    }
}

async fn connection(
    client: TcpStream,
    server: String,
    mode: Arc<watch::Sender<Mode>>,
    requests: Arc<AtomicU64>,
    flow: Flow,
    held: Arc<Held>,
) {
    let mut current = mode.subscribe();
    if *current.borrow() == Mode::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    // Set if the next reply is to be lost.
    let losing = AtomicBool::new(false);
    let requests = forward_requests(from_client, to_server, &mode, &losing, &requests, &flow);
    let late = tokio::select! {
        late = requests => late,
        () = forward_replies(&mut from_server, &mut to_client, &mode, &losing, &flow) => None,
        _ = current.wait_for(|mode| *mode == Mode::Cut) => None,
    };
    let Some(Late { request, mut to_server, kept, client }) = late else { return };
    // The connection to the server stays open, that of the client only with `client`.
    let client = client.map(|from_client| (from_client, to_client));
    if kept {
        let passed = held.pass.notified();
        held.number.send_modify(|number| *number += 1);
        passed.await;
    } else {
        tokio::time::sleep(LATE_BY).await;
    }
    to_server.write_all(&request).await.ok();
    // The reply shows that it was executed.
    from_server.read_u8().await.ok();
    if kept {
        held.number.send_modify(|number| *number -= 1);
    }
    drop(client);
}

/// A request that is passed on when its connection is given up.
struct Late {
    request: Vec<u8>,
    to_server: OwnedWriteHalf,
    /// Until it is told; else for a moment.
    kept: bool,
    client: Option<OwnedReadHalf>,
}

/// Passes requests on until a connection closes, or until one is to be late, which it returns.
async fn forward_requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mode: &watch::Sender<Mode>,
    losing: &AtomicBool,
    requests: &AtomicU64,
    flow: &Flow,
) -> Option<Late> {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        requests.fetch_add(1, Ordering::SeqCst);
        unless_hanging(mode).await;
        flow.unless_half_open().await;
        let delayed = take_fault(mode, Mode::DelayRequest);
        if delayed || take_fault(mode, Mode::HoldRequest) {
            let request = buffer[..length].to_vec();
            return Some(Late { request, to_server: to, kept: !delayed, client: None });
        }
        let contains =
            |text: &[u8]| buffer[..length].windows(text.len()).any(|bytes| bytes == text);
        let commits = || COMMITS.into_iter().any(contains);
        let current = *mode.borrow();
        match current {
            Mode::LoseRequest(text) if contains(text.as_bytes()) => return None,
            Mode::HoldRequests(text) if contains(text.as_bytes()) => {
                let request = buffer[..length].to_vec();
                return Some(Late { request, to_server: to, kept: true, client: Some(from) });
            }
            Mode::LoseCommit if commits() => return None,
            Mode::LoseCommitReply | Mode::LoseCommitReplyThenCut if commits() => {
                losing.store(true, Ordering::SeqCst);
            }
            Mode::LoseReplyTo(text) | Mode::LoseReplyToThenCut(text)
                if contains(text.as_bytes()) =>
            {
                losing.store(true, Ordering::SeqCst);
            }
            Mode::LoseReplies => losing.store(true, Ordering::SeqCst),
            Mode::HoldCommits if commits() => {
                // Fails only if the proxy is gone.
                mode.subscribe().wait_for(|mode| *mode != Mode::HoldCommits).await.ok();
            }
            Mode::DelayRequests(text, time) if contains(text.as_bytes()) => {
                tokio::time::sleep(time).await;
            }
            _ => {}
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            break;
        }
    }
    flow.unless_half_open().await;
    None
}

/// Passes replies on until a connection closes, or a reply is to be lost.
async fn forward_replies(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    mode: &watch::Sender<Mode>,
    losing: &AtomicBool,
    flow: &Flow,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        // Fails only if the proxy is gone.
        mode.subscribe().wait_for(|mode| *mode != Mode::HangReplies).await.ok();
        unless_hanging(mode).await;
        flow.unless_half_open().await;
        if *mode.borrow() == Mode::DropReplies {
            // Fails only if the proxy is gone.
            mode.subscribe().wait_for(|mode| *mode != Mode::DropReplies).await.ok();
            return;
        }
        if take_fault(mode, Mode::LoseReply) {
            return;
        }
        if losing.load(Ordering::SeqCst) {
            let then_cut = matches!(
                *mode.borrow(),
                Mode::LoseCommitReplyThenCut | Mode::LoseReplyToThenCut(_)
            );
            if then_cut {
                mode.send_replace(Mode::Cut);
            }
            return;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            break;
        }
    }
    flow.unless_half_open().await;
}

/// Whether `fault` is set; if so, resets it to [`Mode::Forward`], as it is for one connection only.
fn take_fault(mode: &watch::Sender<Mode>, fault: Mode) -> bool {
    mode.send_if_modified(|mode| {
        let set = *mode == fault;
        if set {
            *mode = Mode::Forward;
        }
        set
    })
}

async fn unless_hanging(mode: &watch::Sender<Mode>) {
    // Fails only if the proxy is gone.
    mode.subscribe().wait_for(|mode| *mode != Mode::Hang).await.ok();
}
