//! Upkeep of the open sales, once a second and whether anybody buys or not: a Java node's script needs the stock counter of
//! every one of them. Rebuilds counters of sales on the stream that are missing or not exact, sets missing ones of other
//! sales, and records the sales that a Java node published as what they are.

use std::sync::Arc;
use std::time::Duration;

use ladder::Strategy;

use super::node::StreamNode;
use crate::error::Error;
use crate::order::store::rebuild::OpenSale;

/// Pause between two rounds.
const ROUND: Duration = Duration::from_secs(1);

/// Sales in one command.
const PAGE: usize = 500;

impl StreamNode {
    /// Makes round after round until the process stops.
    pub(super) async fn keep_up_sales(self: Arc<Self>) {
        let mut logged = false;
        while !self.is_stopped() {
            match self.keep_up_sales_once().await {
                Ok(()) => logged = false,
                Err(error) if !logged => {
                    logged = true;
                    tracing::warn!(%error, "stock counters are not kept up; trying again");
                }
                Err(_) => {}
            }
            self.sleep(ROUND).await;
        }
    }

    async fn keep_up_sales_once(self: &Arc<Self>) -> Result<(), Error> {
        let sales = self.store.open_sales(self.keys.share()).await?;
        for sales in sales.chunks(PAGE) {
            let mut state = redis::pipe();
            for sale in sales {
                let id = sale.voucher_id;
                state.exists(self.keys.stock(id)).sismember(&self.keys.exact_counters, id);
            }
            let state: Vec<bool> = state.query_async(&mut self.redis.clone()).await?;
            for (sale, state) in sales.iter().zip(state.chunks(2)) {
                self.keep_up(sale, state[0], state[1]).await?;
            }
        }
        Ok(())
    }

    async fn keep_up(
        self: &Arc<Self>,
        sale: &OpenSale,
        has_counter: bool,
        is_exact: bool,
    ) -> Result<(), Error> {
        let voucher_id = sale.voucher_id;
        if sale.issued.is_none() {
            // Without a counter it is a sale of a node that knows of none.
            if has_counter && self.store.adopt_sale(voucher_id).await? {
                tracing::info!(
                    voucher_id,
                    "a sale that a Java node published is sold on the stream"
                );
                drop(self.start_rebuild(voucher_id));
            }
        } else if sale.strategy == Strategy::Stream.name() {
            if !(has_counter && is_exact) {
                // A task of its own: with millions of buyers it takes a while.
                drop(self.start_rebuild(voucher_id));
            }
        } else if !has_counter {
            let mut set = redis::cmd("SET");
            set.arg(self.keys.stock(voucher_id)).arg(sale.stock).arg("NX");
            set.query_async::<()>(&mut self.redis.clone()).await?;
        }
        Ok(())
    }
}
