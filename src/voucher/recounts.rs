//! [`Recounts`]: the sales whose stock counter the strategy `stream` is to count again soon.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Requests that nobody has taken yet. Cheap to clone.
#[derive(Clone, Default)]
pub struct Recounts(Arc<Requests>);

/// Sales that are to be counted, each with users who may have a claim without an order.
pub type RequestedCounts = HashMap<i64, HashSet<i64>>;

#[derive(Default)]
struct Requests {
    sales: Mutex<RequestedCounts>,
    due: Notify,
}

impl Recounts {
    /// Asks for a count; `doubtful_user` is one who may have a claim without an order.
    pub fn ask(&self, voucher_id: i64, doubtful_user: Option<i64>) {
        self.0
            .sales
            .lock()
            .entry(voucher_id)
            .or_default()
            .extend(doubtful_user);
        self.0.due.notify_one();
    }

    /// What was asked for.
    pub fn take(&self) -> RequestedCounts {
        std::mem::take(&mut *self.0.sales.lock())
    }

    /// Puts back what could not be counted. Wakes nobody: a fault that lasts would be met again at once.
    pub fn put_back(&self, requests: impl IntoIterator<Item = (i64, HashSet<i64>)>) {
        let mut sales = self.0.sales.lock();
        for (voucher_id, users) in requests {
            sales.entry(voucher_id).or_default().extend(users);
        }
    }

    /// Waits for the next request.
    pub async fn next_request(&self) {
        self.0.due.notified().await;
    }
}
