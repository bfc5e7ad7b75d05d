//! Expiry: cancels orders that were not paid in time. One task per process, on every node: which
//! of them reaches an order first does not matter, because a cancellation changes only what is still
//! unpaid ([`super::store::lifetime`]). The age is judged by the database's clock and by this node's, both of which must
//! agree, so neither a node whose clock is wrong nor a step of the database's clock cancels anything early.
//!
//! The same task empties the outbox of returned stock where no counter waits for it.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{MissedTickBehavior, interval};

use super::lifetime::Lifetime;
use crate::error::Error;

/// How often the tables are searched: two short reads of an index. An order is cancelled late by at most this, and the
/// second by which its creation time was rounded.
const TICK: Duration = Duration::from_secs(1);

/// Orders cancelled in one transaction at most: it holds their rows, and the sale's, until it commits.
const BATCH: u32 = 500;

/// Cancels orders older than `unpaid_seconds`, none where that is 0, at every tick; what failed is tried again at the next
/// one. Never ends; dropping it between any two steps is safe, as a crash is.
pub async fn run(lifetime: Lifetime, unpaid_seconds: u32) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        tick.tick().await;
        let outcome = AssertUnwindSafe(run_once(&lifetime, unpaid_seconds))
            .catch_unwind()
            .await;
        let outcome = outcome
            .unwrap_or_else(|_| Err(Error::Internal("cancelling unpaid orders panicked".into())));
        match outcome {
            Ok(()) => failing = false,
            // A deadlock with a purchase, or another node at the same orders: the next tick will do.
            Err(Error::Conflict) => tracing::debug!("orders to cancel are being changed by others"),
            Err(error) if !failing => {
                failing = true;
                say_that_it_fails(&error, unpaid_seconds);
            }
            Err(_) => {}
        }
    }
}

/// Once for a row of failures. A server that is away is no bug, and nothing is lost by it.
fn say_that_it_fails(error: &Error, unpaid_seconds: u32) {
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

async fn run_once(lifetime: &Lifetime, unpaid_seconds: u32) -> Result<(), Error> {
    while unpaid_seconds > 0 && cancel_batch(lifetime, unpaid_seconds).await? {}
    lifetime.store.delete_idle_returns().await?;
    Ok(())
}

/// Cancels the oldest; says whether there may be more.
async fn cancel_batch(lifetime: &Lifetime, unpaid_seconds: u32) -> Result<bool, Error> {
    let mut due = lifetime
        .store
        .unpaid_since(unpaid_seconds.into(), BATCH)
        .await?;
    let full = due.len() == BATCH as usize;
    due.sort_unstable_by_key(|order| (order.voucher_id, order.order_id));
    let mut outcome = Ok(full);
    for orders in due.chunk_by(|a, b| a.voucher_id == b.voucher_id) {
        let voucher_id = orders[0].voucher_id;
        let ids: Vec<i64> = orders.iter().map(|order| order.order_id).collect();
        match lifetime.cancel_all(voucher_id, &ids).await {
            Ok(0) => {}
            Ok(cancelled) => {
                tracing::info!(
                    voucher_id,
                    cancelled,
                    "unpaid orders cancelled, their stock returned"
                );
            }
            // The other sales do not wait for this one.
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}
