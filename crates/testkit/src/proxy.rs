//! A fault-injecting TCP proxy in front of a database or Redis: a server that hangs, connections that
//! break, lost replies, late requests. It also counts requests. It parses no protocol; the modes for
//! COMMIT and [`Mode::LoseRequest`] search the bytes of a request.
//!
//! Clients come from 127.0.0.1. Each other address has a mode of its own: servers that replicate from the one behind
//! the proxy, or watch it, connect from addresses such as 127.0.0.2 (Redis' `bind-source-addr`), so that they can be cut
//! off without the clients.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Where clients come from.
const CLIENTS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// For how long [`Proxy::pass_held`] waits for the server's answers.
const PASS_LIMIT: Duration = Duration::from_secs(60);

/// How much later than its resent copy a [late request](Mode::DelayRequest) arrives.
const LATE_BY: Duration = Duration::from_millis(30);

/// Whether more replies of MySQL's protocol follow to the statements of one text. If the last packet is an OK or the end of
/// rows, its flag SERVER_MORE_RESULTS_EXISTS says so. A server that is cut off before the last reply may not run the
/// remaining statements.
fn more_results_follow(replies: &[u8]) -> bool {
    const MORE_RESULTS: u8 = 8;
    let Some([_, _, _, _, packet @ ..]) = packets(replies).pop() else {
        return false;
    };
    match packet {
        // Rows changed and the last id, as length-encoded numbers; then the status.
        [0, numbers @ ..] => {
            let status = skip_number(skip_number(numbers));
            status.first().is_some_and(|flags| flags & MORE_RESULTS > 0)
        }
        [0xfe, _, _, flags, _] => flags & MORE_RESULTS > 0,
        [0xff, ..] => false,
        // Columns and rows: their end follows.
        _ => true,
    }
}

/// The complete packets of MySQL's protocol in these bytes, each with its header: three bytes of length, and its number.
fn packets(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut packets = Vec::new();
    while let [a, b, c, ..] = bytes {
        let length = 4 + (usize::from(*a) | usize::from(*b) << 8 | usize::from(*c) << 16);
        let Some((packet, after)) = bytes.split_at_checked(length) else {
            break;
        };
        packets.push(packet);
        bytes = after;
    }
    packets
}

/// The first packets of these replies, and an error in place of the others, as `mode` wants it.
fn failed_reply(mode: Mode, replies: &[u8]) -> Vec<u8> {
    let mut packets = packets(replies);
    let error: &[u8] = if mode == Mode::FailCommit {
        packets.pop();
        b"\xff\x9c\x04#HY000Got error 28 during COMMIT"
    } else {
        packets.truncate(2);
        // Of no known number.
        b"\xff\x51\x04#HY000lost connection to the server"
    };
    let mut failed = packets.concat();
    failed.extend([error.len() as u8, 0, 0, packets.len() as u8 + 1]);
    failed.extend(error);
    failed
}

fn skip_number(bytes: &[u8]) -> &[u8] {
    let length = match bytes.first() {
        Some(0xfc) => 3,
        Some(0xfd) => 4,
        Some(0xfe) => 9,
        _ => 1,
    };
    bytes.get(length..).unwrap_or_default()
}

/// The request COMMIT of MySQL's protocol: a query's code and its text, or the last of several statements in one text. The
/// word alone is part of READ COMMITTED, which every new connection sets.
const COMMITS: [&str; 2] = ["\x03COMMIT", "; COMMIT"];

