//! Recovery time: how long orders per second take to come back after an instance was killed, after Redis lost all data,
//! and after another server took the place of a Redis or of the database.
//!
//! Steady load: every buyer comes once, to both instances at the same moment, so that one makes up for the other, as
//! behind a load balancer. Orders are counted per 100 ms. The usual rate is the median of the second and a half before
//! the fault; the first 300 ms that reach 95 % of it on average are the recovery.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use tokio::time::{Instant, sleep_until};

use super::{
    faults::{Fault, Scene},
    operator::Operator,
    test_cluster::TestCluster,
};
use crate::spread::median;
use workload::{
    buyers::Buyer,
    driver::Connections,
    generator::{Attempt, Purchases},
    publish, sessions,
};

/// One measurement.
#[derive(Debug, Clone)]
pub struct Recovery {
    pub strategy: String,
    pub after: &'static Fault,
    /// Orders per second before.
    pub usual: f64,
    /// Time to 95 % of that, in milliseconds; `None`: not within ten seconds.
    pub back_ms: Option<u64>,
}

/// Orders are counted for so long at a time.
const BIN: Duration = Duration::from_millis(100);
/// Bins averaged.
const WINDOW: usize = 3;
/// What counts as recovered.
const SHARE: f64 = 0.95;
/// Before the load is called steady.
const WARM_UP: Duration = Duration::from_millis(1_000);
/// For what is usual.
const USUAL: Duration = Duration::from_millis(1_500);
/// Longest wait for recovery.
const LIMIT: Duration = Duration::from_secs(10);
/// From one buyer to the next. A machine that is slower has all connections busy.
const EVERY: Duration = Duration::from_millis(1);
/// Buyers, until [`LIMIT`].
const BUYERS: u32 = 12_500;
const CONNECTIONS: usize = 64;

/// Measures once. The instances must not be behind the proxies, which share the tool's one thread; those of several Redis
/// servers or a replicated database always are.
pub async fn measure(
    cluster: &TestCluster,
    strategy: &str,
    after: &'static Fault,
) -> Result<Recovery> {
    let buyers: Arc<[Buyer]> = sessions::signed_in(&cluster.access, BUYERS as usize).await?.into();
    let targets = &cluster.targets;
    let voucher_id = publish::flash_sale(&cluster.access, &targets[0], strategy, BUYERS).await?;
    let of_buyer = |buyer: u32| {
        let due = Some(EVERY * buyer);
        [0, 1].map(|attempt| Attempt { buyer: buyer as usize, attempt, due, then: () })
    };
    let attempts = (0..BUYERS).flat_map(of_buyer).collect();
    let mut connections = Connections::new(targets, CONNECTIONS, LIMIT)?;
    let (begin, live) = (Instant::now(), Arc::default());
    let purchases = Purchases {
        voucher_id,
        buyers: buyers.clone(),
        attempts,
        begin: begin.into_std(),
        traced: false,
    };
    let operator = &Operator::new(cluster, Vec::new(), begin)?;
    let breaking = async {
        sleep_until(begin + WARM_UP + USUAL).await;
        let (sales, lasts) = (&[voucher_id], Duration::ZERO);
        after.inject(Scene { cluster, sales, buyers: &buyers, operator, lasts }).await
    };
    let (made, broken) = tokio::join!(purchases.make(&mut connections, &live, |_, _| ()), breaking);
    broken?;
    cluster.ready().await?;
    sessions::end(&cluster.access, &buyers).await?;

    let mut orders = vec![0_u32; bins(WARM_UP + USUAL + LIMIT)];
    for record in made?.iter().filter(|record| record.observed.reply.is_success()) {
        if let Some(bin) = orders.get_mut(bins(record.answered)) {
            *bin += 1;
        }
    }
    let broken_at = bins(WARM_UP + USUAL);
    let usual = median(orders[bins(WARM_UP)..broken_at].iter().copied().map(f64::from));
    // From the first bin that lies wholly behind the fault.
    let back = first_recovered(&orders[broken_at + 1..], usual);
    let back_ms = back.map(|bin| bin as u64 * BIN.as_millis() as u64);
    let usual = usual / BIN.as_secs_f64();
    Ok(Recovery { strategy: strategy.to_owned(), after, usual, back_ms })
}

/// How many bins there are in this time.
fn bins(time: Duration) -> usize {
    (time.as_millis() / BIN.as_millis()) as usize
}

/// The first bin of the first window that reaches the usual orders.
fn first_recovered(bins: &[u32], usual: f64) -> Option<usize> {
    bins.windows(WINDOW)
        .position(|window| f64::from(window.iter().sum::<u32>()) / WINDOW as f64 >= SHARE * usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_good_bin_is_no_recovery() {
        assert_eq!(first_recovered(&[0, 0, 130, 0, 0], 100.0), None);
        assert_eq!(first_recovered(&[0, 100, 90, 96, 100], 100.0), Some(1));
        assert_eq!(first_recovered(&[100, 100], 100.0), None, "too early to tell");
        assert_eq!(first_recovered(&[100, 90, 100], 100.0), Some(0));
    }
}
