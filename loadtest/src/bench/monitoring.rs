//! Monitoring traffic beside a sale: metrics are scraped, a shop's page and the lab's page poll. Its cost is a ratio.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use workload::Target;
use workload::http::{Call, Connection};

/// Paths and periods: more often than Prometheus scrapes by default (15 s), and as often as the pages poll.
const POLLS: [(&str, Duration); 3] = [
    ("/metrics", Duration::from_secs(1)),
    ("/voucher/list/1", Duration::from_secs(1)),
    ("/lab/runs", Duration::from_millis(250)),
];
/// Time limit of one request.
const LIMIT: Duration = Duration::from_secs(5);

/// Does `work` while `target` is monitored.
pub async fn monitored<T>(target: &Target, work: impl Future<Output = T>) -> T {
    let [metrics, shop, lab] = POLLS.map(|(path, period)| poll(target, path, period));
    tokio::select! {
        done = work => done,
        () = async { tokio::join!(metrics, shop, lab); } => unreachable!("polls without end"),
    }
}

/// Polls until dropped. A failed request does not matter to the sale.
async fn poll(target: &Target, path: &str, period: Duration) {
    let mut connection = Connection::new(target.clone(), LIMIT);
    let mut tick = interval(period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        connection.send(&Call::get(path)).await.ok();
    }
}
