//! One round: two to four sales, operations on them, faults in their middle, and the check ([`super::sale`]).

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use futures_util::future::try_join_all;
use rand::{Rng, SeedableRng, rngs::StdRng};
use testkit::database_server::run as run_statement;
use tokio::time::{Instant, sleep_until};

use super::{
    ChaosOptions, Layout,
    changes::Attempt,
    operator::{Operator, Scene},
    plan::{self, Planned},
    sale::Sale,
    test_cluster::TestCluster,
    verdict::Outcome,
};
use workload::{buyers::Buyer, sessions};

/// How long a sale lasts.
const SALE: Duration = Duration::from_millis(1_500);
/// The same where a Redis can be replaced: the other servers take some seconds to decide on that.
const LONG_SALE: Duration = Duration::from_millis(3_000);
/// After how many seconds an unpaid order expires, in the rounds where orders expire.
const UNPAID_SECONDS: u32 = 2;
/// The share of these rounds.
const EXPIRY: f64 = 0.12;
/// How soon after the last fault's end every instance must be ready.
pub const READY_LIMIT: Duration = Duration::from_secs(10);
/// More vouchers than are ever added to a sale in a round.
const ADDED: usize = 64;

/// A round that was run and checked.
#[derive(Debug, Clone)]
pub struct Round<'a> {
    /// Which round, from 1.
    pub number: u32,
    pub sales: Vec<Sale<'a>>,
    /// What was done to the servers.
    pub faults: Vec<Planned>,
    /// From the last fault's end until every instance was ready.
    pub ready: Duration,
    /// Publications and additions of stock that contradict their answers.
    pub false_operations: Vec<String>,
}

impl Round<'_> {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.ready <= READY_LIMIT
            && self.false_operations.is_empty()
            && self.sales.iter().all(|sale| sale.verdict.is_clean())
    }
}

/// What a round does, drawn from its seed.
struct Draw {
    sales: Vec<DrawnSale>,
    /// How many buyers come to each sale.
    buyers: usize,
    /// Whether unpaid orders expire.
    expires: bool,
    /// When the operator publishes a sale and adds stock.
    operations: Vec<Duration>,
    faults: Vec<Planned>,
}

struct DrawnSale {
    strategy: &'static str,
    stock: usize,
    attempts: Vec<Attempt>,
}

impl Draw {
    fn new(options: &ChaosOptions, number: u32) -> Self {
        let rng = &mut StdRng::seed_from_u64(options.seed ^ (u64::from(number) << 32));
        let layout = options.layout;
        let index = number as usize - 1;
        let duration = if layout.redis_fails_over() {
            LONG_SALE
        } else {
            SALE
        };
        let strategies = plan::strategies(rng, index);
        let buyers = options.buyers as usize / strategies.len();
        let mut sales = Vec::new();
        for strategy in strategies {
            let stock = rng.random_range(buyers / 4..buyers * 5 / 4).max(1);
            let attempts = plan::attempts(rng, buyers, duration);
            sales.push(DrawnSale {
                strategy,
                stock,
                attempts,
            });
        }
        let expires = rng.random_bool(EXPIRY);
        let operations = (0..2).map(|_| duration.mul_f64(rng.random())).collect();
        let faults = plan::faults(rng, index, duration, layout);
        Self {
            sales,
            buyers,
            expires,
            operations,
            faults,
        }
    }

    /// The outcome of a sale before it begins: what its faults can do to it.
    fn outcome(&self, layout: Layout) -> Outcome {
        let faults = &self.faults;
        Outcome {
            expires: self
                .expires
                .then(|| Duration::from_secs(UNPAID_SECONDS.into())),
            rows_lost: faults
                .iter()
                .any(|planned| planned.what.makes_database_forget(layout)),
            redis_lost: faults
                .iter()
                .any(|planned| planned.what.makes_redis_forget(layout)),
            ids_ahead: faults
                .iter()
                .map(|planned| planned.what.puts_ids_ahead())
                .max()
                .unwrap_or_default(),
            ..Outcome::default()
        }
    }
}

