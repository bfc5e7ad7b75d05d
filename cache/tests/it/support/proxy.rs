//! A TCP proxy between a program and its database or Redis, for faults on the wire: a server that
//! hangs, connections that break, replies that are lost, requests that arrive late. It also counts
//! what is asked. Of what passes it knows two words of SQL.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How much later than its resent copy a [late request](Mode::DelayRequest) arrives.
const LATE_BY: Duration = Duration::from_millis(30);

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
    /// Passes everything on but the reply to a COMMIT: in its place the connection is closed.
    LoseCommitReply,
    /// As [`Mode::LoseCommitReply`], and from then on as [`Mode::Cut`].
    LoseCommitReplyThenCut,
    /// Passes everything on but a COMMIT: in its place the connection is closed.
    LoseCommit,
    /// The next reply is lost and its connection closed; then as [`Mode::Forward`].
    LoseReply,
    /// The client of the next request is cut off, and the request reaches the server a moment
    /// later, when the client may have sent it again; then as [`Mode::Forward`].
    DelayRequest,
    /// Passes requests on and no reply. A connection that missed one is closed when this ends:
    /// its later replies would be taken for the answers that were missed.
    Deaf,
    /// Passes everything on but an INSERT of orders: in its place the connection is closed.
    LoseInsert,
    /// Passes every request on, and closes the connection in place of its reply.
    LoseReplies,
}

/// A running proxy; gone, with its connections, when dropped.
#[derive(Debug)]
pub struct Proxy {
    /// `127.0.0.1:<port>`
    pub address: SocketAddr,
    mode: Arc<watch::Sender<Mode>>,
    asked: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// A proxy in front of `server`, such as `127.0.0.1:13306`.
    ///
    /// # Errors
    /// The system's, when no port can be had.
    pub async fn start(server: String) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mode = Arc::new(watch::channel(Mode::Forward).0);
        let mut tasks = JoinSet::new();
        let modes = mode.clone();
        let asked = Arc::new(AtomicU64::new(0));
        let count = asked.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                // An accept fails when its client is gone already, or for want of descriptors.
                match listener.accept().await {
                    Ok((client, _)) => drop(connections.spawn(connection(
                        client,
                        server.clone(),
                        modes.clone(),
                        count.clone(),
                    ))),
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Proxy { address, mode, asked, _tasks: tasks })
    }

    /// A Redis client that goes through it.
    #[allow(clippy::expect_used)]
    pub fn redis(&self) -> redis::Client {
        redis::Client::open(format!("redis://{}/", self.address)).expect("a valid address")
    }

    /// How many times clients have sent something: at least once per round trip that is waited for.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Changes what it does, from now on.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// What it does now; the modes for one reply or request end by themselves.
    pub fn mode(&self) -> Mode {
        *self.mode.borrow()
    }
}

async fn connection(
    client: TcpStream,
    server: String,
    mode: Arc<watch::Sender<Mode>>,
    asked: Arc<AtomicU64>,
) {
    let mut current = mode.subscribe();
    if *current.borrow() == Mode::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Set when the next reply is the one to lose.
    let losing = AtomicBool::new(false);
    let late = tokio::select! {
        late = requests(from_client, to_server, &mode, &losing, &asked) => late,
        () = replies(from_server, to_client, &mode, &losing) => None,
        _ = current.wait_for(|mode| *mode == Mode::Cut) => None,
    };
    // Here the client has been cut off; the server's half may still be of use.
    if let Some((mut to_server, request)) = late {
        tokio::time::sleep(LATE_BY).await;
        to_server.write_all(&request).await.ok();
        // Closed at once, it might never be read.
        tokio::time::sleep(LATE_BY).await;
    }
}

/// Pass requests on until either side closes, or until one is to be late: then that one.
async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mode: &watch::Sender<Mode>,
    losing: &AtomicBool,
    asked: &AtomicU64,
) -> Option<(OwnedWriteHalf, Vec<u8>)> {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        asked.fetch_add(1, Ordering::SeqCst);
        unless_hanging(mode).await;
        if once(mode, Mode::DelayRequest) {
            return Some((to, buffer[..length].to_vec()));
        }
        let says = |text: &[u8]| buffer[..length].windows(text.len()).any(|bytes| bytes == text);
        if *mode.borrow() == Mode::LoseInsert && says(b"INTO tb_voucher_order") {
            return None;
        }
        let current = *mode.borrow();
        match current {
            Mode::LoseCommit if says(b"COMMIT") => return None,
            Mode::LoseCommitReply | Mode::LoseCommitReplyThenCut if says(b"COMMIT") => {
                losing.store(true, Ordering::SeqCst);
            }
            Mode::LoseReplies => losing.store(true, Ordering::SeqCst),
            _ => {}
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return None;
        }
    }
    None
}

/// Pass replies on until either side closes, or a reply is to be lost.
async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mode: &watch::Sender<Mode>,
    losing: &AtomicBool,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        // Fails only when the proxy is gone.
        mode.subscribe().wait_for(|mode| *mode != Mode::HangReplies).await.ok();
        unless_hanging(mode).await;
        if *mode.borrow() == Mode::Deaf {
            // Fails only when the proxy is gone.
            mode.subscribe().wait_for(|mode| *mode != Mode::Deaf).await.ok();
            return;
        }
        if once(mode, Mode::LoseReply) {
            return;
        }
        if losing.load(Ordering::SeqCst) {
            if *mode.borrow() == Mode::LoseCommitReplyThenCut {
                mode.send_replace(Mode::Cut);
            }
            return;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// Whether this connection is the one that meets `fault`: it is for one only.
fn once(mode: &watch::Sender<Mode>, fault: Mode) -> bool {
    mode.send_if_modified(|mode| {
        let meets = *mode == fault;
        if meets {
            *mode = Mode::Forward;
        }
        meets
    })
}

async fn unless_hanging(mode: &watch::Sender<Mode>) {
    // Fails only when the proxy is gone.
    mode.subscribe().wait_for(|mode| *mode != Mode::Hang).await.ok();
}
