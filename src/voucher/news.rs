//! News of added stock: who adds some tells every node by Redis pub/sub, and a node that hears of it
//! forgets what it remembers of the sale. A lost message is made good by [`super::sales::FRESH_FOR`];
//! nothing here may be needed for a sale to be right.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::ConnectionManager;
use redis::{Client, Script};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::sales::Sales;

/// The channel; a message is a voucher's id in decimal.
const CHANNEL: &str = "seckill:stock:added";

/// Pause before another attempt to connect.
const PAUSE: Duration = Duration::from_millis(250);

/// How often telling is tried: Redis may just be restarting, and the gate of a Java node would miss
/// what was added.
const TELL_ATTEMPTS: u32 = 3;

static STOCK_ADDED: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/stock_added.lua")));

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

    /// Tells all nodes, and has the stock key of Java nodes follow. Failing, it says so in the log: the
    /// stock is added already, and the nodes notice within a second.
    pub async fn stock_added(&self, voucher_id: i64, count: i64) {
        self.sales.forget(voucher_id);
        let mut attempt = 1;
        loop {
            let told: redis::RedisResult<i64> = STOCK_ADDED
                .key(format!("seckill:stock:{voucher_id}"))
                .arg(count)
                .arg(CHANNEL)
                .arg(voucher_id)
                .invoke_async(&mut self.redis.clone())
                .await;
            let Err(fault) = told else { return };
            // After a lost reply the script may have run: then it must not run again.
            let sure = fault.is_connection_refusal() || fault.is_cluster_error();
            if attempt >= TELL_ATTEMPTS || !sure {
                tracing::error!(
                    voucher_id, count, %fault,
                    "seckill:stock:{voucher_id} may lack what was added, and nodes learn of it late"
                );
                return;
            }
            attempt += 1;
            tokio::time::sleep(PAUSE).await;
        }
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
