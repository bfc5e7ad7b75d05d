//! Turns entries into orders: entries of one sale are committed together ([`crate::order::batch`]) and acknowledged
//! after the commit. The rules:
//!
//! - an entry that may have been delivered before is looked up first: its order may be committed;
//! - what the database refuses is undone in Redis by the same script that acknowledges it;
//! - nothing is committed once another consumer may have taken the entry over, and nothing refused once it has;
//! - an outage acknowledges nothing, and neither does a bug. Only an entry whose own row the database refuses when it is
//!   tried alone, [`TRIES`] times, goes to the dead-letter stream ([`Error::is_about_the_row`]).

use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::FutureExt;
use redis::AsyncCommands;
use tokio::time::Instant;

use super::entry::{Content, Entry};
use super::entry_id::EntryId;
use super::names::{CONSUMER_PREFIX, GROUP, STATUS_TTL_S};
use super::node::StreamNode;
use super::order_status::code;
use super::sale_queues::{Batch, Outcome};
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};
use crate::order::store::batch::BatchError;
use crate::scripts;

/// How often an entry may fail because of the entry itself.
const TRIES: u32 = 5;

/// Dead letters that are kept, about.
const DEAD_LETTERS: u32 = 10_000;

/// Entries that one script acknowledges.
const ACKNOWLEDGED_AT_ONCE: usize = 256;

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
    /// Commits and acknowledges what it can of a sale's batch.
    pub(super) async fn commit_entries(&self, batch: &Batch) -> Outcome {
        let mut outcome = Outcome::default();
        let mut resolved: Vec<(&Entry, Resolution)> = Vec::with_capacity(batch.entries.len());
        let mut orders: Vec<NewOrder> = Vec::with_capacity(batch.entries.len());
        // Two entries may name one order: it was added again after a loss.
        let mut by_order: HashMap<i64, &Entry> = HashMap::with_capacity(batch.entries.len());
        for entry in &batch.entries {
            let Some(order) = entry.order() else {
                resolved.push((entry, Resolution::DeadLetter("it names no order".to_owned())));
                continue;
            };
            // Only the first of several entries stands for the order; the others are resolved when they are read again.
            match by_order.entry(order.id) {
                Occupied(_) => outcome.read_pending = true,
                Vacant(first) => {
                    first.insert(entry);
                    orders.push(order);
                }
            }
        }
        for (order, attempt) in self.commit_sale(batch, orders).await {
            let Some(&entry) = by_order.get(&order.id) else { continue };
            match attempt {
                Attempt::Resolved(resolution) => resolved.push((entry, resolution)),
                Attempt::Failed(error) => match self.count_failure(entry, error).await {
                    Ok(Some(resolution)) => resolved.push((entry, resolution)),
                    Ok(None) => outcome.read_pending = true,
                    Err(error) => outcome.failed_in_redis(error),
                },
                Attempt::Retry => {
                    outcome.retry.insert(entry.id);
                    outcome.error = Some(Error::Unavailable("the database"));
                }
            }
        }
        resolved.sort_unstable_by_key(|(entry, _)| entry.id);
        for resolved in resolved.chunks(ACKNOWLEDGED_AT_ONCE) {
            // After a lost reply they may be acknowledged, and a refusal told: they are tried again only if they are
            // still pending.
            if let Err(error) = self.acknowledge(batch.voucher_id, resolved).await {
                outcome.failed_in_redis(error);
            }
        }
        outcome
    }

    /// Commits orders of one sale, in the order of their arrival.
    async fn commit_sale(&self, batch: &Batch, orders: Vec<NewOrder>) -> Attempts {
        let Batch { voucher_id, redelivered, .. } = *batch;
        let mut attempts = Vec::with_capacity(orders.len());
        let new =
            if redelivered { self.resolve_known(orders, &mut attempts).await } else { orders };
        if new.is_empty() {
            return attempts;
        }
        match self.commit_batch(batch, &new).await {
            Ok(outcomes) => attempts.extend(new.into_iter().zip(outcomes)),
            Err(error) if is_outage(&error) => attempts.extend(retry(new)),
            // One that was not looked up may be committed: another kind of consumer had it before.
            Err(error) if redelivered && new.len() == 1 => {
                attempts.extend(new.into_iter().map(|order| (order, failed(error.clone()))));
            }
            Err(error) => {
                tracing::warn!(voucher_id, orders = new.len(), %error, "a batch is split");
                let new =
                    if redelivered { new } else { self.resolve_known(new, &mut attempts).await };
                for order in new {
                    let attempt = match self.commit_batch(batch, &[order]).await {
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
        batch: &Batch,
        orders: &[NewOrder],
    ) -> Result<Vec<Attempt>, Error> {
        // Another consumer may have taken them over, and may have refused one.
        if !self.lease.holds(batch.generation) {
            return Err(Error::Unavailable("the consumer's lease"));
        }
        // As long as a conflict may be retried, and for the transaction of the last try.
        let deadline = Instant::now() + 2 * self.limits.timeout;
        let commit = self.committer.commit(batch.voucher_id, orders, deadline);
        let commit = AssertUnwindSafe(commit).catch_unwind();
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
        let failures: u32 =
            self.redis.clone().hincr(&self.keys.failures, entry.id.to_string(), 1).await?;
        let detail = error.detail();
        tracing::error!(entry = %entry.id, failures, error = detail, "an entry cannot be committed");
        Ok((failures >= TRIES).then_some(Resolution::DeadLetter(detail)))
    }

    /// Acknowledges entries of a sale, given in their order, and undoes in Redis what was refused.
    async fn acknowledge(
        &self,
        voucher_id: i64,
        resolved: &[(&Entry, Resolution)],
    ) -> Result<(), Error> {
        let mut script = scripts::STREAM_ACKNOWLEDGE.key(&self.keys.stream);
        script
            .key(&self.keys.failures)
            .key(&self.keys.dead)
            .key(&self.keys.exact_counters)
            .key(&self.keys.held)
            .arg(GROUP)
            .arg(&self.consumer)
            .arg(CONSUMER_PREFIX)
            .arg(STATUS_TTL_S)
            .arg(DEAD_LETTERS);
        self.keys.declare(&mut script, resolved.iter().map(|(entry, _)| entry.buyer()));
        let (ordered, others): (Vec<_>, Vec<_>) =
            resolved.iter().partition(|(_, resolution)| matches!(resolution, Resolution::Ordered));
        let ordered: Vec<EntryId> = ordered.iter().map(|(entry, _)| entry.id).collect();
        let all: Vec<EntryId> = resolved.iter().map(|(entry, _)| entry.id).collect();
        let ended = self.held.ending(&all);
        script.arg(ended.len()).arg(voucher_id).arg(ordered.len()).arg(&ended).arg(&ordered);
        let (mut refused, mut dead_lettered) = (0, 0);
        for (entry, resolution) in others {
            let (name, code, count) = match resolution {
                Resolution::Ordered => continue,
                Resolution::Refused(name, code) => (*name, code.as_str(), &mut refused),
                Resolution::DeadLetter(error) => {
                    ("dead letter", error.as_str(), &mut dead_lettered)
                }
            };
            *count += 1;
            script.arg(entry.id);
            match &entry.content {
                Content::Order(NewOrder { id, buyer: Buyer { user_id, voucher_id }, .. }) => {
                    script.arg(id).arg(user_id).arg(voucher_id)
                }
                Content::Invalid { order, user, voucher } => {
                    script.arg(order).arg(user).arg(voucher)
                }
            };
            script.arg(name).arg(code);
        }
        script.invoke_async::<i64>(&mut self.redis.clone()).await?;
        self.held.acknowledged(&all);
        self.held.forget(&ended);
        self.stats.ordered.fetch_add(ordered.len() as u64, Relaxed);
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
