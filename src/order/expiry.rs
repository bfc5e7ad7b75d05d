//! Expiry: cancels orders that were not paid in time. One task per process, on every node: which
//! of them reaches an order first does not matter, because a cancellation changes only what is still
//! unpaid ([`super::store::lifetime`]). The age is judged by the database's clock and by this node's, both of which must
//! agree, so neither a node whose clock is wrong nor a step of the database's clock cancels anything early.
//!
//! A sale whose row is locked is left out of the search until the others are done.
//!
//! The same task empties the outbox of returned stock for sales without a counter that waits for it.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::{MissedTickBehavior, interval};

use super::lifetime::Lifetime;
use super::store::lifetime::{Among, OrderKey};
use crate::error::Error;

/// How often the tables are searched: two short reads of an index. An order is cancelled late by at most this, and the
/// second by which its creation time was rounded.
const TICK: Duration = Duration::from_secs(1);

/// Orders cancelled in one transaction at most: it holds their rows, and the sale's, until it commits.
const BATCH: u32 = 500;

/// Stuck sales that are tried again at one tick, at the same time, each on its own connection.
const RETRIED: usize = 2;

/// Cancels orders older than `unpaid_seconds` at every tick, or none if that is 0; what failed is tried again at the next
/// tick. Never ends; dropping it between any two steps is safe, as a crash is.
pub async fn run(lifetime: Lifetime, unpaid_seconds: u32) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut expiry = Expiry {
        lifetime,
        unpaid_seconds,
        stuck: VecDeque::new(),
    };
    let mut failing = false;
    loop {
        tick.tick().await;
        let outcome = AssertUnwindSafe(expiry.run_once()).catch_unwind().await;
        let outcome = outcome
            .unwrap_or_else(|_| Err(Error::Internal("cancelling unpaid orders panicked".into())));
        match outcome {
            Ok(()) => failing = false,
            // A deadlock with a purchase, or another node at the same orders: the next tick will do.
            Err(Error::Conflict) => tracing::debug!("orders to cancel are being changed by others"),
            Err(error) if !failing => {
                failing = true;
                log_failure(&error, unpaid_seconds);
            }
            Err(_) => {}
        }
    }
}

/// Logs the first of several failures in a row. A server that is away is only a warning: nothing is lost by it.
fn log_failure(error: &Error, unpaid_seconds: u32) {
    let detail = error.detail();
    if unpaid_seconds == 0 {
        tracing::warn!(
            detail,
            "the outbox of returned stock is not emptied; trying again"
        );
    } else if let Error::Unavailable(_) = error {
        tracing::warn!(detail, "unpaid orders are not cancelled; trying again");
    } else {
        tracing::error!(detail, "unpaid orders are not cancelled; trying again");
    }
}

struct Expiry {
    lifetime: Lifetime,
    unpaid_seconds: u32,
    /// Sales of which no order could be cancelled at the last try; those that were tried longest ago come first.
    stuck: VecDeque<i64>,
}

impl Expiry {
    /// The outbox is emptied whatever becomes of the orders.
    async fn run_once(&mut self) -> Result<(), Error> {
        let cancelled = self.cancel_due().await;
        let emptied = self.lifetime.store.delete_idle_returns().await;
        cancelled.and(emptied)
    }

    /// Sales that are stuck come after the others, a few at a tick: each may wait for a lock.
    async fn cancel_due(&mut self) -> Result<(), Error> {
        if self.unpaid_seconds == 0 {
            return Ok(());
        }
        let stuck_before = self.stuck.len();
        let mut outcome = self.cancel_others().await;
        let retried: Vec<i64> = self.stuck.drain(..stuck_before.min(RETRIED)).collect();
        let retries = retried.iter().map(|sale| self.cancel_of(*sale));
        for (sale, retry) in retried.iter().zip(join_all(retries).await) {
            if let Err(error) = retry {
                self.stuck.push_back(*sale);
                outcome = Err(error);
            }
        }
        outcome
    }

    /// Cancels expired orders of all sales that are not stuck, the oldest first, until none is left.
    async fn cancel_others(&mut self) -> Result<(), Error> {
        let mut outcome = Ok(());
        loop {
            let mut expired = self.find_expired(Among::AllBut(&self.stuck)).await?;
            let is_last = expired.len() < BATCH as usize;
            expired.sort_unstable_by_key(|order| (order.voucher_id, order.order_id));
            for orders in expired.chunk_by(|a, b| a.voucher_id == b.voucher_id) {
                match self.cancel(orders).await {
                    Ok(()) => {}
                    // About the server, so the other sales would fail as well.
                    Err(error @ (Error::Unavailable(_) | Error::OutcomeUnknown(_))) => {
                        return Err(error);
                    }
                    Err(error) => {
                        self.stuck.push_back(orders[0].voucher_id);
                        outcome = Err(error);
                    }
                }
            }
            if is_last {
                return outcome;
            }
        }
    }

    /// Cancels the expired orders of one sale, until none is left.
    async fn cancel_of(&self, voucher_id: i64) -> Result<(), Error> {
        loop {
            let expired = self.find_expired(Among::Only(voucher_id)).await?;
            self.cancel(&expired).await?;
            if expired.len() < BATCH as usize {
                return Ok(());
            }
        }
    }

    async fn find_expired(&self, among: Among<'_>) -> Result<Vec<OrderKey>, Error> {
        let store = &self.lifetime.store;
        store.unpaid_since(self.unpaid_seconds, BATCH, among).await
    }

    /// Cancels orders of one sale.
    async fn cancel(&self, orders: &[OrderKey]) -> Result<(), Error> {
        let Some(OrderKey { voucher_id, .. }) = orders.first() else {
            return Ok(());
        };
        let ids: Vec<i64> = orders.iter().map(|order| order.order_id).collect();
        let cancelled = self.lifetime.cancel_all(*voucher_id, &ids).await?;
        if cancelled > 0 {
            tracing::info!(
                voucher_id,
                cancelled,
                "unpaid orders cancelled, their stock returned"
            );
        }
        Ok(())
    }
}
