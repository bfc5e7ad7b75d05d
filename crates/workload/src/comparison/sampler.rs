//! Samples both sales five times a second while they run: the client's counters, and the tables. Where orders are
//! committed after the answer, notes when each was first seen in the table.

use std::{cell::RefCell, collections::HashMap, time::Duration};

use tokio::time::sleep;

use super::{
    document::{Sample, State},
    run_state::RunState,
};
use crate::{
    latency::Latency,
    order_rows::{OrderRows, Snapshot},
};

/// From one sample to the next.
const PERIOD: Duration = Duration::from_millis(200);
/// From one look for new orders to the next: each is seen late by up to this and a reading.
const PAUSE: Duration = Duration::from_millis(20);

/// When orders were first seen, in seconds since the first request.
pub(super) type Commits = HashMap<i64, f64>;

/// What is sampled.
pub(super) struct Sampler<'a> {
    pub run: &'a RunState,
    pub order_rows: &'a OrderRows,
    pub vouchers: [u64; 2],
    /// Of each lane, the orders that were committed after the answer.
    pub commits: [RefCell<Commits>; 2],
}

impl Sampler<'_> {
    /// Samples until the future is dropped.
    pub async fn run(&self) {
        tokio::join!(self.sample_both(), self.watch_commits(0), self.watch_commits(1));
    }

    async fn sample_both(&self) {
        loop {
            sleep(PERIOD).await;
            self.take().await;
        }
    }

    /// Ends at once where the lane's strategy answers only after the commit.
    async fn watch_commits(&self, lane: usize) {
        if !self.run.lock().lanes[lane].strategy.is_deferred() {
            return;
        }
        loop {
            // The database may be away for a moment: a fault may have been injected.
            if let Ok(snapshot) = self.order_rows.read(self.vouchers[lane]).await {
                let now = self.run.seconds();
                let mut seen = self.commits[lane].borrow_mut();
                for row in snapshot.rows {
                    seen.entry(row.id).or_insert(now);
                }
            }
            sleep(PAUSE).await;
        }
    }

    /// Adds a sample to each lane, and says when all buyers have been answered.
    pub async fn take(&self) {
        let mut samples = Vec::with_capacity(2);
        for lane in 0..2 {
            // The database may be away for a moment: a fault may have been injected.
            let snapshot = self.order_rows.read(self.vouchers[lane]).await.ok();
            samples.push(self.sample(lane, snapshot));
        }
        let mut document = self.run.lock();
        document.elapsed_s = self.run.seconds();
        let attempts = u64::from(document.setting.buyers) * u64::from(document.setting.tries);
        let mut lanes = self.run.live.iter();
        if lanes.all(|live| live.done() >= attempts || live.stop.is_cancelled()) {
            document.state = State::Judging;
        }
        for ((lane, sample), live) in document.lanes.iter_mut().zip(samples).zip(&self.run.live) {
            lane.samples.push(sample);
            lane.replies = live.replies();
        }
    }

    fn sample(&self, lane: usize, snapshot: Option<Snapshot>) -> Sample {
        let live = &self.run.live[lane];
        let (last, issued) = {
            let document = self.run.lock();
            (document.lanes[lane].samples.last().cloned(), document.setting.stock)
        };
        let first = Sample { stock: issued.into(), ..Sample::default() };
        let last = last.unwrap_or(first);
        let (requests, orders) = (live.done(), live.orders());
        let window = live.take_window();
        let latency = Latency::of(window.iter().map(|(latency, _)| *latency));
        // Each order is its share of a commit.
        let shared = window.iter().filter_map(|(_, orders)| *orders);
        let commits: f64 = shared.clone().map(|orders| 1.0 / orders as f64).sum();
        let at = self.run.seconds();
        let rate = |now: u64, before: u64| (now - before) as f64 / (at - last.at).max(1e-3);
        let (stock, rows, people, repeated) =
            snapshot.map_or((last.stock, last.rows, last.people, last.repeated), count);
        Sample {
            at,
            requests,
            orders,
            stock,
            rows,
            people,
            repeated,
            duplicates: rows - people,
            oversold: (rows - i64::from(issued)).max(-stock).max(0),
            requests_per_s: rate(requests, last.requests),
            orders_per_s: rate(orders, last.orders),
            p50_ms: (latency.count > 0).then_some(latency.p50_ms),
            p99_ms: (latency.count > 0).then_some(latency.p99_ms),
            batch: (commits > 0.0).then(|| shared.count() as f64 / commits),
        }
    }
}

/// What is left, orders that are not cancelled, their buyers, and the buyers of several.
fn count(snapshot: Snapshot) -> (i64, i64, i64, i64) {
    let mut orders: HashMap<u64, i64> = HashMap::new();
    for row in snapshot.rows.iter().filter(|row| !row.is_cancelled()) {
        *orders.entry(row.user_id).or_default() += 1;
    }
    let repeated = orders.values().filter(|count| **count > 1).count();
    (snapshot.sale.stock_left, orders.values().sum(), orders.len() as i64, repeated as i64)
}
