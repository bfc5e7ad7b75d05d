//! Recovery time: how long orders per second take to come back after an instance was killed, after Redis lost all data,
//! and after another server took the place of a Redis or of the database.
//!
//! Steady load, every buyer once, as many connections as keep both instances busy; a connection whose
//! instance is away asks the other one, as a load balancer does. Orders are counted per 100 ms. The usual rate is
//! the median of the second and a half before the fault; the first 300 ms that reach 95 % of it on average are
//! the recovery.

use std::{
    iter::repeat_with,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::{
    faults::{Fault, Scene},
    operator::Operator,
    test_cluster::TestCluster,
};
use crate::spread::median;
use workload::{
    Target,
    buyers::Buyer,
    http::{Call, Connection},
    publish,
    reply::{NOT_SENT, Reply},
    sessions,
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
const CONNECTIONS: usize = 64;
/// Buyers; each can order once, and they must last until [`LIMIT`].
const BUYERS: usize = 200_000;
/// Their ids; rounds have smaller ones.
const FIRST_BUYER: u64 = 3_000_000_000;
/// The code of a request without a session.
const UNAUTHORIZED: &str = "UNAUTHORIZED";
/// How long a connection asks the other instance when its own is away.
const ASIDE: Duration = Duration::from_millis(100);
/// Until it asks again after a refusal or an error.
const PAUSE: Duration = Duration::from_millis(5);

/// What the connections share.
struct Load {
    targets: Vec<Target>,
    voucher_id: u64,
    buyers: Vec<Buyer>,
    next: AtomicUsize,
    begin: Instant,
    /// Orders in each bin since `begin`.
    bins: Vec<AtomicU32>,
}

/// Measures once. The instances must not be behind the proxies, which share the tool's one thread; those of several Redis
/// servers or a replicated database always are.
pub async fn measure(
    cluster: &TestCluster,
    strategy: &str,
    after: &'static Fault,
    number: u32,
) -> Result<Recovery> {
    let first = FIRST_BUYER + u64::from(number) * BUYERS as u64;
    let buyers = sessions::buyers(first, BUYERS)?;
    sessions::open(&cluster.access, &buyers).await?;
    let stock = u32::try_from(BUYERS).unwrap_or(u32::MAX);
    let targets = cluster.targets.clone();
    let voucher_id = publish::flash_sale(&cluster.access, &targets[0], strategy, stock).await?;
    let load = Arc::new(Load {
        targets,
        voucher_id,
        buyers,
        next: AtomicUsize::new(0),
        begin: Instant::now(),
        bins: repeat_with(AtomicU32::default).take(bins(WARM_UP + USUAL + LIMIT)).collect(),
    });
    let mut working: JoinSet<()> =
        (0..CONNECTIONS).map(|number| load.clone().work(number)).collect();
    let operator = &Operator::new(cluster, Vec::new(), load.begin)?;
    sleep_until(load.begin + WARM_UP + USUAL).await;
    let (usual, broken_at) = (load.usual(), load.begin.elapsed());
    let (sales, lasts) = (&[voucher_id], Duration::ZERO);
    // Those whose turn is next come first.
    let buyers = &load.buyers[load.next.load(Ordering::Relaxed).min(BUYERS)..];
    let broken = after.inject(Scene { cluster, sales, buyers, operator, lasts });
    let (broken, back_ms) = tokio::join!(broken, load.back(broken_at, usual));
    working.shutdown().await;
    broken?;
    cluster.ready().await?;
    sessions::end(&cluster.access, &load.buyers).await?;
    let usual = usual / BIN.as_secs_f64();
    Ok(Recovery { strategy: strategy.to_owned(), after, usual, back_ms })
}

/// How many bins there are in this time.
fn bins(time: Duration) -> usize {
    (time.as_millis() / BIN.as_millis()) as usize
}

impl Load {
    async fn work(self: Arc<Self>, number: usize) {
        let home = number % self.targets.len();
        let connect = |target: &Target| Connection::new(target.clone(), LIMIT);
        let mut connections: Vec<Connection> = self.targets.iter().map(connect).collect();
        let call = Call::post(format!("/voucher-order/seckill/{}", self.voucher_id));
        let mut aside_until = self.begin;
        let draw = || self.buyers.get(self.next.fetch_add(1, Ordering::Relaxed));
        let mut buyer = draw();
        while let Some(Buyer { token, .. }) = buyer {
            let call = call.clone().token(token);
            let aside = usize::from(Instant::now() < aside_until);
            let at = (home + aside) % connections.len();
            match Reply::of(&connections[at].send(&call).await) {
                Reply::Ordered(_) | Reply::Pending(_) => {
                    if let Some(bin) = self.bins.get(bins(self.begin.elapsed())) {
                        bin.fetch_add(1, Ordering::Relaxed);
                    }
                    buyer = draw();
                }
                // An order whose reply was lost; when that came is not known.
                Reply::AlreadyOrdered(_) => buyer = draw(),
                Reply::Refused(code) if code == NOT_SENT => {
                    aside_until = Instant::now() + ASIDE;
                }
                // The session went with Redis, and only buyers whose turn is still to come sign in again.
                Reply::Refused(code) if code == UNAUTHORIZED => {
                    sleep(PAUSE).await;
                    buyer = draw();
                }
                // The same buyer again: with a new one each time they would be used up.
                _ => sleep(PAUSE).await,
            }
        }
    }

    /// Orders of the bins from `from` on, as far as they are complete.
    fn complete(&self, from: usize) -> Vec<u32> {
        let all = self.bins.iter().take(bins(self.begin.elapsed())).skip(from);
        all.map(|bin| bin.load(Ordering::Relaxed)).collect()
    }

    /// The median bin since the warm-up.
    fn usual(&self) -> f64 {
        median(self.complete(bins(WARM_UP)).into_iter().map(f64::from))
    }

    /// When orders were back after the fault at `broken_at`, in milliseconds.
    async fn back(&self, broken_at: Duration, usual: f64) -> Option<u64> {
        while self.begin.elapsed() < broken_at + LIMIT {
            sleep(BIN / 2).await;
            // From the first bin that lies wholly behind the fault.
            let since = self.complete(bins(broken_at) + 1);
            if let Some(bin) = first_recovered(&since, usual) {
                let bin_ms = u64::try_from(BIN.as_millis()).unwrap_or(u64::MAX);
                return Some(bin as u64 * bin_ms);
            }
        }
        None
    }
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
