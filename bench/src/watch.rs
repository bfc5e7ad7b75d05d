//! Somebody watches: metrics are scraped, a shop's page and the lab's page are open. What that costs the sale is
//! a ratio of its own.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use workload::Target;
use workload::http::{Call, Connection};

/// What is asked for, and how often: more often than Prometheus does by default (15 s), and as often as the pages do.
const LOOKS: [(&str, Duration); 3] = [
    ("/metrics", Duration::from_secs(1)),
    ("/voucher/list/1", Duration::from_secs(1)),
    ("/lab/runs", Duration::from_millis(250)),
];
/// Time limit of one look.
const LIMIT: Duration = Duration::from_secs(5);

/// Does `work` while `target` is watched.
pub async fn watched<T>(target: &Target, work: impl Future<Output = T>) -> T {
    let [metrics, shop, lab] = LOOKS.map(|(path, every)| look(target, path, every));
    tokio::select! {
        done = work => done,
        () = metrics => unreachable!("looks without end"),
        () = shop => unreachable!("looks without end"),
        () = lab => unreachable!("looks without end"),
    }
}

/// Looks until dropped. A look that fails is no fault of the sale's.
async fn look(target: &Target, path: &str, every: Duration) {
    let mut connection = Connection::new(target.clone(), LIMIT);
    let mut tick = interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        connection.send(&Call::get(path)).await.ok();
    }
}
