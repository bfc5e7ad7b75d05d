//! Keys of ended sales: a sale's stock counter and claims expire a day after it was found to have ended, and are kept
//! again if it is reopened. Looks at a page of sales at a time, round and round.

use std::sync::Arc;
use std::time::Duration;

use super::node::StreamNode;
use crate::error::Error;
use crate::scripts;

/// Pause between two pages.
const ROUND: Duration = Duration::from_secs(2);

/// Sales of one page.
const PAGE: u32 = 500;

/// Time to live of the keys, seconds. Long enough for a wrong clock to be noticed: the next page keeps what is open.
const TTL_S: u64 = 86_400;

impl StreamNode {
    /// Makes round after round until the process stops.
    pub(super) async fn expire_ended_sales(self: Arc<Self>) {
        let (mut after, mut logged) = (0, false);
        while !self.is_stopped() {
            match self.expire_page(after).await {
                Ok(last) => (after, logged) = (last, false),
                Err(error) if !logged => {
                    logged = true;
                    tracing::warn!(%error, "keys of ended sales do not expire; trying again");
                }
                Err(_) => {}
            }
            self.sleep(ROUND).await;
        }
    }

    /// Treats the sales above `after`; returns the last of them, or 0 at the end.
    async fn expire_page(&self, after: i64) -> Result<i64, Error> {
        let sales = self.store.sales_after(after, PAGE, self.keys.share()).await?;
        let Some((last, _)) = sales.last().copied() else { return Ok(0) };
        let keys = &self.keys;
        let mut script = scripts::SALE_EXPIRE.key(&keys.exact_counters);
        script.key(&keys.complete_claims).arg(TTL_S);
        for (sale, ended) in sales {
            script.key(keys.stock(sale)).key(keys.claims(sale)).arg(sale).arg(u8::from(ended));
        }
        script.invoke_async::<()>(&mut self.redis.clone()).await?;
        Ok(last)
    }
}
