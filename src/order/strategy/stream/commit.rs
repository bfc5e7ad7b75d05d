//! Turns entries into orders: entries of one sale are committed together ([`crate::order::batch`]) and acknowledged
//! after the commit. Three rules:
//!
//! - an entry that may have been delivered before is looked up first: its order may be committed;
//! - what the database refuses is undone in Redis by the same script that acknowledges it;
//! - an outage acknowledges nothing, and neither does a bug. Only an entry whose own row the database refuses when it is
//!   tried alone, [`TRIES`] times, goes to the dead-letter stream ([`Error::is_about_the_row`]).

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::{FutureExt, StreamExt, stream};
use redis::AsyncCommands;

use super::entry::Entry;
use super::names::{DEAD, FAILURES, GROUP, STATUS_TTL_S, STREAM};
use super::node::StreamNode;
use super::order_status::code;
use crate::error::Error;
use crate::order::model::NewOrder;
use crate::order::store::batch::BatchError;
use crate::scripts;

/// How often an entry may fail because of the entry itself.
const TRIES: u32 = 5;

/// Dead letters that are kept, about.
const DEAD_LETTERS: u32 = 10_000;

/// Sales whose batches are committed at once.
const SALES_AT_ONCE: usize = 4;

/// Entries that one script acknowledges.
const ACKNOWLEDGED_AT_ONCE: usize = 64;

/// The final result of an entry, with which it is acknowledged.
#[derive(Debug)]
enum Resolution {
    /// The order is committed.
    Ordered,
    /// Refused, in the words of the script, with this code; the user may try again.
    Refused(&'static str, String),
    /// It cannot be turned into an order: dead-lettered with this error.
    DeadLetter(String),
}

/// What a try to commit came to, for each order.
enum Attempt {
    Resolved(Resolution),
    /// It failed because of the entry itself.
    Failed(Error),
    /// Nothing is known, or nothing could be done: to be retried.
    Retry,
}

type Attempts = Vec<(NewOrder, Attempt)>;

impl StreamNode {
    /// Commits and acknowledges what it can; returns how many entries are left. `redelivered`: these may have been
    /// delivered before. On an error, Redis or the database is away.
    pub(super) async fn commit_entries(
        &self,
        entries: Vec<Entry>,
        redelivered: bool,
    ) -> Result<usize, Error> {
        let mut resolved: Vec<(&Entry, Resolution)> = Vec::with_capacity(entries.len());
        let mut sales: BTreeMap<i64, Vec<NewOrder>> = BTreeMap::new();
        // Two entries may name one order: it was added again after a loss.
        let mut by_order: HashMap<i64, Vec<&Entry>> = HashMap::new();
        for entry in &entries {
            match entry.order() {
                Some(order) => {
                    let same = by_order.entry(order.id).or_default();
                    if same.is_empty() {
                        sales.entry(order.buyer.voucher_id).or_default().push(order);
                    }
                    same.push(entry);
                }
                None => {
                    resolved.push((entry, Resolution::DeadLetter("it names no order".to_owned())))
                }
            }
        }
        let committing =
            sales.into_iter().map(|(sale, orders)| self.commit_sale(sale, orders, redelivered));
        let attempts: Vec<Attempts> =
            stream::iter(committing).buffer_unordered(SALES_AT_ONCE).collect().await;
        let mut retries = 0;
        for (order, attempt) in attempts.into_iter().flatten() {
            // Only the first of several entries stands for the order; the others are resolved when they are read again.
            let Some(&first) = by_order.get(&order.id).and_then(|same| same.first()) else {
                continue;
            };
            let resolution = match attempt {
                Attempt::Resolved(resolution) => Some(resolution),
                Attempt::Failed(error) => self.count_failure(first, error).await?,
                Attempt::Retry => {
                    retries += 1;
                    None
                }
            };
            resolved.extend(resolution.map(|resolution| (first, resolution)));
        }
        let acknowledged = resolved.len();
        for resolved in resolved.chunks(ACKNOWLEDGED_AT_ONCE) {
            self.acknowledge(resolved).await?;
        }
        if retries > 0 {
            return Err(Error::Unavailable("the database"));
        }
        Ok(entries.len() - acknowledged)
    }

    /// Commits orders of one sale, in the order of their arrival.
    async fn commit_sale(
        &self,
        voucher_id: i64,
        orders: Vec<NewOrder>,
        redelivered: bool,
    ) -> Attempts {
        let mut attempts = Vec::with_capacity(orders.len());
        let new =
            if redelivered { self.resolve_known(orders, &mut attempts).await } else { orders };
        if new.is_empty() {
            return attempts;
        }
        match self.commit_batch(voucher_id, &new).await {
            Ok(outcomes) => attempts.extend(new.into_iter().zip(outcomes)),
            Err(error) if is_outage(&error) => attempts.extend(retry(new)),
            Err(error) if new.len() == 1 => {
                attempts.extend(new.into_iter().map(|order| (order, failed(error.clone()))));
            }
            Err(error) => {
                tracing::warn!(voucher_id, orders = new.len(), %error, "a batch is split");
                let new =
                    if redelivered { new } else { self.resolve_known(new, &mut attempts).await };
                for order in new {
                    let attempt = match self.commit_batch(voucher_id, &[order]).await {
                        Ok(mut attempts) => attempts.pop().unwrap_or(Attempt::Retry),
                        Err(error) => failed(error),
                    };
                    attempts.push((order, attempt));
                }
            }
        }
        attempts
    }

