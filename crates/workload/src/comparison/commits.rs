//! When the orders of a sale that answers first and commits later were first seen in the table: the end of such an order's
//! story. Seen by looking again and again, so each is late by up to a pause and a reading.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::ladder::Strategy;
use tokio::time::sleep;

use super::run_state::RunState;
use crate::order_rows::OrderRows;

/// From one look to the next.
const PAUSE: Duration = Duration::from_millis(20);

/// Seconds since the first request, by order.
pub(super) type Seen = HashMap<i64, f64>;

/// When the orders of one lane were seen.
#[derive(Default)]
pub(super) struct Commits(Mutex<Seen>);

impl Commits {
    /// Looks until the future is dropped; ends at once where `strategy` answers only after the commit.
    pub async fn watch(&self, strategy: &str, voucher: u64, rows: &OrderRows, run: &RunState) {
        if !strategy.parse::<Strategy>().is_ok_and(Strategy::is_deferred) {
            return;
        }
        loop {
            // The database may be away for a moment: a fault may have been injected.
            if let Ok(snapshot) = rows.read(voucher).await {
                let now = run.seconds();
                let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                for row in snapshot.rows {
                    seen.entry(row.id).or_insert(now);
                }
            }
            sleep(PAUSE).await;
        }
    }

    /// What was seen.
    pub fn seen(self) -> Seen {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
