//! A TCP proxy between an instance and its database (or its Redis), for faults on the wire: a server
//! that hangs, connections that break, a commit whose reply is lost. It also counts what is asked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What the proxy does to its connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Passes everything on.
    Forward,
    /// Keeps connections open and passes nothing on.
    Hang,
    /// Closes every connection, also new ones.
    Cut,
    /// Passes everything on but the reply to a COMMIT: in its place the connection is closed.
    LoseCommitReply,
    /// As [`Mode::LoseCommitReply`], and from then on as [`Mode::Cut`].
    LoseCommitReplyThenCut,
    /// Passes everything on but a COMMIT: in its place the connection is closed.
    LoseCommit,
    /// Passes everything on but an INSERT of orders: in its place the connection is closed.
    LoseInsert,
}

/// A running proxy.
pub struct Proxy {
    /// `127.0.0.1:<port>`
    pub address: SocketAddr,
    mode: Arc<watch::Sender<Mode>>,
    asked: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// A proxy in front of `server`, such as `127.0.0.1:13306`.
    pub async fn start(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let mode = Arc::new(watch::channel(Mode::Forward).0);
        let mut tasks = JoinSet::new();
        let modes = mode.clone();
        let asked = Arc::new(AtomicU64::new(0));
        let count = asked.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.expect("accept");
                connections.spawn(connection(client, server.clone(), modes.clone(), count.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Proxy { address, mode, asked, _tasks: tasks }
    }

    /// How many times clients have sent something: at least once per round trip that is waited for.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Changes what it does, from now on.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
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
    tokio::select! {
        () = requests(from_client, to_server, &mode, &losing, &asked) => {}
        () = replies(from_server, to_client, &mode, &losing) => {}
        _ = current.wait_for(|mode| *mode == Mode::Cut) => {}
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mode: &watch::Sender<Mode>,
    losing: &AtomicBool,
    asked: &AtomicU64,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        asked.fetch_add(1, Ordering::SeqCst);
        unless_hanging(mode).await;
        let says = |text: &[u8]| buffer[..length].windows(text.len()).any(|bytes| bytes == text);
        if *mode.borrow() == Mode::LoseInsert && says(b"INTO tb_voucher_order") {
            return;
        }
        if says(b"COMMIT") {
            match *mode.borrow() {
                Mode::LoseCommit => return,
                Mode::LoseCommitReply | Mode::LoseCommitReplyThenCut => {
                    losing.store(true, Ordering::SeqCst);
                }
                Mode::Forward | Mode::Hang | Mode::Cut | Mode::LoseInsert => {}
            }
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mode: &watch::Sender<Mode>,
    losing: &AtomicBool,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        unless_hanging(mode).await;
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

async fn unless_hanging(mode: &watch::Sender<Mode>) {
    // Fails only when the proxy is gone.
    mode.subscribe().wait_for(|mode| *mode != Mode::Hang).await.ok();
}
