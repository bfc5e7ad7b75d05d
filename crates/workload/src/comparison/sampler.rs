//! Samples both sales five times a second while they run: the client's counters, and the tables. Where orders are
//! committed after the answer, notes when each was first seen in the table.

use std::{cell::RefCell, collections::HashMap, time::Duration};

use tokio::time::sleep;

use super::{
    document::{Sample, Setting, State},
    run_state::RunState,
};
use crate::{
    latency::Latency,
    order_rows::{OrderRows, Snapshot},
};

/// From one sample to the next.
const PERIOD: Duration = Duration::from_millis(200);
/// From one look for new orders to the next. An order is seen late by up to this pause and the time of a reading.
const PAUSE: Duration = Duration::from_millis(20);

/// When orders were first seen, in seconds since the first request.
pub(super) type Commits = HashMap<i64, f64>;

/// What is sampled.
pub(super) struct Sampler<'a> {
    pub run: &'a RunState,
    pub order_rows: &'a OrderRows,
    pub vouchers: [u64; 2],
    /// Of each lane, the orders that were committed after the answer, and when they were seen.
    pub commits: [RefCell<Commits>; 2],
}

impl Sampler<'_> {
    /// Samples until the future is dropped.
    pub async fn run(&self) {
        tokio::join!(
            self.sample_both(),
            self.watch_commits(0),
            self.watch_commits(1)
        );
    }

    async fn sample_both(&self) {
        loop {
            sleep(PERIOD).await;
            self.take().await;
        }
    }

    /// Notes when orders of the lane are first seen. Ends at once if its strategy answers only after the commit.
    async fn watch_commits(&self, lane: usize) {
        let strategy = self.run.lock().lanes[lane].strategy;
        if !strategy.is_deferred() && !strategy.can_lose() {
            return;
        }
        loop {
            // The database may be away for a moment: a fault may have been injected.
            if let Ok(snapshot) = self.order_rows.read(self.vouchers[lane]).await {
                let now = self.run.seconds();
                let mut commits = self.commits[lane].borrow_mut();
                for row in snapshot.rows {
                    commits.entry(row.id).or_insert(now);
                }
            }
            sleep(PAUSE).await;
        }
    }

    /// Adds a sample to each lane, and says when all buyers have been answered.
    pub async fn take(&self) {
        let mut snapshots = Vec::with_capacity(2);
        for voucher_id in self.vouchers {
            // The database may be away for a moment: a fault may have been injected.
            snapshots.push(self.order_rows.read(voucher_id).await.ok());
        }
        let seconds = self.run.seconds();
        let mut document = self.run.lock();
        let Setting {
            buyers,
            tries,
            stock,
            ..
        } = document.setting;
        let attempts = u64::from(buyers) * u64::from(tries);
        let mut lanes = self.run.live.iter();
        if lanes.all(|live| live.done() >= attempts || live.stop.is_cancelled()) {
            document.state = State::Judging;
        }
        for ((lane, live), snapshot) in document.lanes.iter_mut().zip(&self.run.live).zip(snapshots)
        {
            let first = Sample {
                stock: stock.into(),
                ..Sample::default()
            };
            let last = lane.samples.last().cloned().unwrap_or(first);
            let window = live.take_window();
            for (reply, _) in &window {
                *lane.replies.entry(reply.label().to_owned()).or_default() += 1;
            }
            let orders = window
                .iter()
                .filter(|(reply, _)| reply.is_success())
                .count();
            let latency = Latency::from_durations(window.iter().map(|(_, latency)| *latency));
            let rate = |count: usize| count as f64 / (seconds - last.at).max(1e-3);
            lane.samples.push(Sample {
                at: seconds,
                requests: last.requests + window.len() as u64,
                requests_per_s: rate(window.len()),
                orders_per_s: rate(orders),
                p50_ms: (latency.count > 0).then_some(latency.p50_ms),
                p99_ms: (latency.count > 0).then_some(latency.p99_ms),
                ..snapshot.map_or(last, tables)
            });
        }
    }
}

/// What the tables say: what is left, orders that are not cancelled, their buyers, and the buyers of several.
fn tables(Snapshot { sale, rows }: Snapshot) -> Sample {
    let mut orders: HashMap<u64, i64> = HashMap::new();
    for row in rows.iter().filter(|row| !row.is_cancelled()) {
        *orders.entry(row.user_id).or_default() += 1;
    }
    let rows = orders.values().sum::<i64>();
    let people = orders.len() as i64;
    Sample {
        stock: sale.stock_left,
        rows,
        people,
        repeated: orders.values().filter(|count| **count > 1).count() as i64,
        duplicates: rows - people,
        oversold: (rows - sale.issued).max(-sale.stock_left).max(0),
        ..Sample::default()
    }
}
