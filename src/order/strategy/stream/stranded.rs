//! Stranded stock: the database has stock left, the stock counter is empty, and fewer entries of that sale are in flight
//! than would use it up. So the counter is wrong, whatever made it so, and is rebuilt. Judged sale by sale, and by two
//! rounds in a row, because a returned unit is in the database a moment before it is in the counter.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::entry::entries;
use super::node::StreamNode;
use crate::error::Error;

/// Pause between two rounds.
const ROUND: Duration = Duration::from_secs(1);

/// Entries in one command.
const PAGE: usize = 1000;

/// Where more entries wait, they are not counted: the round is left out, and the next one sees a shorter stream.
const MOST_ENTRIES: usize = 20_000;

impl StreamNode {
    /// Makes round after round until the process stops.
    pub(super) async fn find_stranded_stock(self: Arc<Self>) {
        let (mut suspects, mut logged) = (HashSet::new(), false);
        while !self.is_stopped() {
            match self.stranded_sales().await {
                Ok(found) => {
                    logged = false;
                    for sale in found.intersection(&suspects) {
                        if let Err(error) = self.distrust_stock_counter(*sale).await {
                            tracing::warn!(voucher_id = sale, %error, "the stock counter is not rebuilt yet");
                        }
                    }
                    suspects = found;
                }
                Err(error) if !logged => {
                    logged = true;
                    tracing::warn!(%error, "stranded stock is not looked for; trying again");
                }
                Err(_) => {}
            }
            self.sleep(ROUND).await;
        }
    }

    async fn stranded_sales(&self) -> Result<HashSet<i64>, Error> {
        let share = self.keys.share();
        let empty = self.empty_counters(self.store.stock_on_the_stream(share).await?).await?;
        if empty.is_empty() {
            return Ok(HashSet::new());
        }
        // Before the stock is read again: what is committed in between is then in both, and nothing seems stranded.
        let Some(in_flight) = self.in_flight_by_sale().await? else { return Ok(HashSet::new()) };
        let left = self.store.stock_on_the_stream(share).await?;
        let stranded = |(sale, stock): &(i64, i64)| {
            empty.contains(sale) && *stock > in_flight.get(sale).copied().unwrap_or(0)
        };
        let stranded = left.into_iter().filter(stranded).collect();
        self.empty_counters(stranded).await
    }

    /// Those of the sales whose counter is there and empty.
    async fn empty_counters(&self, sales: Vec<(i64, i64)>) -> Result<HashSet<i64>, Error> {
        if sales.is_empty() {
            return Ok(HashSet::new());
        }
        let mut get = redis::cmd("MGET");
        for (sale, _) in &sales {
            get.arg(self.keys.stock(*sale));
        }
        let counters: Vec<Option<i64>> = get.query_async(&mut self.redis.clone()).await?;
        let empty = sales
            .into_iter()
            .zip(counters)
            .filter(|(_, counter)| counter.is_some_and(|at| at <= 0));
        Ok(empty.map(|((sale, _), _)| sale).collect())
    }

    /// How many entries of each sale are in the stream; `None` where there are too many to count.
    async fn in_flight_by_sale(&self) -> Result<Option<HashMap<i64, i64>>, Error> {
        let (mut counts, mut from, mut read) = (HashMap::new(), "-".to_owned(), 0);
        loop {
            let page: Value = redis::cmd("XRANGE")
                .arg(&self.keys.stream)
                .arg(&from)
                .arg("+")
                .arg("COUNT")
                .arg(PAGE)
                .query_async(&mut self.redis.clone())
                .await?;
            let page = entries(&page);
            let Some(last) = page.last() else { return Ok(Some(counts)) };
            from = format!("({}", last.id);
            read += page.len();
            if read > MOST_ENTRIES {
                return Ok(None);
            }
            for order in page.iter().filter_map(|entry| entry.order()) {
                *counts.entry(order.buyer.voucher_id).or_default() += 1;
            }
        }
    }
}
