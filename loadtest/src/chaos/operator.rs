//! The operator of a round: publishes sales and adds stock while the faults happen, and does again what was refused or
//! may have been lost, as an operator would. At the end the tables must agree with every answer.

use std::{cell::RefCell, time::Duration};

use anyhow::Result;
use futures_util::future::join_all;
use hyper::header::{HeaderName, HeaderValue};
use sqlx::MySqlConnection;
use testkit::wait::until;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    changes::{self, Answer, Owner, times},
    sale::Sale,
    test_cluster::TestCluster,
    verdict::unpaid,
};
use workload::{
    buyers::Buyer,
    http::{Call, Connection},
    publish,
    reply::Reply,
};

/// Vouchers of each sale that the operator publishes; nobody buys them.
const STOCK: u32 = 7;
/// Attempts until an operation is given up.
const ATTEMPTS: usize = 5;
/// Pause between them.
const PAUSE: Duration = Duration::from_millis(150);
/// Time limit of one attempt.
const TIMEOUT: Duration = Duration::from_secs(4);
/// The header by which the service recognises a repetition of the same request.
const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// A shop of the sample data.
const SHOP: u64 = 1;
/// How many orders are paid or cancelled at once.
const ORDERS: usize = 6;
/// How long to wait until there are so many.
const ORDERS_LIMIT: Duration = Duration::from_secs(2);

/// An operation that must not happen more than once.
#[derive(Debug)]
enum What {
    /// A sale is published under this title, which no other sale has.
    Publish(String),
    /// To the sale of this voucher's id so many vouchers are added. Each addition is another power of two, so that the sum
    /// says which of them happened.
    Add(u64, i64),
}

/// The operator.
#[derive(Debug)]
pub struct Operator<'a> {
    cluster: &'a TestCluster,
    /// The round's sales, as they were published.
    pub sales: Vec<Sale<'a>>,
    /// When they began.
    begin: Instant,
    token: HeaderValue,
    /// Every operation, with all its answers.
    operations: RefCell<Vec<(What, Vec<Reply>)>>,
    /// Every answer to a payment or a cancellation.
    pub changes: RefCell<Vec<Answer>>,
}

/// What a fault is injected into, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    pub cluster: &'a TestCluster,
    pub operator: &'a Operator<'a>,
    /// From the fault to the beginning of its end: a restart, a recovery or a failover comes on top.
    pub lasts: Duration,
}

impl<'a> Operator<'a> {
    pub fn new(cluster: &'a TestCluster, sales: Vec<Sale<'a>>, begin: Instant) -> Result<Self> {
        let token = cluster.access.admin_header("publishing a sale")?;
        Ok(Self {
            cluster,
            sales,
            begin,
            token,
            operations: RefCell::default(),
            changes: RefCell::default(),
        })
    }

    /// What every round does: at each of these times, publishes a sale and adds stock.
    pub async fn run(&self, times: &[Duration]) {
        let operating = times.iter().enumerate().map(async |(number, time)| {
            sleep_until(self.begin + *time).await;
            tokio::join!(self.publish(number), self.add_stock(number));
        });
        join_all(operating).await;
    }

    /// Publishes a sale on the strategy of the round's `number`-th sale.
    pub async fn publish(&self, number: usize) {
        let strategy = self.sales[number % self.sales.len()].strategy;
        let title = format!("chaos {:032x}", rand::random::<u128>());
        let voucher = publish::voucher(&self.cluster.access, SHOP, &title, strategy, STOCK);
        let call = Call::post("/voucher/seckill").json(&voucher);
        self.repeat(What::Publish(title), call, number).await;
    }

    /// Adds stock to the round's `number`-th sale.
    pub async fn add_stock(&self, number: usize) {
        let voucher_id = self.sales[number % self.sales.len()].voucher_id;
        let additions = self
            .operations
            .borrow()
            .iter()
            .filter(|(what, _)| matches!(what, What::Add(..)))
            .count();
        let count = 1_i64 << additions;
        let call = Call::post(format!("/voucher/seckill/{voucher_id}/stock"));
        let call = call.json(&serde_json::json!({ "add": count }));
        self.repeat(What::Add(voucher_id, count), call, number + 1)
            .await;
    }

