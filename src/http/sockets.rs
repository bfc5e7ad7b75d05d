//! The listening sockets: TCP, and a Unix socket for a proxy on the same machine, which spares both ends the kernel's TCP.
//!
//! A Unix socket is a file. It outlives a process that was killed, refuses connections from then on, and would keep the
//! next one from binding, so such a file is replaced. The file of an open socket goes with it.

use std::fs::Permissions;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixSocket, UnixStream};

/// Connections that the kernel queues until they are accepted: a sale opens with a burst of them.
const BACKLOG: u32 = 4096;

/// A Unix socket has no address of its clients: they count as this machine's.
const THIS_MACHINE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A socket that accepts connections.
pub trait Listener: Sized + Send + Sync {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, and its peer's address.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, IpAddr)>> + Send;

    /// To close it without a reset of the connections that the kernel has queued: the function returns them one by one,
    /// then [`io::ErrorKind::WouldBlock`]; dropping it closes the socket.
    fn close(self) -> io::Result<impl FnMut() -> io::Result<(Self::Stream, IpAddr)>>;
}

/// Binds `address`, with a backlog sized for a burst. To be called within a tokio runtime.
pub fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, IpAddr)> {
        self.accept().await.map(without_delay)
    }

    fn close(self) -> io::Result<impl FnMut() -> io::Result<(TcpStream, IpAddr)>> {
        // Not by tokio, which may not have heard of the last ones yet.
        let listener = self.into_std()?;
        Ok(move || {
            let (stream, peer) = listener.accept()?;
            stream.set_nonblocking(true)?;
            Ok(without_delay((TcpStream::from_std(stream)?, peer)))
        })
    }
}

/// Nagle's algorithm would hold small replies back for up to 40 ms.
fn without_delay((stream, peer): (TcpStream, SocketAddr)) -> (TcpStream, IpAddr) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    (stream, peer.ip())
}

/// A listening Unix socket and its file.
#[derive(Debug)]
pub struct UnixSocketListener {
    // Dropped first: once nobody listens, there is no file either.
    file: SocketFile,
    listener: UnixListener,
}

impl Listener for UnixSocketListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, IpAddr)> {
        self.listener.accept().await.map(|(stream, _)| (stream, THIS_MACHINE))
    }

    fn close(self) -> io::Result<impl FnMut() -> io::Result<(UnixStream, IpAddr)>> {
        drop(self.file);
        let listener = self.listener.into_std()?;
        Ok(move || {
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(true)?;
            Ok((UnixStream::from_std(stream)?, THIS_MACHINE))
        })
    }
}

/// Listens on a Unix socket at `path`, which any user may open. To be called within a tokio runtime.
///
/// # Errors
/// Another process listens there; there is something else than a socket; the system's.
pub async fn bind_unix(path: &Path) -> anyhow::Result<UnixSocketListener> {
    remove_stale(path).await?;
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(path)? };
    std::fs::set_permissions(path, Permissions::from_mode(0o666))?;
    Ok(UnixSocketListener { file, listener: socket.listen(BACKLOG)? })
}

/// Removes the socket of a process that has ended: one that refuses connections.
async fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let kind = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    ensure!(kind.is_socket(), "there is a file that is not a socket");
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).context("cannot remove the socket of a process that ended")
        }
        // Its queue may be full.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
            Err(error).context("cannot find out whether a process listens there")
        }
        _ => bail!("another process listens there"),
    }
}

/// The file of a Unix socket; removed when dropped.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Its device and number in it.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another process may have replaced it.
        let removed = identity(&self.path).and_then(|found| match found == self.identity {
            true => std::fs::remove_file(&self.path),
            false => Ok(()),
        });
        if let Err(error) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, unix_socket = %self.path.display(), "cannot remove the Unix socket");
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}
