//! Stock events: stock that was added or returned is published to every node by Redis pub/sub, and a node that receives
//! the message invalidates its cached sale. A lost message is made good by
//! [`super::sales::FRESH_FOR`]; no sale may depend on it to be correct.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backon::{ConstantBuilder, Retryable};
use futures_util::StreamExt;
use parking_lot::Mutex;
use redis::AsyncCommands;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::sales::SaleCache;
use crate::connection::redis::{Redis, RoutedConnection};

/// The channel; a message is a voucher's id in decimal.
const CHANNEL: &str = "seckill:stock:added";

/// Pause before another try to subscribe or to publish.
const PAUSE: Duration = Duration::from_millis(250);

/// Published three times in all: Redis may just be restarting.
const RETRIES: ConstantBuilder = ConstantBuilder::new().with_delay(PAUSE).with_max_times(2);

/// Interval between PINGs on the subscription: one that went silent would go unnoticed.
const PING_EVERY: Duration = Duration::from_secs(2);

/// Time limit for connecting, subscribing and a PING.
const LIMIT: Duration = Duration::from_secs(1);

/// Publishes stock events, and receives those of other nodes. Cheap to clone.
#[derive(Clone)]
pub struct StockEvents {
    redis: RoutedConnection,
    sales: Arc<SaleCache>,
    /// The sales to be counted again, for the strategy that admits by a counter.
    pub recounts: Recounts,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Sales whose stock counter is to be set anew soon. Cheap to clone.
#[derive(Clone, Default)]
pub struct Recounts(Arc<Asked>);

#[derive(Default)]
struct Asked {
    sales: Mutex<HashMap<i64, Vec<i64>>>,
    due: Notify,
}

impl Recounts {
    /// Asks for it; `void` is a user who is said to have a claim that stands for nothing.
    pub fn ask(&self, voucher_id: i64, void: Option<i64>) {
        self.0.sales.lock().entry(voucher_id).or_default().extend(void);
        self.0.due.notify_one();
    }

    /// What was asked for: sales, and users with void claims.
    pub fn take(&self) -> HashMap<i64, Vec<i64>> {
        std::mem::take(&mut *self.0.sales.lock())
    }

    /// Waits for the next request.
    pub async fn asked(&self) {
        self.0.due.notified().await;
    }
}

impl StockEvents {
    /// Subscribes until [`StockEvents::shutdown`], and invalidates the sales of the events in `sales`.
    pub fn listen(nodes: Redis, redis: RoutedConnection, sales: Arc<SaleCache>) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let listening = listen(nodes, sales.clone());
        tasks.spawn(stop.clone().run_until_cancelled_owned(listening));
        StockEvents { redis, sales, recounts: Recounts::default(), tasks, stop }
    }

    /// Publishes to all nodes that a sale's stock has changed, and has it counted again. A failure is logged only: the nodes
    /// notice within a second.
    pub async fn stock_changed(&self, voucher_id: i64) {
        self.sales.invalidate(voucher_id);
        self.recounts.ask(voucher_id, None);
        let publish = async || self.redis.clone().publish::<_, _, i64>(CHANNEL, voucher_id).await;
        if let Err(error) = publish.retry(RETRIES).await {
            tracing::warn!(voucher_id, %error, "nodes notice late that stock has changed");
        }
    }

    /// Ends the subscription.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Subscribes again and again, until it is dropped.
async fn listen(nodes: Redis, sales: Arc<SaleCache>) {
    let mut logged = false;
    loop {
        let received = receive(&nodes, &sales).await;
        nodes.recheck();
        match received {
            Ok(()) => logged = false,
            Err(error) if !logged => {
                logged = true;
                tracing::warn!(%error, "not subscribed to stock events; trying again");
            }
            Err(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Receives events on one connection until it ends, does not answer a PING, or another server is the master.
async fn receive(nodes: &Redis, sales: &SaleCache) -> redis::RedisResult<()> {
    let mut moved = pin!(nodes.moved(CHANNEL));
    let client = limited(nodes.client_of(CHANNEL)).await?;
    let (mut sink, mut messages) = limited(client.get_async_pubsub()).await?.split();
    limited(sink.subscribe(CHANNEL)).await?;
    // Messages that were published without a subscription are lost.
    sales.invalidate_all();
    let mut ping = tokio::time::interval(PING_EVERY);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = messages.next() => match message.map(|message| message.get_payload::<i64>()) {
                None => return Ok(()),
                Some(Ok(voucher_id)) => sales.invalidate(voucher_id),
                Some(Err(error)) => {
                    tracing::debug!(%error, "a message on {CHANNEL} names no voucher");
                }
            },
            () = &mut moved => return Ok(()),
            _ = ping.tick() => drop(limited(sink.ping::<redis::Value>()).await?),
        }
    }
}

/// Runs `work` for at most [`LIMIT`].
async fn limited<T>(work: impl Future<Output = redis::RedisResult<T>>) -> redis::RedisResult<T> {
    let ended = tokio::time::timeout(LIMIT, work).await;
    ended.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
}
