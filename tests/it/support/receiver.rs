//! An HTTP server that keeps what is posted to it: sign-in codes, or spans.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use testkit::process::free_port;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// It answers with the given statuses in turn, and then with 204. The status 0 stands for a 204 that waits until
/// [`Receiver::answer`] is called.
pub struct Receiver {
    /// Where it listens.
    pub address: SocketAddr,
    got: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    statuses: Arc<Mutex<VecDeque<u16>>>,
    open: watch::Sender<bool>,
    _serving: AbortOnDropHandle<()>,
}

/// Serves the router until the handle is dropped, on a port that this process gives to no other server afterwards.
pub async fn serve(router: Router) -> (SocketAddr, AbortOnDropHandle<()>) {
    let port = free_port().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (address, AbortOnDropHandle::new(serving))
}

impl Receiver {
    pub async fn start() -> Self {
        let got = Arc::<Mutex<Vec<_>>>::default();
        let statuses = Arc::<Mutex<VecDeque<u16>>>::default();
        let (open, wait) = watch::channel(false);
        let kept = got.clone();
        let next = statuses.clone();
        let receive = async move |headers: HeaderMap, body: Bytes| {
            kept.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((headers, body));
            let status = next
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_front();
            if status == Some(0) {
                wait.clone().wait_for(|open| *open).await.unwrap();
            }
            StatusCode::from_u16(status.filter(|status| *status > 0).unwrap_or(204)).unwrap()
        };
        let (address, _serving) = serve(Router::new().fallback(receive)).await;
        Receiver {
            address,
            got,
            statuses,
            open,
            _serving,
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn will_answer(&self, statuses: impl IntoIterator<Item = u16>) {
        self.statuses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(statuses);
    }

    pub fn answer(&self) {
        self.open.send_replace(true);
    }

    pub fn count(&self) -> usize {
        self.since(0).len()
    }

    /// What it got, without the first `from` requests.
    pub fn since(&self, from: usize) -> Vec<(HeaderMap, Bytes)> {
        self.got.lock().unwrap_or_else(PoisonError::into_inner)[from..].to_vec()
    }
}
