//! The sales of a judgement: what is sold, by the generator and the checker of [`workload`].

use std::{sync::Arc, time::Duration};

use strategies::Text;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use workload::{
    Environment, Error, Target,
    burst::{self, BurstOptions, Report},
    buyers::Buyer,
    live::Live,
    order_rows::OrderRows,
    reply::Reply,
};

use super::{
    node,
    options::{JudgeOptions, Language},
    traces::{self, Traces},
};

/// Buyers who sign in.
pub const BUYERS: usize = 90;
/// How long a sale's row is locked from the opening on.
const HOLD: Duration = Duration::from_secs(1);
/// How long one attempt may take: a pool of connections may make it wait.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for orders that are written after the reply.
const WAIT_LIMIT: Duration = Duration::from_secs(15);

/// A sale to be made.
#[derive(Debug)]
pub struct Planned {
    pub name: Text,
    pub buyers: usize,
    pub tries: u32,
    pub stock: u32,
    /// Whether the database is slow for a moment, so that all who have passed the checks are in it at the same time.
    pub is_held: bool,
}

/// Many buyers for little stock: shows an oversell.
const RUSH: Planned = Planned {
    name: ["rush", "抢购"],
    buyers: BUYERS,
    tries: 4,
    stock: 20,
    is_held: false,
};
/// Many requests of each buyer, and enough for all of them, so that "sold out" hides no second order.
const CLICKS: Planned = Planned {
    name: ["many clicks", "连点"],
    buyers: 40,
    tries: 8,
    stock: 400,
    is_held: false,
};
const SLOW_RUSH: Planned = Planned {
    name: ["rush, slow database", "抢购，数据库卡顿"],
    is_held: true,
    ..RUSH
};
const SLOW_CLICKS: Planned = Planned {
    name: ["many clicks, slow database", "连点，数据库卡顿"],
    is_held: true,
    ..CLICKS
};

/// The sales on one node, and again on two.
pub const PLAN: [Planned; 5] = [RUSH, CLICKS, SLOW_RUSH, SLOW_CLICKS, CLICKS];

/// A sale that was made and checked.
#[derive(Debug)]
pub struct Sale {
    pub name: Text,
    /// The nodes that sold.
    pub nodes: Vec<Target>,
    /// Whether the node was killed meanwhile.
    pub is_restarted: bool,
    pub report: Report,
}

/// A sale that is published, and how to sell it.
pub struct Opened {
    pub voucher_id: u64,
    pub options: BurstOptions,
    pub order_rows: OrderRows,
}

/// The columns of [`Sale::row`].
pub const COLUMNS: [&str; 9] = [
    "sale",
    ">nodes",
    ">requests",
    ">stock",
    ">orders",
    ">left",
    ">oversold",
    ">second orders",
    "replies",
];

impl Sale {
    /// What came of it, in a line of progress.
    pub fn line(&self) -> String {
        let Report { stock, verdict, .. } = &self.report;
        let nodes = if self.nodes.len() == 1 {
            "one node"
        } else {
            "two nodes"
        };
        let result = if verdict.is_clean() {
            "nothing broke"
        } else {
            "something broke"
        };
        let [name, _] = self.name;
        format!(
            "{name}, on {nodes}: {stock} on sale, {} sold, {result}",
            verdict.orders
        )
    }

    /// A row of the report.
    pub fn row(&self, language: Language) -> Vec<String> {
        let Report {
            requests,
            stock,
            verdict,
            replies,
            ..
        } = &self.report;
        let replies = replies
            .iter()
            .map(|(reply, count)| format!("{reply} {count}"));
        vec![
            language.pick(self.name).to_owned(),
            self.nodes.len().to_string(),
            requests.to_string(),
            stock.to_string(),
            verdict.orders.to_string(),
            verdict.stock_left.to_string(),
            verdict.oversold.to_string(),
            verdict.duplicates.to_string(),
            replies.collect::<Vec<_>>().join(", "),
        ]
    }
}

/// Sells on the nodes under judgement.
pub struct Seller<'a> {
    pub options: &'a JudgeOptions,
    pub traces: &'a mut Traces,
    /// The shop of all sales.
    pub shop: u64,
    pub order_rows: OrderRows,
    pub buyers: Arc<[Buyer]>,
    pub stop: &'a CancellationToken,
}

impl Seller<'_> {
    /// One purchase on a quiet node: if that does not work, nothing can be judged.
    pub async fn try_one_purchase(&self) -> Result<Sale, Error> {
        let one = Planned {
            name: ["one purchase", "一次下单"],
            buyers: 1,
            tries: 1,
            stock: 1,
            is_held: false,
        };
        let node = &self.options.targets[..1];
        let sale = self.sell(node, &one).await?;
        // A yes without an id is judged, too.
        let is_yes = |reply: &Reply| reply.is_success() || matches!(reply, Reply::Malformed);
        let mut records = sale.report.records.iter();
        if self.stop.is_cancelled() || records.any(|record| is_yes(&record.observed.reply)) {
            return Ok(sale);
        }
        let replies: Vec<&str> = sale.report.replies.keys().map(String::as_str).collect();
        Err(Error::Usage(format!(
            "{} answered a single purchase of voucher {} with {}, on a quiet node: look into your node's log, mend that, and \
             judge again",
            node[0],
            sale.report.voucher_id,
            replies.join(", ")
        )))
    }

    /// Publishes a sale on these nodes.
    pub async fn open_sale(&self, nodes: &[Target], planned: &Planned) -> Result<Opened, Error> {
        let stock = planned.stock;
        let JudgeOptions {
            access, strategy, ..
        } = self.options;
        let publishing = node::publish(&nodes[0], access, self.shop, strategy, stock);
        let voucher_id = publishing.await?;
        let order_rows = self.order_rows.clone().with_issued(stock);
        let environment = Environment::silent(access.clone(), nodes.to_vec());
        let options = BurstOptions {
            tries: planned.tries,
            stock,
            strategy: strategy.clone(),
            timeout: TIMEOUT,
            wait_limit: WAIT_LIMIT,
            live: Arc::new(Live::stopped_by(self.stop)),
            ..BurstOptions::new(environment)
        };
        Ok(Opened {
            voucher_id,
            options,
            order_rows,
        })
    }

    /// Publishes a sale, sells it on these nodes, and checks it.
    pub async fn sell(&self, nodes: &[Target], planned: &Planned) -> Result<Sale, Error> {
        let Opened {
            voucher_id,
            options,
            order_rows,
        } = self.open_sale(nodes, planned).await?;
        let buyers: Arc<[Buyer]> = self.buyers[..planned.buyers].into();
        let selling = burst::run_until_sold_out(voucher_id, &options, &order_rows, buyers);
        let holding = async {
            if planned.is_held {
                let transaction = self.traces.hold(voucher_id).await?;
                options.live.opened.cancelled().await;
                sleep(HOLD).await;
                transaction
                    .rollback()
                    .await
                    .map_err(traces::database_error)?;
            }
            Ok(())
        };
        let (report, ()) = tokio::try_join!(selling, holding)?;
        let sale = Sale {
            name: planned.name,
            nodes: nodes.to_vec(),
            is_restarted: false,
            report,
        };
        self.options.progress.say(&sale.line());
        Ok(sale)
    }
}
