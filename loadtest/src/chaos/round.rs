//! One round: one or several sales, operations on them, faults in their middle, and the check ([`super::sale`]).

use std::{sync::Arc, time::Duration};

use futures_util::future::try_join_all;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    ChaosOptions,
    buyers::{self, Attempt},
    faults::{Effect, Scene, database},
    operator::Operator,
    plan::{self, Planned},
    sale::Sale,
    test_cluster::{RunAs, TestCluster},
    verdict::Circumstances,
};
use workload::{
    Error, buyers::Buyer, checker::ObservedReply, order_rows::OrderRows, reply::Reply, sessions,
};

/// How long the sale lasts; where a Redis is replaced, which takes others some seconds to decide, longer.
const SALE: Duration = Duration::from_millis(1_500);
const LONG_SALE: Duration = Duration::from_millis(3_000);
/// From one wave of buyers to the next.
const WAVE: Duration = Duration::from_millis(100);
/// After how many seconds an unpaid order expires, in the rounds where it does; and how many rounds these are.
const UNPAID_SECONDS: u32 = 2;
const EXPIRY: f64 = 0.12;
/// How long after the last fault the last order may take to expire: the limit, both ticks, and a fault's backlog.
const EXPIRY_LIMIT: Duration = Duration::from_secs(12);
/// How soon after the last fault's end every instance must be ready.
pub const READY_LIMIT: Duration = Duration::from_secs(10);
/// How long after its look-up said a definite no an order is looked at again: it must still be no row.
const AFTER_A_NO: Duration = Duration::from_secs(10);
/// Orders of the sale that is there to be paid and cancelled while replies get lost.
const SIDE_ORDERS: usize = 12;
/// Buyers' ids begin here, and each round has its own: a lock left behind affects no other round.
const FIRST_BUYER: u64 = 1_000_000_000;
/// Ids a round has at most.
const IDS: u64 = 100_000;

/// A round that was run and checked.
#[derive(Debug, Clone)]
pub struct Round {
    /// Which round, from 1.
    pub number: u32,
    pub sales: Vec<Sale>,
    /// What was done to the servers.
    pub faults: Vec<Planned>,
    /// Whether unpaid orders expired.
    pub expires: bool,
    /// From the last fault's end until every instance was ready, in milliseconds.
    pub ready_ms: u64,
    /// What was published or added, and is not as it was answered.
    pub false_operations: Vec<String>,
    /// How long it all took, in seconds.
    pub seconds: f64,
}

impl Round {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.was_ready_in_time()
            && self.false_operations.is_empty()
            && self.sales.iter().all(|sale| sale.verdict.is_clean())
    }

    /// Whether every instance was ready [`READY_LIMIT`] after the last fault's end.
    pub fn was_ready_in_time(&self) -> bool {
        u128::from(self.ready_ms) <= READY_LIMIT.as_millis()
    }
}

