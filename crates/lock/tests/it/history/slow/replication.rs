//! Histories with replicas: a master that is killed, and a replica that gets nothing more from it.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;

use crate::history::event::{Event, EventKind, Nanos, now};
use crate::history::lock_under_test::{Kind, NAME};
use crate::history::worker::Plan;
use crate::history::workers::Workers;
use crate::history::{RUN, recovered};
use crate::{eventually, query};
use testkit::redis_sentinel::replication_says;
use testkit::redis_server::RedisServer;

/// A lease that is not over when a failover takes long on a busy machine.
const LEASE: Duration = Duration::from_secs(15);

/// A master that serves the lock, and the replica that takes its place.
pub trait Replicated {
    async fn start() -> Self;

    fn url(&self) -> String;

    /// The master, as long as it lives, and its replica.
    fn pair(&mut self) -> [&mut RedisServer; 2];

    /// Waits until the replica has taken over.
    async fn taken_over(&self);

    /// Starts the killed master again, as the replica of its replacement.
    async fn rejoin(&mut self);

    /// Kills the master, and waits until its replica has taken over.
    async fn fail_over(&mut self) {
        self.pair()[0].kill();
        self.taken_over().await;
    }
}

/// Starts workers, and waits until the lock was granted often.
pub async fn start(url: &str, change: impl Fn(&mut Plan)) -> Workers {
    let workers = Workers::start(Kind::Reentrant, url, change).await;
    workers.granted().await;
    workers
}

/// Short holds with a long lease, so that each hold that is lost was lost by a failover. `replicas`
/// have to acknowledge an acquire.
pub fn plan(replicas: u32) -> impl Fn(&mut Plan) {
    move |plan| {
        plan.lock.lease = LEASE;
        plan.lock.replicas = replicas;
        plan.long = 0.0;
    }
}

/// Makes these histories tests of the servers of this type.
macro_rules! replicated {
    ($servers:ty) => {
        replicated! { @ $servers:
            a_killed_master_loses_no_acknowledged_acquire
            a_replica_that_lags_acknowledges_no_acquire
            a_lagging_replica_is_detected_without_acknowledgement
        }
    };
    (@ $servers:ty: $($test:ident)+) => {
        $(#[tokio::test]
        async fn $test() {
            super::replication::$test::<$servers>().await;
        })+
    };
}
pub(super) use replicated;

/// Its replica has every acquire that a client knows of.
pub async fn a_killed_master_loses_no_acknowledged_acquire<R: Replicated>() {
    let mut servers = R::start().await;
    let mut workers = start(&servers.url(), plan(1)).await;
    let holder = workers.keep_holding().await;
    workers.failover(servers.fail_over()).await;
    still_held(&workers, holder).await;
    workers.let_go();
    servers.rejoin().await;
    recovered(&workers).await;
    workers.finish(&[]).await.assert_holds();
}

/// The same while the replica gets nothing: then no acquire succeeds that it would not know of.
pub async fn a_replica_that_lags_acknowledges_no_acquire<R: Replicated>() {
    let mut servers = R::start().await;
    let mut workers = start(&servers.url(), plan(1)).await;
    stop_replication(&workers, servers.pair()).await;
    grants_nothing(&workers).await;
    workers.failover(servers.fail_over()).await;
    servers.rejoin().await;
    recovered(&workers).await;
    workers.finish(&[]).await.assert_holds();
}

/// Planted: nobody waits for the replica, so that the failover loses a lock that is held.
pub async fn a_lagging_replica_is_detected_without_acknowledgement<R: Replicated>() {
    let mut servers = R::start().await;
    let mut workers = start(&servers.url(), plan(0)).await;
    stop_replication(&workers, servers.pair()).await;
    granted_after(&workers, now()).await;
    let holder = workers.keep_holding().await;
    let (process, held) = (Workers::process_of(holder), now());
    // It does not notice the loss before it is resumed.
    workers.signal(process, Signal::STOP);
    workers.failover(servers.fail_over()).await;
    granted_after(&workers, held).await;
    workers.signal(process, Signal::CONT);
    workers.let_go();
    workers.finish(&[]).await.assert_two_holders();
}

/// The replica gets nothing more of what its master does, and stays as it is, without the lock. The
/// master goes on. Returns when the replica is behind.
async fn stop_replication(workers: &Workers, [master, replica]: [&mut RedisServer; 2]) {
    let mut raw = master.conn().await;
    eventually(
        "replication was stopped while nobody held the lock",
        async || {
            workers.signal_all(Signal::STOP);
            // What they have sent is executed.
            tokio::time::sleep(Duration::from_millis(10)).await;
            let held: i64 = query(&mut raw, "EXISTS", &[NAME]).await;
            if held == 0 {
                let _: () =
                    query(&mut raw, "ACL", &["SETUSER", "default", "-psync", "-sync"]).await;
                let _: i64 = query(&mut raw, "CLIENT", &["KILL", "TYPE", "replica"]).await;
            }
            workers.signal_all(Signal::CONT);
            held == 0
        },
    )
    .await;
    eventually("the replica has lost its master", async || {
        replication_says(replica, "master_link_status:down").await
    })
    .await;
}

/// Waits until several acquires that were begun meanwhile have ended, and a while; fails if one of them was granted.
async fn grants_nothing(workers: &Workers) {
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
    let granted = async || workers.so_far().granted_after(moment).next().is_some();
    eventually("the lock is granted anew", granted).await;
}

/// Waits until this guard reports its lock as valid after this moment.
pub async fn still_held(workers: &Workers, guard: u64) {
    let since = now();
    let valid = async || workers.so_far().is_valid_after(guard, since);
    eventually("the holder still holds the lock", valid).await;
}
