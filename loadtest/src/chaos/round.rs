//! One round: two to four sales, operations on them, faults in their middle, and the check ([`super::sale`]).

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use futures_util::future::try_join_all;
use rand::{Rng, SeedableRng, rngs::StdRng};
use testkit::database_server::run as run_statement;
use tokio::time::{Instant, sleep_until};

use super::{
    ChaosOptions,
    operator::{Operator, Scene},
    plan::{self, Planned},
    sale::Sale,
    test_cluster::TestCluster,
    verdict::Outcome,
};
use workload::{buyers::Buyer, sessions};

/// How long the sale lasts; where a Redis is replaced, which takes others some seconds to decide, longer.
const SALE: Duration = Duration::from_millis(1_500);
const LONG_SALE: Duration = Duration::from_millis(3_000);
/// After how many seconds an unpaid order expires, in the rounds where it does; and how many rounds these are.
const UNPAID_SECONDS: u32 = 2;
const EXPIRY: f64 = 0.12;
/// How soon after the last fault's end every instance must be ready.
pub const READY_LIMIT: Duration = Duration::from_secs(10);
/// More than what is added to a sale in a round.
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
    /// What was published or added, and is not as it was answered.
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

/// Runs the `number`-th round, from 1, on servers that work, and leaves them working. Until `quiet` Redis keeps what it has
/// of the rounds before.
///
/// # Errors
/// Those of the set-up. Violations are no error: see [`Round::is_clean`].
pub async fn run<'a>(
    cluster: &'a TestCluster,
    options: &ChaosOptions,
    number: u32,
    quiet: Instant,
) -> Result<Round<'a>> {
    let rng = &mut StdRng::seed_from_u64(options.seed ^ (u64::from(number) << 32));
    let layout = options.layout;
    let index = number as usize - 1;
    let sale = if layout.redis_fails_over() {
        LONG_SALE
    } else {
        SALE
    };
    let strategies = plan::strategies(rng, index);
    let each = options.buyers as usize / strategies.len();
    let drawn = strategies.into_iter().map(|strategy| {
        let stock = rng.random_range(each / 4..each * 5 / 4).max(1);
        (strategy, stock, plan::attempts(rng, each, sale))
    });
    let drawn: Vec<_> = drawn.collect();
    let expires = rng.random_bool(EXPIRY);
    let times: Vec<Duration> = (0..2).map(|_| sale.mul_f64(rng.random())).collect();
    let faults = plan::faults(rng, index, sale, layout);

    let outcome = Outcome {
        expires: expires.then(|| Duration::from_secs(UNPAID_SECONDS.into())),
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
    };
    if outcome.redis_lost {
        // What would make a row of a refused order may still be there.
        sleep_until(quiet).await;
    }
    if expires {
        // It would cancel the unpaid orders of earlier rounds as well, which are checked once more at the end.
        let used = "UPDATE tb_voucher_order SET status = 3 WHERE status = 1";
        let mut administrator = cluster.database.lock().await.primary().admin().await?;
        run_statement(&mut administrator, used).await?;
        cluster.run(true, UNPAID_SECONDS).await?;
    }

    let most = drawn.iter().map(|(_, stock, _)| *stock).max().unwrap_or(0);
    // New ones, so that a lock left behind affects no other round; enough to buy the rest, should all the others have got
    // none or be unable to buy.
    let buyers = sessions::signed_in(&cluster.access, each + most + ADDED).await?;
    let buyers: Arc<[Buyer]> = buyers.into();
    let mut sales = Vec::new();
    let on = &cluster.targets[index % cluster.targets.len()];
    for (strategy, stock, _) in &drawn {
        let what = (*strategy, *stock as u32);
        sales.push(Sale::publish(cluster, on, what, outcome.clone(), buyers.clone()).await?);
    }

    let begin = Instant::now();
    let operator = &Operator::new(cluster, sales.clone(), begin)?;
    let breaking = async {
        let injecting = faults.iter().map(async |&Planned { what, lasts, at }| {
            sleep_until(begin + at).await;
            (what.inject)(Scene {
                cluster,
                operator,
                lasts,
            })
            .await
        });
        try_join_all(injecting).await?;
        cluster.ready().await
    };
    let selling = sales.iter_mut().zip(drawn);
    let selling = selling.map(async |(sale, (_, _, attempts))| {
        sale.buy(begin, attempts).await?;
        // What is said of an order while faults still last must stay true as well.
        sale.wait_until_decided().await
    });
    let (ready, bought, ()) = tokio::join!(breaking, try_join_all(selling), operator.run(&times));
    let ready = ready?;
    bought?;
    sales[0].outcome.changes.extend(operator.changes.take());
    cluster.ready().await?;
    if expires {
        try_join_all(sales.iter_mut().map(Sale::wait_until_expired)).await?;
        // The rest is to stay sold.
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
        faults,
        ready,
        false_operations,
    })
}