/// What the proxy does to its connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Passes everything on.
    Forward,
    /// Keeps connections open and passes nothing on.
    Hang,
    /// Keeps connections open and passes requests on; the replies follow when another mode is set.
    HangReplies,
    /// Closes every connection, also new ones.
    Cut,
    /// Closes the connection in place of the reply to a COMMIT, once the server has run it.
    LoseCommitReply,
    /// As [`Mode::LoseCommitReply`] once, then as [`Mode::Cut`].
    LoseCommitReplyThenCut,
    /// Closes the connection in place of passing on a COMMIT.
    LoseCommit,
    /// As [`Mode::LoseCommitReply`], for requests that contain this text.
    LoseReplyTo(&'static str),
    /// As [`Mode::LoseReplyTo`] once, then as [`Mode::Cut`].
    LoseReplyToThenCut(&'static str),
    /// Once the server has run all of a request that contains this text, passes on the first two results of MySQL's protocol
    /// and then an error, as a proxy does that has lost its server; then as [`Mode::Forward`].
    FailReplyTo(&'static str),
    /// Once the server has run a COMMIT, passes on an error of the storage engine (1180) in place of its reply; then as
    /// [`Mode::Forward`].
    FailCommit,
    /// Closes the connection in place of the next reply; then as [`Mode::Forward`].
    LoseReply,
    /// Closes the connection of the next request, and passes the request on a moment later, when the
    /// client may have sent it again; then as [`Mode::Forward`].
    DelayRequest,
    /// Closes the connection of the next request, and keeps the request until [`Proxy::pass_held`]; then as
    /// [`Mode::Forward`].
    HoldRequest,
    /// As [`Mode::HoldRequest`], for the next request that contains this text.
    HoldRequestWith(&'static str),
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
    /// when their client closes. A middlebox that forgot its flows does the same. New connections work.
    HalfOpen,
    /// Keeps each COMMIT until another mode is set, and its connection to the server open until then,
    /// even when its client has closed.
    HoldCommits,
    /// From the next request of a connection on, keeps all that its client sends until [`Proxy::pass_held`], also the close
    /// of the connection; then passes it on in that order. What the server sends is passed on all the while. A connection
    /// whose bytes are kept stays so, whatever mode follows but [`Mode::Cut`].
    HoldBytes,
    /// Passes each request that contains this text on after this time, as [`Mode::HoldCommits`] does.
    DelayRequests(&'static str, Duration),
}

/// A running proxy, which ends with its connections when dropped.
#[derive(Debug)]
#[must_use = "dropping the proxy cuts its clients off"]
pub struct Proxy {
    /// `127.0.0.1:<port>`
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
}

/// What the proxy and its connections share.
#[derive(Debug)]
struct Shared {
    server: watch::Sender<String>,
    /// For each address that connections come from.
    modes: Mutex<HashMap<IpAddr, Arc<watch::Sender<Mode>>>>,
    requests: AtomicU64,
    /// How many requests contained each of these texts.
    counted: Mutex<HashMap<&'static str, u64>>,
    half_opened: AtomicU64,
    /// How many requests are kept.
    held: watch::Sender<usize>,
    /// Lets the kept requests go.
    pass: Notify,
}

impl Shared {
    fn counted(&self) -> MutexGuard<'_, HashMap<&'static str, u64>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mode(&self, from: IpAddr) -> Arc<watch::Sender<Mode>> {
        let mut modes = self.modes.lock().unwrap_or_else(PoisonError::into_inner);
        modes
            .entry(from)
            .or_insert_with(|| Arc::new(watch::Sender::new(Mode::Forward)))
            .clone()
    }
}

impl Proxy {
    /// A proxy in front of `server`, such as `127.0.0.1:13306`.
    pub async fn start(server: String) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            server: watch::Sender::new(server),
            modes: Mutex::default(),
            requests: AtomicU64::new(0),
            counted: Mutex::default(),
            half_opened: AtomicU64::new(0),
            held: watch::Sender::new(0),
            pass: Notify::new(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, shared.clone()));
        Ok(Proxy {
            address,
            shared,
            _tasks: tasks,
        })
    }

    /// A Redis client that goes through it.
    pub fn redis(&self) -> redis::Client {
        redis::Client::open(format!("redis://{}/", self.address)).expect("a valid address")
    }

    /// The number of requests: a client's bytes read at once count as one.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// From now on also counts the requests that contain this text, from 0.
    pub fn count(&self, text: &'static str) {
        self.shared.counted().insert(text, 0);
    }

    /// How many requests with this text there were since [`Proxy::count`].
    pub fn counted(&self, text: &str) -> u64 {
        self.shared.counted()[text]
    }

    /// How many requests it [keeps](Mode::HoldRequests), or passes on late, plus the connections whose
    /// [bytes](Mode::HoldBytes) it keeps.
    pub fn held(&self) -> usize {
        *self.shared.held.borrow()
    }

    /// Passes on the requests that it keeps; returns when the server has answered them, or has closed the connection as its
    /// client had before. Panics where it does neither within a minute.
    pub async fn pass_held(&self) {
        self.shared.pass.notify_waiters();
        let mut held = self.shared.held.subscribe();
        let all_passed = held.wait_for(|number| *number == 0);
        if tokio::time::timeout(PASS_LIMIT, all_passed).await.is_err() {
            panic!("{} requests are not answered", self.held());
        }
    }

    /// Leads new connections to this server; those that are open stay where they are.
    pub fn lead_to(&self, server: String) {
        self.shared.server.send_replace(server);
    }

    /// Changes what it does to connections from 127.0.0.1, from now on.
    pub fn set(&self, mode: Mode) {
        if mode == Mode::HalfOpen {
            self.shared.half_opened.fetch_add(1, Ordering::SeqCst);
        }
        self.set_for(CLIENTS, mode);
    }

    /// Changes what it does, from now on, to connections from this address. Those from another than 127.0.0.1 cannot be
    /// [half-open](Mode::HalfOpen).
    pub fn set_for(&self, from: IpAddr, mode: Mode) {
        self.shared.mode(from).send_replace(mode);
    }

    /// What it does now; the modes for one reply or request end by themselves.
    pub fn mode(&self) -> Mode {
        *self.shared.mode(CLIENTS).borrow()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        // An accept fails if its client is gone already, or for lack of file descriptors.
        match listener.accept().await {
            Ok((client, from)) => {
                let link = Link::new(shared.clone(), from.ip());
                connections.spawn(link.serve(client));
            }
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

/// A connection.
struct Link {
    shared: Arc<Shared>,
    mode: Arc<watch::Sender<Mode>>,
    /// How many times [`Mode::HalfOpen`] had been set when it was accepted; `None` if it cannot become half-open.
    half_opened: Option<u64>,
    /// Whether the next reply is to be lost.
    losing: AtomicBool,
}

impl Link {
    fn new(shared: Arc<Shared>, from: IpAddr) -> Self {
        let half_opened = shared.half_opened.load(Ordering::SeqCst);
        let half_opened = (from == CLIENTS).then_some(half_opened);
        Self {
            mode: shared.mode(from),
            shared,
            half_opened,
            losing: AtomicBool::new(false),
        }
    }

    async fn serve(self, client: TcpStream) {
        let mut current = self.mode.subscribe();
        if *current.borrow() == Mode::Cut {
            return;
        }
        let server = self.shared.server.borrow().clone();
        let Ok(server) = TcpStream::connect(server).await else {
            return;
        };
        client.set_nodelay(true).ok();
        server.set_nodelay(true).ok();
        let (from_client, mut to_client) = client.into_split();
        let (mut from_server, to_server) = server.into_split();
        let late = tokio::select! {
            late = self.forward_requests(from_client, to_server) => late,
            () = self.forward_replies(&mut from_server, &mut to_client) => None,
            _ = current.wait_for(|mode| *mode == Mode::Cut) => None,
        };
        let Some(Late {
            request,
            mut to_server,
            delay,
            client,
        }) = late
        else {
            return;
        };
        // The connection to the server stays open; that to the client only if there is a `client`.
        let client = client.map(|from_client| (from_client, to_client));
        let passed = self.shared.pass.notified();
        let held = Held::new(&self.shared.held);
        match delay {
            Some(delay) => sleep(delay).await,
            None => passed.await,
        }
        to_server.write_all(&request).await.ok();
        // The reply shows that it was executed.
        from_server.read_u8().await.ok();
        drop(held);
        drop(client);
    }

    /// Passes requests on, and the client's close after them; returns when the connection is to be closed at once, or a
    /// request is to be late.
    async fn forward_requests(
        &self,
        mut from_client: OwnedReadHalf,
        mut to_server: OwnedWriteHalf,
    ) -> Option<Late> {
        let mut buffer = vec![0; 64 * 1024];
        let mut held = None;
        while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
            self.shared.requests.fetch_add(1, Ordering::SeqCst);
            self.end_of(Mode::Hang).await;
            self.unless_half_open().await;
            let request = &buffer[..length];
            self.count(request);
            match self.apply_mode(request).await {
                Treatment::Pass => {
                    if to_server.write_all(request).await.is_err() {
                        break;
                    }
                }
                Treatment::Lose => return None,
                Treatment::PassLate(delay) => {
                    return Some(Late {
                        request: request.to_vec(),
                        to_server,
                        delay,
                        client: None,
                    });
                }
                Treatment::Hold => {
                    return Some(Late {
                        request: request.to_vec(),
                        to_server,
                        delay: None,
                        client: Some(from_client),
                    });
                }
                Treatment::HoldBytes => {
                    let passed = self.shared.pass.notified();
                    held = Some(Held::new(&self.shared.held));
                    let mut bytes = request.to_vec();
                    let has_closed = self.read_until(passed, &mut from_client, &mut bytes).await;
                    if self.is_half_open() {
                        break;
                    }
                    if to_server.write_all(&bytes).await.is_err() || has_closed {
                        break;
                    }
                    held = None;
                }
            }
        }
        if !self.is_half_open() {
            to_server.shutdown().await.ok();
        }
        // The server closes the connection when it has executed what it was sent: then the replies end. On a half-open one
        // nothing arrives any more.
        let mut mode = self.mode.subscribe();
        mode.wait_for(|_| self.is_half_open()).await.ok();
        drop(held);
        std::future::pending().await
    }

    /// What the present mode does to this request; a request that is only delayed is to be passed on when this returns. Notes
    /// whether its reply is to be lost.
    async fn apply_mode(&self, request: &[u8]) -> Treatment {
        if self.take_fault(Mode::DelayRequest) {
            return Treatment::PassLate(Some(LATE_BY));
        }
        if self.take_fault(Mode::HoldRequest) {
            return Treatment::PassLate(None);
        }
        let contains_text = |text: &str| contains(request, text);
        let is_commit = || COMMITS.into_iter().any(contains_text);
        let lose_reply = || self.losing.store(true, Ordering::SeqCst);
        let current = *self.mode.borrow();
        match current {
            Mode::HoldRequestWith(text) if contains_text(text) && self.take_fault(current) => {
                return Treatment::PassLate(None);
            }
            Mode::LoseRequest(text) if contains_text(text) => return Treatment::Lose,
            Mode::HoldRequests(text) if contains_text(text) => return Treatment::Hold,
            Mode::LoseCommit if is_commit() => return Treatment::Lose,
            Mode::LoseCommitReply | Mode::LoseCommitReplyThenCut | Mode::FailCommit
                if is_commit() =>
            {
                lose_reply();
            }
            Mode::LoseReplyTo(text) | Mode::LoseReplyToThenCut(text) | Mode::FailReplyTo(text)
                if contains_text(text) =>
            {
                lose_reply();
            }
            Mode::LoseReplies => lose_reply(),
            Mode::HoldCommits if is_commit() => self.end_of(Mode::HoldCommits).await,
            Mode::HoldBytes => return Treatment::HoldBytes,
            Mode::DelayRequests(text, time) if contains_text(text) => sleep(time).await,
            _ => {}
        }
        Treatment::Pass
    }

    /// Passes replies on until the server closes the connection, or a reply is to be lost.
    async fn forward_replies(
        &self,
        from_server: &mut OwnedReadHalf,
        to_client: &mut OwnedWriteHalf,
    ) {
        let mut buffer = vec![0; 64 * 1024];
        let mut lost = Vec::new();
        while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
            self.end_of(Mode::HangReplies).await;
            self.end_of(Mode::Hang).await;
            self.unless_half_open().await;
            let current = *self.mode.borrow();
            if current == Mode::DropReplies {
                return self.end_of(Mode::DropReplies).await;
            }
            if self.take_fault(Mode::LoseReply) {
                return;
            }
            if self.losing.load(Ordering::SeqCst) {
                lost.extend_from_slice(&buffer[..length]);
                if more_results_follow(&lost) {
                    continue;
                }
                if matches!(current, Mode::FailReplyTo(_) | Mode::FailCommit)
                    && self.take_fault(current)
                {
                    self.losing.store(false, Ordering::SeqCst);
                    let failed = failed_reply(current, &lost);
                    to_client.write_all(&failed).await.ok();
                    lost.clear();
                    continue;
                }
                if matches!(
                    current,
                    Mode::LoseCommitReplyThenCut | Mode::LoseReplyToThenCut(_)
                ) {
                    self.mode.send_replace(Mode::Cut);
                }
                return;
            }
            // A client that is gone has closed the other direction as well, which ends the connection after its last request.
            to_client.write_all(&buffer[..length]).await.ok();
        }
        self.unless_half_open().await;
    }

    fn count(&self, request: &[u8]) {
        for (text, number) in self.shared.counted().iter_mut() {
            *number += u64::from(contains(request, text));
        }
    }

    /// Adds what the client sends to `bytes` until `passed`. Returns whether it has closed its connection.
    async fn read_until(
        &self,
        passed: Notified<'_>,
        client: &mut OwnedReadHalf,
        bytes: &mut Vec<u8>,
    ) -> bool {
        let mut passed = pin!(passed);
        loop {
            tokio::select! {
                () = &mut passed => return false,
                read = client.read_buf(bytes) => if !matches!(read, Ok(1..)) {
                    passed.await;
                    return true;
                },
            }
            self.shared.requests.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether `fault` is set; if so, resets it to [`Mode::Forward`], as it is for one connection only.
    fn take_fault(&self, fault: Mode) -> bool {
        self.mode.send_if_modified(|mode| {
            let set = *mode == fault;
            if set {
                *mode = Mode::Forward;
            }
            set
        })
    }

    /// Waits while this mode is set.
    async fn end_of(&self, mode: Mode) {
        // Fails only if the proxy is gone.
        self.mode
            .subscribe()
            .wait_for(|current| *current != mode)
            .await
            .ok();
    }

    /// Whether [`Mode::HalfOpen`] was set since it was accepted.
    fn is_half_open(&self) -> bool {
        let now = self.shared.half_opened.load(Ordering::SeqCst);
        self.half_opened.is_some_and(|before| before != now)
    }

    /// Never returns if it is half-open.
    async fn unless_half_open(&self) {
        if self.is_half_open() {
            std::future::pending().await
        }
    }
}

fn contains(request: &[u8], text: &str) -> bool {
    request
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

/// Counts as one kept request, or connection whose bytes are kept, for as long as it lives.
struct Held<'a>(&'a watch::Sender<usize>);

impl<'a> Held<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|number| *number += 1);
        Self(count)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|number| *number -= 1);
    }
}

/// What becomes of a request.
enum Treatment {
    /// It is passed on.
    Pass,
    /// Its connection is closed instead.
    Lose,
    /// Its connection is closed, and it is passed on after this time; without one, at [`Proxy::pass_held`].
    PassLate(Option<Duration>),
    /// It is kept until [`Proxy::pass_held`], and its reply is lost. The client's connection stays open until then.
    Hold,
    /// It is kept until [`Proxy::pass_held`], with all that the client sends in the meantime.
    HoldBytes,
}

/// A request that is passed on when its connection is given up.
struct Late {
    request: Vec<u8>,
    to_server: OwnedWriteHalf,
    /// `None`: until [`Proxy::pass_held`].
    delay: Option<Duration>,
    client: Option<OwnedReadHalf>,
}