    /// Sends a request under an idempotency key of its own until it succeeds, [`ATTEMPTS`] times at most, to the instances in
    /// turn from the `first` on.
    async fn repeat(&self, what: What, call: Call, first: usize) {
        let key = HeaderValue::from(rand::random::<u64>());
        let call = call.admin(&self.token).header(KEY, key);
        let index = self.operations.borrow().len();
        self.operations.borrow_mut().push((what, Vec::new()));
        for target in self
            .cluster
            .targets
            .iter()
            .cycle()
            .skip(first)
            .take(ATTEMPTS)
        {
            let answer = Connection::new(target.clone(), TIMEOUT).send(&call).await;
            let reply = Reply::from_answer(&answer);
            let done = matches!(reply, Reply::Ordered(_));
            self.operations.borrow_mut()[index].1.push(reply);
            if done {
                break;
            }
            sleep(PAUSE).await;
        }
    }

    /// The owners of some unpaid orders of the first sale: waits until it has enough, or for the limit.
    pub async fn orders(&self) -> Vec<Owner> {
        let sale = &self.sales[0];
        let mut rows = Vec::new();
        until(ORDERS_LIMIT, async || {
            // A database that is away for a moment may be part of the round.
            if let Ok(snapshot) = self.cluster.order_rows.read(sale.voucher_id).await {
                rows = unpaid(&snapshot.rows).take(ORDERS).copied().collect();
            }
            rows.len() == ORDERS
        })
        .await;
        let owner = |buyer: &Buyer| {
            let row = rows.iter().find(|row| row.user_id == buyer.user_id)?;
            let targets = self.cluster.targets.clone();
            let buyer = buyer.clone();
            let order_id = row.id;
            Some(Owner {
                targets,
                buyer,
                order_id,
                bought: self.begin,
            })
        };
        sale.buyers.iter().filter_map(owner).collect()
    }

    /// Pays or cancels these orders, on all instances at once.
    pub async fn change(&self, orders: &[Owner], what: changes::What) {
        let changes = join_all(
            orders
                .iter()
                .map(async |owner| owner.ask(&[what, what]).await),
        );
        let changes = changes.await;
        self.changes
            .borrow_mut()
            .extend(changes.into_iter().flatten());
    }

    /// Compares every answer with the tables; returns the contradictions in words.
    pub async fn check(&self) -> Result<Vec<String>> {
        let operations = self.operations.take();
        let mut wrong = Vec::new();
        for Sale {
            voucher_id,
            outcome,
            ..
        } in &self.sales
        {
            let snapshot = self.cluster.order_rows.read(*voucher_id).await?;
            let added = snapshot.sale.issued - outcome.published;
            let mut certainly_added = 0;
            let mut possibly_added = 0;
            for (what, answers) in &operations {
                if let What::Add(id, count) = what
                    && id == voucher_id
                {
                    certainly_added += count * times(answers).start();
                    possibly_added += count * times(answers).end();
                }
            }
            if added & certainly_added != certainly_added || added & !possibly_added != 0 {
                wrong.push(format!(
                    "{added} were added to {voucher_id}, asked for: {operations:?}"
                ));
            }
        }
        let mut database = self.cluster.database.lock().await.primary().admin().await?;
        for (what, answers) in &operations {
            let What::Publish(title) = what else { continue };
            let published = published(&mut database, title, answers).await?;
            if !times(answers).contains(&published) {
                wrong.push(format!(
                    "{what:?} happened {published} times, answered {answers:?}"
                ));
            }
        }
        Ok(wrong)
    }
}

/// How often a sale was published under this title. A sale that is not as it was asked for, or has another id than the answer
/// says, counts twice, which contradicts any answer.
async fn published(
    database: &mut MySqlConnection,
    title: &str,
    answers: &[Reply],
) -> sqlx::Result<i64> {
    let sql = "SELECT CAST(v.id AS SIGNED), CAST(s.stock AS SIGNED) FROM tb_voucher v \
               LEFT JOIN tb_seckill_voucher s ON s.voucher_id = v.id WHERE v.title = ?";
    let rows: Vec<(i64, Option<i64>)> = sqlx::query_as(sql).bind(title).fetch_all(database).await?;
    let mut count = 0;
    for (id, stock) in rows {
        // Nothing is asked after a success, so an id is in the last answer.
        let is_another =
            matches!(answers.last(), Some(Reply::Ordered(answered_id)) if *answered_id != id);
        let is_right = stock == Some(i64::from(STOCK)) && !is_another;
        count += if is_right { 1 } else { 2 };
    }
    Ok(count)
}
