//! [`Recounts`]: the sales whose stock counter the strategy `stream` is to count again soon.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Requests that nobody has taken yet. Cheap to clone.
#[derive(Clone, Default)]
pub struct Recounts(Arc<Asked>);

/// Sales that are to be counted, each with users who may have a claim without an order.
pub type AskedSales = HashMap<i64, HashSet<i64>>;

#[derive(Default)]
struct Asked {
    sales: Mutex<AskedSales>,
    due: Notify,
}

impl Recounts {
    /// Asks for a count; `void` is a user who may have a claim without an order.
    pub fn ask(&self, voucher_id: i64, void: Option<i64>) {
        self.0
            .sales
            .lock()
            .entry(voucher_id)
            .or_default()
            .extend(void);
        self.0.due.notify_one();
    }

    /// What was asked for.
    pub fn take(&self) -> AskedSales {
        std::mem::take(&mut *self.0.sales.lock())
    }

    /// Puts back what could not be counted. Wakes nobody: a fault that lasts would be met again at once.
    pub fn put_back(&self, asked: impl IntoIterator<Item = (i64, HashSet<i64>)>) {
        let mut sales = self.0.sales.lock();
        for (voucher_id, void) in asked {
            sales.entry(voucher_id).or_default().extend(void);
        }
    }

    /// Waits for the next request.
    pub async fn asked(&self) {
        self.0.due.notified().await;
    }
}
