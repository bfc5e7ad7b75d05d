//! Recovery time: how long orders per second take to come back after an instance was killed, after Redis lost all data,
//! and after another server took the place of a Redis or of the database.
//!
//! The load is steady: every buyer comes once, to both instances at the same moment, so that one instance makes up for the
//! other, as behind a load balancer. Orders are counted per 100 ms. The usual rate is the median of the second and a half
//! before the fault; the first 300 ms that reach 95 % of it on average are the recovery.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use tokio::time::{Instant, sleep_until};

use super::{
    changes::Attempt,
    faults::Fault,
    operator::{Operator, Scene},
    sale::Sale,
    test_cluster::TestCluster,
    verdict::Outcome,
};
use crate::spread::{Spread, median};
use workload::{buyers::Buyer, sessions};

/// The columns of a table of [`row`]s.
pub const COLUMNS: [&str; 5] = ["strategy", "after", ">orders/s", ">95 % after", ">range"];

/// The length of a bin, in which orders are counted.
const BIN: Duration = Duration::from_millis(100);
/// How many bins are averaged.
const WINDOW: usize = 3;
/// The share of the usual rate that counts as recovered.
const SHARE: f64 = 0.95;
/// How long the load runs before it counts as steady.
const WARM_UP: Duration = Duration::from_millis(1_000);
/// How long the usual rate is then measured.
const USUAL: Duration = Duration::from_millis(1_500);
/// Longest wait for recovery.
const LIMIT: Duration = Duration::from_secs(10);
/// From one buyer to the next. On a machine that is slower than this all connections are busy.
const EVERY: Duration = Duration::from_millis(1);
/// Enough buyers until [`LIMIT`].
const BUYERS: u32 = 12_500;

/// Measures so many times, at least once. The instances should not be behind the proxies, which share the tool's one thread.
/// Those of several Redis servers or of a replicated database always are.
pub async fn row(
    cluster: &TestCluster,
    strategy: &'static str,
    fault: &Fault,
    times: u32,
) -> Result<Vec<String>> {
    let mut usual = Vec::new();
    let mut back = Vec::new();
    for _ in 0..times {
        eprintln!("recovery of {strategy} after {fault}");
        let (usual_once, back_once) = measure(cluster, strategy, fault).await?;
        usual.push(usual_once);
        back.push(back_once);
    }
    let text = |ms: f64| {
        if ms.is_finite() {
            format!("{ms:.0} ms")
        } else {
            "> 10 s".to_owned()
        }
    };
    let back = Spread::from_values(back).context("nothing is measured")?;
    let range = format!("{} to {}", text(back.min), text(back.max));
    let usual = format!("{:.0}", median(usual));
    Ok(vec![
        strategy.to_owned(),
        fault.to_string(),
        usual,
        text(back.median),
        range,
    ])
}

/// Returns the orders per second before the fault, and the time to 95 % of that, in milliseconds; infinite if that is not
/// within ten seconds.
async fn measure(
    cluster: &TestCluster,
    strategy: &'static str,
    fault: &Fault,
) -> Result<(f64, f64)> {
    let buyers: Arc<[Buyer]> = sessions::signed_in(&cluster.access, BUYERS as usize)
        .await?
        .into();
    let target = &cluster.targets[0];
    let what = (strategy, BUYERS);
    let mut sale = Sale::publish(cluster, target, what, Outcome::default(), buyers.clone()).await?;
    let attempts = (0..BUYERS)
        .flat_map(|buyer| {
            [0, 1].map(|attempt| Attempt {
                buyer: buyer as usize,
                attempt,
                due: Some(EVERY * buyer),
                then: &[],
            })
        })
        .collect();
    let begin = Instant::now();
    let operator = &Operator::new(cluster, vec![sale.clone()], begin)?;
    tokio::try_join!(sale.buy(begin, attempts), async {
        sleep_until(begin + WARM_UP + USUAL).await;
        let scene = Scene {
            cluster,
            operator,
            lasts: Duration::ZERO,
        };
        (fault.inject)(scene).await
    })?;
    cluster.ready().await?;
    sessions::end(&cluster.access, &buyers).await?;

    let mut orders = vec![0_u32; bins(WARM_UP + USUAL + LIMIT)];
    let records = sale.outcome.records.iter();
    for record in records.filter(|record| record.observed.reply.is_success()) {
        if let Some(bin) = orders.get_mut(bins(record.answered)) {
            *bin += 1;
        }
    }
    let broken_at = bins(WARM_UP + USUAL);
    let usual = median(
        orders[bins(WARM_UP)..broken_at]
            .iter()
            .copied()
            .map(f64::from),
    );
    // From the first bin that lies wholly behind the fault.
    let back = first_recovered(&orders[broken_at + 1..], usual);
    let back_ms = back.map_or(f64::INFINITY, |bin| (BIN * bin as u32).as_secs_f64() * 1e3);
    Ok((usual / BIN.as_secs_f64(), back_ms))
}

/// How many whole bins there are in this time.
fn bins(time: Duration) -> usize {
    (time.as_millis() / BIN.as_millis()) as usize
}

/// The first bin of the first window that reaches the [`SHARE`] of the usual orders.
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
        assert_eq!(
            first_recovered(&[100, 100], 100.0),
            None,
            "too early to tell"
        );
        assert_eq!(first_recovered(&[100, 90, 100], 100.0), Some(0));
    }
}
