//! The load tool's proxy, for faults on the wire. A test that cannot start one fails right there.

use std::ops::Deref;

use seckill_loadtest::chaos::proxy;

pub use seckill_loadtest::chaos::proxy::Mode;

/// A running proxy.
pub struct Proxy(proxy::Proxy);

impl Proxy {
    /// A proxy in front of `server`, such as `127.0.0.1:13306`.
    pub async fn start(server: String) -> Self {
        Proxy(proxy::Proxy::start(server).await.expect("a free port"))
    }

    /// A Redis client that goes through it.
    pub fn redis(&self) -> redis::Client {
        redis::Client::open(format!("redis://{}/", self.address)).expect("a valid address")
    }
}

impl Deref for Proxy {
    type Target = proxy::Proxy;

    fn deref(&self) -> &proxy::Proxy {
        &self.0
    }
}
