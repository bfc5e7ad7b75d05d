//! A host name's addresses, looked up once for all connections to a target.
//!
//! A burst opens thousands of connections at once. A look-up for each overruns a small DNS server such as Docker's, and
//! would be measured as the service's latency.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use tokio::{
    net::{TcpStream, lookup_host},
    sync::Mutex,
};

/// The addresses of a target's name, until a connection to them fails. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Addresses(Arc<Mutex<Option<Arc<[SocketAddr]>>>>);

impl Addresses {
    /// Connects to the first address of `host` that accepts. A caller that waits for another's look-up may stop waiting.
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

    /// One look-up at a time: the lock is held meanwhile.
    async fn get(
        &self,
        look_up: impl AsyncFnOnce() -> io::Result<Vec<SocketAddr>>,
    ) -> io::Result<Arc<[SocketAddr]>> {
        let mut known = self.0.lock().await;
        if let Some(addresses) = &*known {
            return Ok(addresses.clone());
        }
        let found: Arc<[SocketAddr]> = look_up().await?.into();
        *known = Some(found.clone());
        Ok(found)
    }

    /// No connection could be made to `addresses`: the name may have moved. Later addresses stay.
    async fn failed(&self, addresses: &Arc<[SocketAddr]>) {
        let mut known = self.0.lock().await;
        known.take_if(|known| Arc::ptr_eq(known, addresses));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// What a name server answers, and how often it was asked.
    struct Server(&'static str, AtomicUsize);

    impl Server {
        async fn asked_by(&self, addresses: &Addresses) -> Arc<[SocketAddr]> {
            let look_up = async || {
                self.1.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                Ok(vec![self.0.parse().unwrap()])
            };
            addresses.get(look_up).await.unwrap()
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_up_once_until_a_connection_fails() {
        let before = Arc::new(Server("192.0.2.1:80", AtomicUsize::default()));
        let after = Server("192.0.2.2:80", AtomicUsize::default());
        let addresses = Addresses::default();
        let mut connections = tokio::task::JoinSet::new();
        for _ in 0..1000 {
            let (server, addresses) = (before.clone(), addresses.clone());
            connections.spawn(async move { server.asked_by(&addresses).await });
        }
        connections.join_all().await;
        let old = before.asked_by(&addresses).await;
        addresses.failed(&old).await;
        let new = after.asked_by(&addresses).await;
        assert_eq!(new[0], after.0.parse().unwrap());
        // One that began before the name moved, and fails only now.
        addresses.failed(&old).await;
        assert_eq!(after.asked_by(&addresses).await, new);
        assert_eq!([&before.1, &after.1].map(|asked| asked.load(Ordering::SeqCst)), [1, 1]);
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
