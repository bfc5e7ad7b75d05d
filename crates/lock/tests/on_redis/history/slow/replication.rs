//! What histories on servers that replicate have in common.

use std::time::Duration;

use crate::eventually;
use crate::history::event::{Nanos, now};
use crate::history::lock_under_test::Kind;
use crate::history::worker::Plan;
use crate::history::workers::Workers;

/// A lease that is not over when a failover takes long on a busy machine.
const LEASE: Duration = Duration::from_secs(15);

/// Starts workers, and waits until the lock was granted often.
pub async fn start(url: &str, change: impl Fn(&mut Plan)) -> Workers {
    let workers = Workers::start(Kind::Reentrant, url, change).await;
    workers.granted().await;
    workers
}

/// Short holds with a long lease, so that each hold that is lost was lost by a failover.
pub fn short_holds(plan: &mut Plan) {
    plan.lock.lease = LEASE;
    plan.long = 0.0;
}

/// Waits until the lock was granted after this moment.
pub async fn granted_after(workers: &Workers, moment: Nanos) {
    eventually("the lock is granted anew", async || {
        workers.so_far().granted_after(moment).next().is_some()
    })
    .await;
}

/// Waits until this guard reports its lock as valid after this moment.
pub async fn still_held(workers: &Workers, guard: u64) {
    let since = now();
    eventually("the holder still holds the lock", async || {
        workers.so_far().is_valid_after(guard, since)
    })
    .await;
}
