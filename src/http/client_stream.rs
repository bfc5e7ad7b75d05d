//! The byte stream of a client's connection. A request's head and a write have time limits, and the connection is closed in
//! two steps ("lingering close", RFC 9112, section 9.6): our half first, the rest once the client has closed its own, or after
//! a moment. What it still sends meanwhile is discarded. If a connection with unread bytes were closed at once, the system
//! would reset it, and that may destroy a reply on its way: a client that is refused in the middle of an upload would not learn
//! why, and a proxy would count a failed instance.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tokio_io_timeout::TimeoutStream;

/// Longest time between a reply and the next request's last header; then the connection is closed. Longer than the proxies
/// in `deploy/` keep idle connections, which is 4 s.
const HEAD_LIMIT: Duration = Duration::from_secs(10);

/// Longest time for which a client may take nothing of a reply.
const WRITE_LIMIT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// Longest time between the end of our half of a connection and that of the client's.
const LINGER_LIMIT: Duration = Duration::from_secs(2);

/// A connection to a client.
pub struct ClientStream {
    stream: Pin<Box<TimeoutStream<TcpStream>>>,
    /// Whether a request's head has been read and its reply is not there yet.
    at_work: Arc<AtomicBool>,
    /// Kept from one head to the next: a timer for each would be set and cleared under a lock that all connections share.
    head_limit: Pin<Box<Sleep>>,
    /// Whether `head_limit` runs for the head that is waited for.
    awaits_head: bool,
    /// The limit for the end of the client's half; begins with the end of ours.
    lingering: Option<Pin<Box<Sleep>>>,
}

impl ClientStream {
    /// The stream of this connection; `at_work` says whether a request's head has been read and its reply is not there yet.
    pub fn new(stream: TcpStream, at_work: Arc<AtomicBool>) -> Self {
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(WRITE_LIMIT));
        ClientStream {
            stream: Box::pin(stream),
            at_work,
            head_limit: Box::pin(sleep(HEAD_LIMIT)),
            awaits_head: false,
            lingering: None,
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.stream.as_mut().poll_read(context, buffer);
        if read.is_ready() || self.at_work.load(Relaxed) {
            return read;
        }
        if !self.awaits_head {
            self.awaits_head = true;
            self.head_limit.as_mut().reset(Instant::now() + HEAD_LIMIT);
        }
        ready!(self.head_limit.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.awaits_head = false;
        self.stream.as_mut().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.awaits_head = false;
        self.stream.as_mut().poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ClientStream {
            stream, lingering, ..
        } = &mut *self;
        let limit = match lingering {
            Some(limit) => limit,
            None => {
                ready!(stream.as_mut().poll_shutdown(context))?;
                lingering.insert(Box::pin(sleep(LINGER_LIMIT)))
            }
        };
        let mut discarded = [MaybeUninit::uninit(); 16 * 1024];
        while limit.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::uninit(&mut discarded);
            let read = ready!(stream.as_mut().poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}
