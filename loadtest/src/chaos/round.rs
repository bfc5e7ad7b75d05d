//! One round: one or several sales, operations on them, faults in their middle, and the check ([`super::sale`]).

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use futures_util::future::try_join_all;
use rand::{Rng, SeedableRng, rngs::StdRng};
use testkit::database_server::run as run_statement;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    ChaosOptions,
    faults::Scene,
    operator::Operator,
    plan::{self, Planned},
    sale::Sale,
    test_cluster::TestCluster,
    verdict::Circumstances,
};
use workload::{buyers::Buyer, sessions};

/// How long the sale lasts; where a Redis is replaced, which takes others some seconds to decide, longer.
const SALE: Duration = Duration::from_millis(1_500);
const LONG_SALE: Duration = Duration::from_millis(3_000);
/// From one wave of buyers to the next.
const WAVE: Duration = Duration::from_millis(100);
/// After how many seconds an unpaid order expires, in the rounds where it does; and how many rounds these are.
const UNPAID_SECONDS: u32 = 2;
const EXPIRY: f64 = 0.12;
/// How soon after the last fault's end every instance must be ready.
pub const READY_LIMIT: Duration = Duration::from_secs(10);
/// How long after its look-up said a definite no an order is looked at again: it must still be no row.
const AFTER_A_NO: Duration = Duration::from_secs(10);
/// More than what is added to a sale in a round.
const ADDED: usize = 64;

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
    /// From the last fault's end until every instance was ready.
    pub ready: Duration,
    /// What was published or added, and is not as it was answered.
    pub false_operations: Vec<String>,
    /// How long it all took, in seconds.
    pub seconds: f64,
}

impl Round {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.ready <= READY_LIMIT
            && self.false_operations.is_empty()
            && self.sales.iter().all(|sale| sale.verdict.is_clean())
    }
}

/// Runs the `number`-th round, from 1, on servers that work, and leaves them working. Its first sale is on one of the
/// strategies in turn.
///
/// # Errors
/// Those of the set-up. Violations are no error: see [`Round::is_clean`].
pub async fn run(cluster: &TestCluster, options: &ChaosOptions, number: u32) -> Result<Round> {
    let started = Instant::now();
    let rng = &mut StdRng::seed_from_u64(options.seed ^ (u64::from(number) << 32));
    let (layout, strategies) = (options.layout, &options.strategies);
    let index = number as usize - 1;
    let sale = if layout.redis_fails_over() { LONG_SALE } else { SALE };
    let strategies = plan::strategies(rng, &strategies[index % strategies.len()], strategies);
    let each = options.buyers as usize / strategies.len();
    let drawn = strategies.iter().map(|strategy| {
        let stock = rng.random_range(each / 4..each * 5 / 4).max(1);
        (strategy, stock, plan::attempts(rng, each, (sale, WAVE)))
    });
    let drawn: Vec<_> = drawn.collect();
    let expires = rng.random_bool(EXPIRY);
    let times: Vec<Duration> = (0..2).map(|_| sale.mul_f64(rng.random())).collect();
    let faults = plan::faults(rng, index, (sale, WAVE), layout);

    let circumstances = Circumstances {
        expires: expires.then(|| Duration::from_secs(UNPAID_SECONDS.into())),
        rows_lost: faults.iter().any(|planned| planned.what.makes_database_forget(layout)),
        redis_lost: faults.iter().any(|planned| planned.what.makes_redis_forget(layout)),
        ..Circumstances::default()
    };
    if expires {
        keep_other_orders(cluster).await?;
        cluster.run(true, UNPAID_SECONDS).await?;
    }

    let most = drawn.iter().map(|(_, stock, _)| *stock).max().unwrap_or(0);
    // New ones, so that a lock left behind affects no other round; enough to buy the rest, should all the others have got
    // none or be unable to buy.
    let buyers = sessions::signed_in(&cluster.access, each + most + ADDED).await?;
    let buyers: Arc<[Buyer]> = buyers.into();
    let (mut sales, mut attempts) = (Vec::new(), Vec::new());
    let on = &cluster.targets[index % cluster.targets.len()];
    for (strategy, stock, of_sale) in drawn {
        let what = (strategy.as_str(), u32::try_from(stock).unwrap_or(u32::MAX));
        sales.push(Sale::publish(cluster, on, what, circumstances, buyers.clone()).await?);
        attempts.push(of_sale);
    }

    let begin = Instant::now();
    let operator = &Operator::new(cluster, sales.clone(), begin)?;
    let ids: Vec<u64> = sales.iter().map(|sale| sale.voucher_id).collect();
    let breaking = async {
        let injecting = faults.iter().map(async |&Planned { what, lasts, at }| {
            sleep_until(begin + at).await;
            let (sales, buyers) = (&ids[..], &buyers[..]);
            what.inject(Scene { cluster, sales, buyers, operator, lasts }).await
        });
        try_join_all(injecting).await?;
        cluster.ready().await
    };
    let selling = sales.iter_mut().zip(attempts);
    let selling = selling.map(async |(sale, attempts)| sale.buy(cluster, begin, attempts).await);
    let (ready, bought, ()) = tokio::join!(breaking, try_join_all(selling), operator.run(&times));
    let ready = ready?;
    bought?;
    sales[0].outcome.changes.extend(operator.take_changes());
    cluster.ready().await?;
    if expires {
        try_join_all(sales.iter_mut().map(|sale| sale.wait_until_expired(cluster))).await?;
        // The rest is to stay sold.
        cluster.run(true, 0).await?;
    }
    try_join_all(sales.iter_mut().map(|sale| sale.check(cluster))).await?;
    if sales.iter().any(|sale| !sale.outcome.noes.is_empty()) {
        sleep(AFTER_A_NO).await;
        try_join_all(sales.iter_mut().map(|sale| sale.check_again(cluster))).await?;
    }
    let mut false_operations = operator.check().await?;
    if circumstances.rows_lost {
        // What was confirmed may be gone with the old primary.
        false_operations.clear();
    }
    sessions::end(&cluster.access, &buyers).await?;
    // A run keeps its rounds, and nobody buys here any more.
    sales.iter_mut().for_each(|sale| sale.buyers = Arc::default());
    let seconds = started.elapsed().as_secs_f64();
    Ok(Round { number, sales, faults, expires, ready, false_operations, seconds })
}

/// Makes the unpaid orders of the rounds before used ones: expiry would cancel those as well, and these rounds are
/// checked once more at the end.
async fn keep_other_orders(cluster: &TestCluster) -> Result<()> {
    let mut administrator = cluster.database.lock().await.primary().admin().await?;
    let used = "UPDATE tb_voucher_order SET status = 3 WHERE status = 1";
    Ok(run_statement(&mut administrator, used).await?)
}
