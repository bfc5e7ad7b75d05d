//! A host name's addresses, looked up once for all connections to a target.
//!
//! A burst opens thousands of connections at once. A look-up for each overruns a small DNS server such as Docker's, and
//! would be measured as the service's latency.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::{TcpStream, lookup_host},
    sync::Mutex,
    time::Instant,
};

/// The name is looked up again once a connection has failed, but no sooner than this after the look-up before.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What a target's connections know of its name. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Addresses(Arc<Mutex<Option<LookedUp>>>);

/// The result of the last look-up.
#[derive(Debug)]
struct LookedUp {
    at: Instant,
    /// The error as its kind and text, because [`io::Error`] cannot be cloned.
    found: Result<Arc<[SocketAddr]>, (io::ErrorKind, String)>,
    /// Whether a connection to each of them has failed since.
    failed: bool,
}

impl LookedUp {
    fn is_usable(&self) -> bool {
        !self.failed && self.found.is_ok() || self.at.elapsed() < AGAIN_AFTER
    }
}

impl Addresses {
    /// Connects to the first address of `host` that accepts. A caller that waits for another's look-up may stop waiting.
    ///
    /// # Errors
    /// The system's, of the look-up or of the last address.
    pub(super) async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse::<IpAddr>() {
            return TcpStream::connect((address, port)).await;
        }
        let look_up = async || Ok(lookup_host((host, port)).await?.collect());
        let addresses = self.get(look_up).await?;
        let connected = TcpStream::connect(&*addresses).await;
        if connected.is_err() {
            self.failed(&addresses).await;
        }
        connected
    }

    async fn get(
        &self,
        look_up: impl AsyncFnOnce() -> io::Result<Vec<SocketAddr>>,
    ) -> io::Result<Arc<[SocketAddr]>> {
        let mut known = self.0.lock().await;
        let known = match &mut *known {
            Some(known) if known.is_usable() => known,
            stale => {
                let found = look_up().await.map(Arc::from);
                let found = found.map_err(|error| (error.kind(), error.to_string()));
                stale.insert(LookedUp { at: Instant::now(), found, failed: false })
            }
        };
        known.found.clone().map_err(|(kind, text)| io::Error::new(kind, text))
    }

    /// No connection could be made to `addresses`: the name may have moved.
    async fn failed(&self, addresses: &Arc<[SocketAddr]>) {
        if let Some(known) = &mut *self.0.lock().await
            && known.found.as_ref().is_ok_and(|found| Arc::ptr_eq(found, addresses))
        {
            known.failed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::advance;

    use super::*;

    const OLD: &str = "192.0.2.1:80";
    const NEW: &str = "192.0.2.2:80";

    /// What a name server answers, and how often it was asked.
    struct Server {
        answer: Result<&'static str, io::ErrorKind>,
        asked: AtomicUsize,
    }

    impl Server {
        fn new(answer: Result<&'static str, io::ErrorKind>) -> Self {
            Self { answer, asked: AtomicUsize::new(0) }
        }

        async fn look_up(&self) -> io::Result<Vec<SocketAddr>> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            Ok(vec![self.answer?.parse().unwrap()])
        }

        async fn asked_by(&self, addresses: &Addresses) -> io::Result<Arc<[SocketAddr]>> {
            addresses.get(async || self.look_up().await).await
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::SeqCst)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_connections_look_a_name_up_once() {
        let server = Arc::new(Server::new(Ok(OLD)));
        let addresses = Addresses::default();
        let connections: Vec<_> = (0..1000)
            .map(|_| {
                let (server, addresses) = (server.clone(), addresses.clone());
                tokio::spawn(async move { server.asked_by(&addresses).await })
            })
            .collect();
        for connection in connections {
            assert_eq!(connection.await.unwrap().unwrap()[0], OLD.parse().unwrap());
        }
        advance(10 * AGAIN_AFTER).await;
        server.asked_by(&addresses).await.unwrap();
        assert_eq!(server.asked(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_failed_connection_the_name_is_looked_up_again_but_not_at_once() {
        let (before, after) = (Server::new(Ok(OLD)), Server::new(Ok(NEW)));
        let addresses = Addresses::default();
        let old = before.asked_by(&addresses).await.unwrap();
        addresses.failed(&old).await;
        assert_eq!(after.asked_by(&addresses).await.unwrap(), old);
        advance(AGAIN_AFTER).await;
        let new = after.asked_by(&addresses).await.unwrap();
        assert_eq!(new[0], NEW.parse().unwrap());
        // One that began before the name moved, and fails only now.
        addresses.failed(&old).await;
        advance(AGAIN_AFTER).await;
        assert_eq!(after.asked_by(&addresses).await.unwrap(), new);
        assert_eq!((before.asked(), after.asked()), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_look_up_is_repeated_but_not_by_each_connection() {
        let away = Server::new(Err(io::ErrorKind::TimedOut));
        let addresses = Addresses::default();
        for _ in 0..100 {
            let error = away.asked_by(&addresses).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        assert_eq!(away.asked(), 1);
        advance(AGAIN_AFTER).await;
        let back = Server::new(Ok(OLD));
        assert_eq!(back.asked_by(&addresses).await.unwrap()[0], OLD.parse().unwrap());
    }

    #[tokio::test]
    async fn a_name_and_an_address_connect() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["127.0.0.1", "localhost"] {
            Addresses::default().connect(host, port).await.unwrap();
        }
    }
}
