//! [`Recounts`]: the sales whose stock counter the strategy `stream` is to count again soon.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Requests that nobody has taken yet. Cheap to clone.
#[derive(Clone, Default)]
pub struct Recounts(Arc<Asked>);

#[derive(Default)]
struct Asked {
    sales: Mutex<HashMap<i64, Vec<i64>>>,
    due: Notify,
}

impl Recounts {
    /// Asks for it; `void` is a user who is said to have a claim that stands for nothing.
    pub fn ask(&self, voucher_id: i64, void: Option<i64>) {
        self.0.sales.lock().entry(voucher_id).or_default().extend(void);
        self.0.due.notify_one();
    }

    /// What was asked for: sales, and users with void claims.
    pub fn take(&self) -> HashMap<i64, Vec<i64>> {
        std::mem::take(&mut *self.0.sales.lock())
    }

    /// Waits for the next request.
    pub async fn asked(&self) {
        self.0.due.notified().await;
    }
}
