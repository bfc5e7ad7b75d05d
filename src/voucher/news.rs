//! News of stock that was added or came back: who puts some there tells every node by Redis pub/sub,
//! and a node that hears of it forgets what it remembers of the sale. A lost message is made good by
//! [`super::sales::FRESH_FOR`]; nothing here may be needed for a sale to be right.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::ConnectionManager;
use redis::{Client, Script};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::sales::Sales;
use crate::error::Error;

/// The channel; a message is a voucher's id in decimal.
const CHANNEL: &str = "seckill:stock:added";

/// Pause before another attempt to connect.
const PAUSE: Duration = Duration::from_millis(250);

/// How often telling is tried: Redis may just be restarting, and the gate of a Java node would miss
/// what was added.
const TELL_ATTEMPTS: u32 = 3;

static STOCK_ADDED: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/stock_added.lua")));

static STOCK_RETURNED: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/stock_returned.lua")));

/// How long it is remembered that an order's place was given back, seconds. It must outlast whatever
/// may tell it a second time, which tries again every few seconds.
const RETURNED_TTL_SECONDS: u32 = 24 * 3600;

/// Tells of added stock, and hears of it. Cheap to clone.
#[derive(Clone)]
pub struct News {
    redis: ConnectionManager,
    sales: Arc<Sales>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl News {
    /// Listens until [`News::shutdown`], and has `sales` forget what is told.
    pub fn listen(client: Client, redis: ConnectionManager, sales: Arc<Sales>) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let listening = listen(client, sales.clone());
        tasks.spawn(stop.clone().run_until_cancelled_owned(listening));
        News { redis, sales, tasks, stop }
    }

    /// Tells all nodes, and has the stock key follow: where it `admits`, it goes, and is built anew from the
    /// database. Failing, it says so in the log: the stock is added already, and the nodes notice within a
    /// second.
    pub async fn stock_added(&self, voucher_id: i64, count: i64, admits: bool) {
        self.sales.forget(voucher_id);
        let mut attempt = 1;
        loop {
            let told: redis::RedisResult<i64> = STOCK_ADDED
                .key(format!("seckill:stock:{voucher_id}"))
                .key(format!("seckill:rebuild:{voucher_id}"))
                .arg(count)
                .arg(CHANNEL)
                .arg(voucher_id)
                .arg(i32::from(admits))
                .invoke_async(&mut self.redis.clone())
                .await;
            let Err(fault) = told else { return };
            // After a lost reply the script may have run: then it must not run again.
            let sure = fault.is_connection_refusal() || fault.is_cluster_error();
            if attempt >= TELL_ATTEMPTS || !sure {
                tracing::error!(
                    voucher_id, count, %fault,
                    "a gate may lack what was added, and nodes learn of it late"
                );
                return;
            }
            attempt += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Tells all nodes that orders of a sale, given as order and user, were cancelled and their stock is
    /// back, and has the gate in Redis, which the `stream` rung and Java nodes use, give back the places
    /// of those users. Harmless when told twice; an error means that it may have to be.
    pub async fn stock_returned(
        &self,
        voucher_id: i64,
        cancelled: impl IntoIterator<Item = (i64, i64)>,
    ) -> Result<(), Error> {
        self.sales.forget(voucher_id);
        let mut script = STOCK_RETURNED.key(format!("seckill:stock:{voucher_id}"));
        script
            .key(format!("seckill:order:{voucher_id}"))
            .key(format!("seckill:returned:{voucher_id}"))
            .key(format!("seckill:rebuild:{voucher_id}"))
            .arg(CHANNEL)
            .arg(voucher_id)
            .arg(RETURNED_TTL_SECONDS);
        for (order_id, user_id) in cancelled {
            script.arg(order_id).arg(user_id);
        }
        Ok(script.invoke_async(&mut self.redis.clone()).await?)
    }

    /// Ends the listening.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Keeps a subscription, for ever.
async fn listen(client: Client, sales: Arc<Sales>) {
    let mut told = false;
    loop {
        match hear(&client, &sales).await {
            Ok(()) => told = false,
            Err(fault) if !told => {
                told = true;
                tracing::warn!(%fault, "news of added stock is not heard; trying again");
            }
            Err(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// One connection, to its end.
async fn hear(client: &Client, sales: &Sales) -> redis::RedisResult<()> {
    let mut connection = client.get_async_pubsub().await?;
    connection.subscribe(CHANNEL).await?;
    // What was said while nobody listened is lost.
    sales.forget_all();
    let mut messages = connection.on_message();
    while let Some(message) = messages.next().await {
        match message.get_payload::<i64>() {
            Ok(voucher_id) => sales.forget(voucher_id),
            Err(fault) => tracing::debug!(%fault, "a message on {CHANNEL} names no voucher"),
        }
    }
    Ok(())
}