/// Runs the `number`-th round, from 1, on servers that work, and leaves them working. Its first sale is on one of the
/// strategies in turn.
///
/// # Errors
/// An [`Error`] of the set-up. Violations are no error: see [`Round::is_clean`].
pub async fn run(
    cluster: &TestCluster,
    order_rows: &OrderRows,
    options: &ChaosOptions,
    number: u32,
) -> Result<Round, Error> {
    let started = Instant::now();
    let rng = &mut StdRng::seed_from_u64(options.seed ^ (u64::from(number) << 32));
    let (layout, strategies) = (options.layout(), &options.strategies);
    let index = number as usize - 1;
    let sale = if layout.redis_fails_over() { LONG_SALE } else { SALE };
    let strategies = plan::strategies(rng, &strategies[index % strategies.len()], strategies);
    let each = options.buyers as usize / strategies.len();
    let drawn: Vec<(usize, Vec<Attempt>)> = strategies
        .iter()
        .map(|_| {
            let stock = rng.random_range(each / 4..each * 5 / 4).max(1);
            (stock, buyers::draw(rng, each, (sale, WAVE)))
        })
        .collect();
    let expires = rng.random_bool(EXPIRY);
    let times: Vec<Duration> = (0..2).map(|_| sale.mul_f64(rng.random())).collect();
    let faults = plan::faults(rng, index, (sale, WAVE), layout);

    let rows_lost = faults.iter().any(|planned| planned.what.makes_database_forget(layout));
    let redis_lost = faults.iter().any(|planned| planned.what.makes_redis_forget(layout));
    let changes_orders = faults.iter().any(|planned| planned.what.has(Effect::ChangesOrders));
    let unpaid_seconds = if expires { UNPAID_SECONDS } else { 0 };
    if expires {
        keep_other_orders(cluster).await?;
    }
    cluster.run_as(RunAs { proxied: true, unpaid_seconds }).await?;

    let first = FIRST_BUYER + u64::from(number) * IDS;
    let most = drawn.iter().map(|(stock, _)| *stock).max().unwrap_or(0);
    // Enough to buy the rest, should all the others have got none or be unable to buy.
    let buyers: Arc<[Buyer]> = sessions::buyers(first, each + most + ADDED)?.into();
    let side: Arc<[Buyer]> = sessions::buyers(first + IDS / 2, 3 * SIDE_ORDERS)?.into();
    sessions::open(&cluster.access, &buyers).await?;
    sessions::open(&cluster.access, &side).await?;
    let mut sales = Vec::new();
    for (strategy, (stock, _)) in strategies.iter().zip(&drawn) {
        let stock = u32::try_from(*stock).unwrap_or(u32::MAX);
        let what = (strategy.as_str(), stock);
        sales.push(Sale::publish(cluster, index, strategies.len(), what, buyers.clone()).await?);
    }
    let operator = Operator::new(cluster, sales.clone())?;
    if changes_orders {
        sales.push(side_sale(cluster, index, &strategies[0], &side, &operator).await?);
    }

    let begin = Instant::now();
    let ids: Vec<u64> = sales.iter().map(|sale| sale.workload.voucher_id).collect();
    let everyone: Vec<Buyer> = buyers.iter().chain(side.iter()).cloned().collect();
    let breaking = async {
        inject(cluster, &ids, &operator, &everyone, begin, &faults).await?;
        cluster.ready().await
    };
    let selling = sales
        .iter_mut()
        .zip(&drawn)
        .map(async |(sale, (_, attempts))| sale.buy(begin, attempts).await);
    let (ready, bought, ()) =
        tokio::join!(breaking, try_join_all(selling), operator.run(begin, &times));
    let ready_ms = u64::try_from(ready?.as_millis()).unwrap_or(u64::MAX);
    bought?;
    if let Some(last) = sales.last_mut() {
        last.outcome.changes.extend(operator.changes());
    }
    cluster.ready().await?;
    let mut unexpired = vec![0; sales.len()];
    if expires {
        let waiting =
            sales.iter_mut().map(|sale| sale.wait_until_expired(cluster, order_rows, EXPIRY_LIMIT));
        unexpired = try_join_all(waiting).await?;
        // The rest is to stay sold.
        cluster.run_as(RunAs::USUAL).await?;
    }
    for sale in &mut sales {
        let expires = expires.then(|| Duration::from_secs(UNPAID_SECONDS.into()));
        let published = sale.stock.into();
        sale.circumstances = Circumstances { published, expires, rows_lost, redis_lost };
    }
    try_join_all(sales.iter_mut().map(|sale| sale.check(cluster, order_rows))).await?;
    if sales.iter().any(|sale| !sale.outcome.noes.is_empty()) {
        sleep(AFTER_A_NO).await;
        for sale in &mut sales {
            sale.check_again(order_rows).await?;
        }
    }
    for (sale, left) in sales.iter_mut().zip(unexpired) {
        sale.verdict.false_expiries += i64::try_from(left).unwrap_or(i64::MAX);
        // A run keeps its rounds, and nobody buys here any more.
        sale.workload.buyers = Arc::default();
    }
    let mut false_operations = operator.check(order_rows).await?;
    if rows_lost {
        // What was confirmed may be gone with the old primary.
        false_operations.clear();
    }
    sessions::end(&cluster.access, &everyone).await?;
    Ok(Round {
        number,
        sales,
        faults,
        expires,
        ready_ms,
        false_operations,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// Makes the unpaid orders of the rounds before used ones: expiry would cancel those as well, and these rounds are
/// checked once more at the end.
async fn keep_other_orders(cluster: &TestCluster) -> Result<(), Error> {
    let mut administrator = database::connect(cluster.database.lock().await.primary()).await?;
    let used = "UPDATE tb_voucher_order SET status = 3 WHERE status = 1";
    database::run(&mut administrator, used).await
}

/// More than what is added to a sale in a round.
const ADDED: usize = 64;

/// A small sale, all of it sold, whose orders are there for [`Operator::change`].
async fn side_sale(
    cluster: &TestCluster,
    number: usize,
    strategy: &str,
    buyers: &Arc<[Buyer]>,
    operator: &Operator,
) -> Result<Sale, Error> {
    let stock = u32::try_from(SIDE_ORDERS).unwrap_or(u32::MAX);
    let mut sale = Sale::publish(cluster, number, 1, (strategy, stock), buyers.clone()).await?;
    // The other buyers are there for what is cancelled.
    let attempts: Vec<Attempt> =
        (0..SIDE_ORDERS).map(|buyer| buyers::attempt_now(buyer, 0)).collect();
    let bought = Instant::now();
    sale.buy(bought, &attempts).await?;
    let mut orders = Vec::new();
    for record in sale.outcome.records.clone() {
        let ObservedReply { user_id, reply, .. } = record.observed;
        let (Reply::Ordered(order_id) | Reply::Pending(order_id)) = reply else { continue };
        let Some(buyer) = buyers.iter().find(|buyer| buyer.user_id == user_id) else { continue };
        let owner = sale.workload.owner(buyer, order_id, bought);
        let reply = owner.wait().await;
        sale.outcome.note(user_id, &reply);
        if matches!(reply, Reply::Ordered(_)) {
            orders.push(owner);
        }
    }
    operator.has_orders(orders);
    Ok(sale)
}

/// Injects all faults, each at its time.
async fn inject(
    cluster: &TestCluster,
    sales: &[u64],
    operator: &Operator,
    buyers: &[Buyer],
    begin: Instant,
    faults: &[Planned],
) -> Result<(), Error> {
    let injecting = faults.iter().map(async |planned| {
        let Planned { what, lasts, at } = *planned;
        sleep_until(begin + at).await;
        what.inject(Scene { cluster, sales, buyers, operator: Some(operator), lasts }).await
    });
    try_join_all(injecting).await.map(drop)
}