    /// Resolves those orders that are in the database; returns the others.
    async fn resolve_known(&self, orders: Vec<NewOrder>, attempts: &mut Attempts) -> Vec<NewOrder> {
        let buyers = match self.store.buyers_of(&orders).await {
            Ok(buyers) => buyers,
            Err(error) => {
                tracing::warn!(%error, "entries cannot be looked up");
                attempts.extend(retry(orders));
                return Vec::new();
            }
        };
        let mut new = Vec::with_capacity(orders.len());
        for order in orders {
            match buyers.get(&order.id) {
                None => new.push(order),
                Some(buyer) if *buyer == order.buyer => {
                    attempts.push((order, Attempt::Resolved(Resolution::Ordered)));
                }
                Some(_) => {
                    tracing::error!(order_id = order.id, "an entry's id is another buyer's order");
                    let refused = Resolution::Refused("refused", code(&Error::OrderFailed));
                    attempts.push((order, Attempt::Resolved(refused)));
                }
            }
        }
        new
    }

    /// Commits one transaction. An error concerns all, and nothing was done.
    async fn commit_batch(
        &self,
        voucher_id: i64,
        orders: &[NewOrder],
    ) -> Result<Vec<Attempt>, Error> {
        let commit = AssertUnwindSafe(self.committer.commit(voucher_id, orders)).catch_unwind();
        let outcomes = match commit.await {
            Ok(Ok(outcomes)) => outcomes,
            Ok(Err(BatchError::All(Error::VoucherNotFound))) => {
                orders.iter().map(|_| Err(Error::VoucherNotFound)).collect()
            }
            Ok(Err(BatchError::All(error) | BatchError::Insert(error))) => return Err(error),
            Err(_) => return Err(Error::Internal("a batch of the stream panicked".to_owned())),
        };
        Ok(orders.iter().zip(outcomes).map(|(order, outcome)| attempt(order, outcome)).collect())
    }

    /// Counts a failure of the entry; after too many it goes to the dead-letter stream.
    async fn count_failure(
        &self,
        entry: &Entry,
        error: Error,
    ) -> Result<Option<Resolution>, Error> {
        let failures: u32 = self.redis.clone().hincr(FAILURES, &entry.id, 1).await?;
        let detail = error.detail();
        tracing::error!(entry = entry.id, failures, error = detail, "an entry cannot be committed");
        Ok((failures >= TRIES).then_some(Resolution::DeadLetter(detail)))
    }

    /// Acknowledges, and undoes in Redis what was refused.
    async fn acknowledge(&self, resolved: &[(&Entry, Resolution)]) -> Result<(), Error> {
        let mut script = scripts::STREAM_ACKNOWLEDGE.key(STREAM);
        script.key(FAILURES).key(DEAD).arg(GROUP).arg(STATUS_TTL_S).arg(DEAD_LETTERS);
        let (mut ordered, mut refused, mut dead_lettered) = (0, 0, 0);
        for (entry, resolution) in resolved {
            let (name, code, count) = match resolution {
                Resolution::Ordered => ("ordered", "", &mut ordered),
                Resolution::Refused(name, code) => (*name, code.as_str(), &mut refused),
                Resolution::DeadLetter(error) => {
                    ("dead letter", error.as_str(), &mut dead_lettered)
                }
            };
            *count += 1;
            script.arg(&entry.id).arg(entry.field("id")).arg(entry.field("userId"));
            script.arg(entry.field("voucherId")).arg(name).arg(code);
        }
        script.invoke_async::<i64>(&mut self.redis.clone()).await?;
        self.stats.ordered.fetch_add(ordered, Relaxed);
        self.stats.refused.fetch_add(refused, Relaxed);
        self.stats.dead_lettered.fetch_add(dead_lettered, Relaxed);
        Ok(())
    }
}

fn retry(orders: Vec<NewOrder>) -> impl Iterator<Item = (NewOrder, Attempt)> {
    orders.into_iter().map(|order| (order, Attempt::Retry))
}

/// Whether a failure says nothing about the entry.
fn is_outage(error: &Error) -> bool {
    matches!(error, Error::Unavailable(_) | Error::Conflict | Error::OutcomeUnknown(_))
}

/// What the failure of an order that was tried alone means for its entry.
fn failed(error: Error) -> Attempt {
    if error.is_about_the_row() {
        return Attempt::Failed(error);
    }
    if !is_outage(&error) {
        tracing::error!(error = error.detail(), "an entry meets a bug; it is tried again");
    }
    Attempt::Retry
}

/// What the outcome of a purchase means for its entry.
fn attempt(order: &NewOrder, outcome: Result<i64, Error>) -> Attempt {
    Attempt::Resolved(match outcome {
        Ok(_) => Resolution::Ordered,
        // It was delivered before, and committed then.
        Err(Error::AlreadyOrdered(Some(id))) if id == order.id => Resolution::Ordered,
        Err(error @ Error::AlreadyOrdered(_)) => {
            Resolution::Refused("already ordered", code(&error))
        }
        Err(error @ Error::SoldOut) => Resolution::Refused("sold out", code(&error)),
        Err(error @ Error::VoucherNotFound) => Resolution::Refused("refused", code(&error)),
        Err(error) => return failed(error),
    })
}
