//! A node that is killed in the middle of a sale and started again: is an order that was told lost?
//!
//! The sale's row is locked meanwhile, so that orders which are written after the reply are still to be written when the node
//! dies. After the restart further buyers come, and both bursts are judged together.

use std::{process::Stdio, sync::Arc, time::Duration};

use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    process::Command,
    time::{Instant, sleep, timeout},
};
use workload::{
    Error, Target,
    burst::{self, BurstOptions},
    order_rows::OrderRows,
};

use super::{
    node,
    sales::{BUYERS, Opened, Planned, Sale, Seller},
    traces::database_error,
};

/// The first half of the buyers arrive over this time.
const SPREAD: Duration = Duration::from_secs(1);
/// When the row is locked, and when the node is killed, from the opening on.
const LOCKED_AT: Duration = Duration::from_millis(300);
const KILLED_AT: Duration = Duration::from_millis(900);
/// How long the command may take to kill the node.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How long the node may take to serve again.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long the node may take to write what it told before it died.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(200);

/// One buyer's only try, and enough stock for all: every yes is an order.
const KILLED: Planned = Planned {
    name: ["killed in mid-sale", "秒杀途中 kill -9"],
    buyers: BUYERS,
    tries: 1,
    stock: 400,
    is_held: false,
};

impl Seller<'_> {
    /// Sells on the first node while `command` kills it and starts it again.
    pub async fn sell_through_restart(&self, command: &str) -> Result<Sale, Error> {
        self.options
            .progress
            .say("killing the node in the middle of a sale");
        let node = &self.options.targets[..1];
        let sale = self.open_sale(node, &KILLED).await?;
        let Opened {
            voucher_id,
            options,
            order_rows,
        } = sale;
        let before = BurstOptions {
            spread: SPREAD,
            ..options.clone()
        };
        let half = self.buyers.len() / 2;
        let selling =
            burst::run_on_sale(voucher_id, &before, &order_rows, self.buyers[..half].into());
        let killing = async {
            before.live.opened.cancelled().await;
            sleep(LOCKED_AT).await;
            let transaction = self.traces.hold(voucher_id).await?;
            sleep(KILLED_AT - LOCKED_AT).await;
            kill(&node[0], command).await?;
            transaction.rollback().await.map_err(database_error)
        };
        let (report, ()) = tokio::try_join!(selling, killing)?;
        self.wait_until_it_serves(&node[0]).await?;
        let told = report.verdict.orders + report.verdict.lost;
        wait_for_rows(&order_rows, voucher_id, told).await?;
        let after = BurstOptions {
            live: Arc::default(),
            ..options
        };
        let buyers = self.buyers[half..].into();
        let later = burst::run_until_sold_out(voucher_id, &after, &order_rows, buyers).await?;
        let sale = Sale {
            name: KILLED.name,
            nodes: node.to_vec(),
            is_restarted: true,
            report: report.followed_by(later),
        };
        self.options.progress.say(&sale.line());
        Ok(sale)
    }

    /// Waits until the node knows the first buyer's session again.
    async fn wait_until_it_serves(&self, node: &Target) -> Result<(), Error> {
        let begin = Instant::now();
        loop {
            match node::user_id(node, &self.buyers[0].token).await {
                Ok(_) => return Ok(()),
                Err(error) if begin.elapsed() > START_LIMIT => {
                    return Err(Error::Usage(format!(
                        "{START_LIMIT:?} after --restart: {error}. The command must kill the node and start it again"
                    )));
                }
                Err(_) => sleep(POLL).await,
            }
        }
    }
}

/// Runs the command, and returns when it has killed the node: an open connection ends with its process.
async fn kill(node: &Target, command: &str) -> Result<(), Error> {
    let failed = |reason: std::io::Error| Error::Usage(format!("--restart {command}: {reason}"));
    let mut connection = TcpStream::connect(node.authority()).await.map_err(failed)?;
    // A command that stays in the foreground is the node itself, which lives on.
    Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C is for the judgement, and not for the node that is started here.
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let ended = timeout(KILL_LIMIT, connection.read_u8()).await;
    if ended.is_err() {
        return Err(Error::Usage(format!(
            "--restart `{command}` did not kill {node} within {KILL_LIMIT:?}: it must end the node with SIGKILL and start it \
             again, as in 'kill -9 $(lsof -ti tcp:8081 -s tcp:listen); java -jar hmdp.jar'"
        )));
    }
    Ok(())
}

/// Waits until there are so many orders, or it becomes clear that there will not be.
async fn wait_for_rows(order_rows: &OrderRows, voucher_id: u64, orders: i64) -> Result<(), Error> {
    let quiet = Duration::from_secs(1);
    let orders = usize::try_from(orders).unwrap_or_default();
    order_rows
        .wait_until_unchanged(voucher_id..=voucher_id, orders, quiet, WRITE_LIMIT)
        .await?;
    Ok(())
}
