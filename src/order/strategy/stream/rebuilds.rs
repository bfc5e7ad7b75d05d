//! What this process remembers of each sale's stock counter: the rebuild that is running, and when it was last checked
//! for stranded stock. No I/O may come in here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt, Shared};
use parking_lot::Mutex;

use crate::error::Error;

/// A sale is checked for stranded stock at most this often.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Sales remembered at most; beyond it, those not in use are forgotten.
const SALES: usize = 1024;

/// A rebuild that is running: one task, for which any number of purchases wait.
pub(super) type Rebuild = Shared<BoxFuture<'static, Result<(), Error>>>;

/// The sales, by voucher.
#[derive(Default)]
pub(super) struct Rebuilds(Mutex<HashMap<i64, Arc<SaleRebuild>>>);

/// One sale.
#[derive(Default)]
pub(super) struct SaleRebuild {
    running: Mutex<Option<Rebuild>>,
    checked: Mutex<Option<Instant>>,
}

impl Rebuilds {
    pub fn of_sale(&self, voucher_id: i64) -> Arc<SaleRebuild> {
        let mut sales = self.0.lock();
        if sales.len() >= SALES {
            sales.retain(|_, sale| Arc::strong_count(sale) > 1);
        }
        sales.entry(voucher_id).or_default().clone()
    }
}

impl SaleRebuild {
    /// The running rebuild, or else the one that `start` starts.
    pub fn join(&self, start: impl FnOnce() -> Rebuild) -> Rebuild {
        let mut running = self.running.lock();
        // Polled, for `peek` knows of a result only when somebody has waited for it, and a rebuild may have been started for
        // nobody.
        let unfinished = running.clone().filter(|rebuild| rebuild.clone().now_or_never().is_none());
        unfinished.unwrap_or_else(|| running.insert(start()).clone())
    }

    /// Whether it is time for another check; counts as one.
    pub fn is_check_due(&self) -> bool {
        let mut checked = self.checked.lock();
        let due = checked.is_none_or(|at| at.elapsed() >= CHECK_EVERY);
        if due {
            *checked = Some(Instant::now());
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rebuild_that_has_ended_is_not_joined_though_nobody_waited_for_it() {
        let sale = SaleRebuild::default();
        let started = std::cell::Cell::new(0);
        let start = |rebuild: BoxFuture<'static, Result<(), Error>>| {
            started.set(started.get() + 1);
            rebuild.shared()
        };
        drop(sale.join(|| start(std::future::ready(Ok(())).boxed())));
        drop(sale.join(|| start(std::future::pending().boxed())));
        assert_eq!(started.get(), 2);
        drop(sale.join(|| start(std::future::pending().boxed())));
        assert_eq!(started.get(), 2, "this one is running");
    }
}
