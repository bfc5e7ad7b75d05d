//! Stock events: stock that was added or returned is published to every node by Redis pub/sub, and a node that receives
//! the message invalidates its cached sale. A lost message is made good by
//! [`super::sales::FRESH_FOR`]; no sale may depend on it to be correct.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backon::{ConstantBuilder, Retryable};
use futures_util::StreamExt;
use redis::Pipeline;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::sales::SaleCache;
use crate::connection::redis::{Redis, RoutedConnection, was_not_run};
use crate::error::Error;
use crate::keys::{Keys, ShardKeys};
use crate::scripts::{STOCK_ADDED, STOCK_RETURNED};

/// The channel; a message is a voucher's id in decimal.
const CHANNEL: &str = "seckill:stock:added";

/// Pause before another try to subscribe or to publish.
const PAUSE: Duration = Duration::from_millis(250);

/// Published three times in all: Redis may just be restarting, and the stock counter of a Java node would lack
/// what was added.
const RETRIES: ConstantBuilder = ConstantBuilder::new().with_delay(PAUSE).with_max_times(2);

/// How long Redis remembers that an order's stock was returned, seconds. It must outlast any second delivery, which is
/// tried every few seconds.
const RETURNED_TTL_SECONDS: u32 = 24 * 3600;

/// Sets the stock counter of a sale that is being published, and says that it is exact, as are the claims, of
/// which there are none.
pub fn counter_of_new_sale(keys: &ShardKeys, voucher_id: i64, stock: i64) -> Pipeline {
    let mut commands = redis::pipe();
    commands.set(keys.stock(voucher_id), stock).ignore();
    commands.sadd(&keys.exact_counters, voucher_id).ignore();
    commands.sadd(&keys.complete_claims, voucher_id).ignore();
    commands
}

/// Interval between PINGs on the subscription: one that went silent would go unnoticed.
const PING_EVERY: Duration = Duration::from_secs(2);

/// Time limit for connecting, subscribing and a PING.
const LIMIT: Duration = Duration::from_secs(1);

/// Publishes stock events, and receives those of other nodes. Cheap to clone.
#[derive(Clone)]
pub struct StockEvents {
    redis: RoutedConnection,
    keys: Keys,
    sales: Arc<SaleCache>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl StockEvents {
    /// Subscribes until [`StockEvents::shutdown`], and invalidates the sales of the events in `sales`.
    pub fn listen(
        nodes: Redis,
        redis: RoutedConnection,
        keys: Keys,
        sales: Arc<SaleCache>,
    ) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let listening = listen(nodes, sales.clone());
        tasks.spawn(stop.clone().run_until_cancelled_owned(listening));
        StockEvents { redis, keys, sales, tasks, stop }
    }

    /// Publishes added stock to all nodes, and updates the stock counter: where the strategy `admits` by it, the counter
    /// is rebuilt from the database; until then a Java node goes on with the old one. A failure is logged only: the stock is added already, and the nodes
    /// notice within a second.
    pub async fn stock_added(&self, voucher_id: i64, count: i64, admits: bool) {
        self.sales.invalidate(voucher_id);
        let keys = self.keys.of_sale(voucher_id);
        let mut script = STOCK_ADDED.key(keys.stock(voucher_id));
        script
            .key(keys.rebuild(voucher_id))
            .key(&keys.exact_counters)
            .arg(count)
            .arg(CHANNEL)
            .arg(voucher_id)
            .arg(i32::from(admits));
        let publish = async || script.invoke_async::<i64>(&mut self.redis.clone()).await;
        // After a lost reply the script may have run: then it must not run again.
        if let Err(error) = publish.retry(RETRIES).when(was_not_run).await {
            tracing::error!(
                voucher_id, count, %error,
                "the stock counter may lack what was added, and nodes notice it late"
            );
        }
    }

    /// Publishes to all nodes that orders of a sale, given as order and user, were cancelled and their stock
    /// returned; and returns stock and claims in Redis, by which the stream and Java nodes admit. Idempotent; after an
    /// error it may not have been done, and has to be tried again.
    pub async fn stock_returned(
        &self,
        voucher_id: i64,
        cancelled: impl IntoIterator<Item = (i64, i64)>,
    ) -> Result<(), Error> {
        self.sales.invalidate(voucher_id);
        let keys = self.keys.of_sale(voucher_id);
        let mut script = STOCK_RETURNED.key(keys.stock(voucher_id));
        script
            .key(keys.claims(voucher_id))
            .key(keys.returned(voucher_id))
            .key(keys.rebuild(voucher_id))
            .arg(CHANNEL)
            .arg(voucher_id)
            .arg(RETURNED_TTL_SECONDS);
        for (order_id, user_id) in cancelled {
            script.arg(order_id).arg(user_id);
        }
        Ok(script.invoke_async(&mut self.redis.clone()).await?)
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
