//! Histories with replicas: their plan, and a replica that gets nothing more from its master.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;

use crate::history::RUN;
use crate::history::event::{Event, EventKind, Nanos, now};
use crate::history::lock_under_test::NAME;
use crate::history::worker::Plan;
use crate::history::workers::Workers;
use crate::{eventually, query};
use testkit::redis_server::RedisServer;

/// A lease that is not over when a failover takes long on a busy machine.
const LEASE: Duration = Duration::from_secs(15);

/// Short holds with a long lease, so that each hold that is lost was lost by a failover. `replicas`
/// have to acknowledge an acquire.
pub fn plan(replicas: u32) -> impl Fn(&mut Plan) {
    move |plan| {
        plan.lock.lease = LEASE;
        plan.lock.replicas = replicas;
        plan.long = 0.0;
    }
}

/// The replica gets nothing more of what its master does, and stays as it is, without the lock. The
/// master goes on. Returns when the replica is behind.
pub async fn stop_replication(workers: &Workers, master: &RedisServer, replica: &RedisServer) {
    let (mut raw, mut copy) = (master.conn().await, replica.conn().await);
    eventually("replication was stopped while nobody held the lock", async || {
        workers.signal_all(Signal::STOP);
        // What they have sent is executed.
        tokio::time::sleep(Duration::from_millis(10)).await;
        let held: i64 = query(&mut raw, "EXISTS", &[NAME]).await;
        if held == 0 {
            let _: () = query(&mut raw, "ACL", &["SETUSER", "default", "-psync", "-sync"]).await;
            let _: i64 = query(&mut raw, "CLIENT", &["KILL", "TYPE", "replica"]).await;
        }
        workers.signal_all(Signal::CONT);
        held == 0
    })
    .await;
    eventually("the replica has lost its master", async || {
        let facts: String = query(&mut copy, "INFO", &["replication"]).await;
        facts.contains("master_link_status:down")
    })
    .await;
}

/// Waits until several acquires that were begun meanwhile have ended, and a while; fails if one of them was granted.
pub async fn grants_nothing(workers: &Workers) {
    let since = now();
    tokio::time::sleep(RUN / 2).await;
    eventually("several acquires have ended", async || {
        let events = workers.so_far().events;
        let begun: BTreeSet<u64> = events
            .iter()
            .filter(|event| matches!(event.kind, EventKind::Acquire) && event.at > since)
            .map(|event| event.guard)
            .collect();
        let later = |event: &&Event| begun.contains(&event.guard);
        let granted = |event: &&Event| matches!(event.kind, EventKind::Granted { .. });
        assert_eq!(
            events.iter().filter(later).find(granted),
            None,
            "granted without acknowledgement"
        );
        let ended = |event: &&Event| matches!(event.kind, EventKind::Failed | EventKind::Busy);
        events.iter().filter(later).filter(ended).count() > 3
    })
    .await;
}

/// Waits until the lock was granted after this moment.
pub async fn granted_after(workers: &Workers, moment: Nanos) {
    eventually("the lock is granted anew", async || {
        workers
            .so_far()
            .events
            .iter()
            .any(|event| matches!(event.kind, EventKind::Granted { .. }) && event.at > moment)
    })
    .await;
}

/// Waits until this guard reports its lock as valid after this moment.
pub async fn still_held(workers: &Workers, guard: u64) {
    let since = now();
    let valid = async || workers.so_far().is_valid_after(guard, since);
    eventually("the holder still holds the lock", valid).await;
}