/// Runs the `number`-th round, from 1, on servers that work, and leaves them working. Redis loses no data before
/// `quiet_until`, when the refused orders of the rounds before have been watched for long enough.
///
/// # Errors
/// Those of the set-up. Violations are no error: see [`Round::is_clean`].
pub async fn run<'a>(
    cluster: &'a TestCluster,
    options: &ChaosOptions,
    number: u32,
    quiet_until: Instant,
) -> Result<Round<'a>> {
    let draw = Draw::new(options, number);
    let outcome = draw.outcome(options.layout);
    if outcome.redis_lost {
        // Redis may still hold what would wrongly make a row of a refused order. It must not be lost before that shows.
        sleep_until(quiet_until).await;
    }
    if draw.expires {
        let_orders_expire(cluster).await?;
    }

    let stocks = draw.sales.iter().map(|sale| sale.stock);
    let largest_stock = stocks.max().unwrap_or(0);
    // New buyers, so that a lock left behind affects no other round. Beside the buyers who come to each sale there are enough
    // to buy all of its vouchers, in case the former have got none, or cannot buy any more.
    let count = draw.buyers + largest_stock + ADDED;
    let buyers = sessions::signed_in(&cluster.access, count).await?;
    let buyers: Arc<[Buyer]> = buyers.into();
    let mut sales = Vec::new();
    let target = &cluster.targets[(number as usize - 1) % cluster.targets.len()];
    for sale in &draw.sales {
        let what = (sale.strategy, sale.stock as u32);
        sales.push(Sale::publish(cluster, target, what, outcome.clone(), buyers.clone()).await?);
    }

    let begin = Instant::now();
    let operator = &Operator::new(cluster, sales.clone(), begin)?;
    let selling = sales.iter_mut().zip(draw.sales);
    let selling = selling.map(async |(sale, drawn)| {
        sale.buy(begin, drawn.attempts).await?;
        // What is said of an order while faults still last must stay true as well.
        sale.wait_until_decided().await
    });
    let (ready, bought, ()) = tokio::join!(
        inject_faults(cluster, operator, &draw.faults, begin),
        try_join_all(selling),
        operator.run(&draw.operations),
    );
    let ready = ready?;
    bought?;
    sales[0].outcome.changes.extend(operator.changes.take());
    cluster.ready().await?;
    if draw.expires {
        try_join_all(sales.iter_mut().map(Sale::wait_until_expired)).await?;
        // From here on orders do not expire: the rest is to stay sold.
        cluster.run(true, 0).await?;
    }
    try_join_all(sales.iter_mut().map(Sale::check)).await?;
    let mut false_operations = operator.check().await?;
    if outcome.rows_lost {
        // What was confirmed may be gone with the old primary.
        false_operations.clear();
    }
    sessions::end(&cluster.access, &buyers).await?;
    Ok(Round {
        number,
        sales,
        faults: draw.faults,
        ready,
        false_operations,
    })
}

/// Restarts the instances so that unpaid orders expire.
async fn let_orders_expire(cluster: &TestCluster) -> Result<()> {
    // Unpaid orders of earlier rounds would expire as well, and those rounds are checked once more at the end. So these
    // orders get the status "used".
    let used = "UPDATE tb_voucher_order SET status = 3 WHERE status = 1";
    let mut administrator = cluster.database.lock().await.primary().admin().await?;
    run_statement(&mut administrator, used).await?;
    cluster.run(true, UNPAID_SECONDS).await
}

/// Injects each fault at its time; returns how long after the last one's end every instance was ready.
async fn inject_faults(
    cluster: &TestCluster,
    operator: &Operator<'_>,
    faults: &[Planned],
    begin: Instant,
) -> Result<Duration> {
    let injecting = faults.iter().map(async |&Planned { time, lasts, what }| {
        sleep_until(begin + time).await;
        let scene = Scene {
            cluster,
            operator,
            lasts,
        };
        (what.inject)(scene).await
    });
    try_join_all(injecting).await?;
    cluster.ready().await
}
