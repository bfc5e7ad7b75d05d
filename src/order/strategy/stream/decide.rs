//! Decides entries of one sale in the database, then resolves them in Redis, by the first two rules of docs/STREAM.md. An entry
//! is resolved only under the mark under which it was read.
//!
//! Neither an outage nor a bug decides an entry. An entry goes to the dead-letter stream only if it names no order, or if the
//! database refuses the order's own row, tried alone and [`TRIES`] times ([`Error::is_about_the_row`]).

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use super::Member;
use super::lookup::code;
use super::replies::{Entry, Mark};
use crate::error::Error;
use crate::order::batch::{BatchError, Outcomes};
use crate::order::model::{Buyer, NewOrder, is_refusal};
use crate::scripts;

/// How often an entry may fail because of the entry itself.
const TRIES: u32 = 5;

/// Pause between two of these tries.
const PAUSE: Duration = Duration::from_millis(200);

/// An attempt may send a COMMIT for this long after its entries were asked for: well before another consumer has them.
pub(super) const ATTEMPT: Duration = Duration::from_secs(5);

/// Entries that one script resolves.
const RESOLVED_AT_ONCE: usize = 256;

/// What was decided of an entry.
enum Decision {
    Ordered,
    /// The outcome's name in the script, and why the order is refused.
    Refused(&'static str, Error),
    /// It cannot be turned into an order, because of this error.
    Dead(String),
}

/// Entries, and the orders that they ask for.
type Orders = Vec<(Entry, NewOrder)>;

/// An entry whose order is to be refused.
struct ToRefuse {
    entry: Entry,
    order: NewOrder,
    why: Why,
}

/// Why an order is refused.
enum Why {
    Refused(Error),
    /// The database does not take its row, because of this error.
    NoRow(String),
}

impl ToRefuse {
    fn new(entry: Entry, order: NewOrder, error: Error) -> Self {
        ToRefuse {
            entry,
            order,
            why: Why::Refused(error),
        }
    }

    /// The decision; `row` says whose row is now under the order's id. `None`: nothing is decided, as something other than the id
    /// kept the refusal out.
    fn decision(&self, row: Option<Buyer>) -> Option<Decision> {
        if row == Some(self.order.buyer) {
            return Some(Decision::Ordered);
        }
        let error = match &self.why {
            Why::NoRow(detail) => return Some(Decision::Dead(detail.clone())),
            Why::Refused(error) => error.clone(),
        };
        let Some(buyer) = row else {
            tracing::error!(
                order_id = self.order.id,
                "the refusal of an order is no row: is there a foreign key on voucher_id?"
            );
            return None;
        };
        if matches!(error, Error::SoldOut) {
            return Some(Decision::Refused("sold out", error));
        }
        let is_of_user = buyer.user_id == self.order.buyer.user_id;
        if is_of_user && is_refusal(self.order.id, buyer.voucher_id) {
            return Some(Decision::Refused("refused", error));
        }
        tracing::error!(order_id = self.order.id, "an id is another buyer's");
        Some(Decision::Refused("refused", Error::OrderFailed))
    }
}

/// How an attempt ended.
#[derive(Default)]
pub(super) struct Attempt {
    /// Entries that are decided, and not resolved yet.
    decided: Vec<(Entry, Decision)>,
    /// Entries to give back.
    pub undone: Vec<Entry>,
    /// Why they are not decided, if it was an error.
    pub error: Option<Error>,
}

impl Attempt {
    /// Nothing of these is decided.
    pub fn failed(entries: Vec<Entry>, error: Error) -> Attempt {
        Attempt {
            undone: entries,
            error: Some(error),
            ..Attempt::default()
        }
    }

    fn leave_all(&mut self, entries: impl IntoIterator<Item = Entry>, error: Option<&Error>) {
        for entry in entries {
            self.leave(entry, error.cloned());
        }
    }

    fn leave(&mut self, entry: Entry, error: Option<Error>) {
        self.undone.push(entry);
        if error.is_some() {
            self.error = error;
        }
    }
}

impl Member {
    /// Decides and resolves what it can of a sale's entries, which were asked for at `begun`, under this mark.
    pub(super) async fn decide(&self, entries: Vec<Entry>, mark: &Mark, begun: Instant) -> Attempt {
        let mut attempt = Attempt::default();
        let mut orders = Orders::with_capacity(entries.len());
        let mut ids = HashSet::with_capacity(entries.len());
        for entry in entries {
            match entry.order() {
                None => {
                    attempt
                        .decided
                        .push((entry, Decision::Dead("it names no order".to_owned())));
                }
                // A second entry of one order is looked at once the first is resolved.
                Some(order) if !ids.insert(order.id) => attempt.leave(entry, None),
                Some(order) => orders.push((entry, order)),
            }
        }
        if !orders.is_empty() {
            self.commit(orders, begun + ATTEMPT, &mut attempt).await;
        }
        self.resolve_all(mark, &mut attempt).await;
        attempt
    }

    async fn commit(&self, orders: Orders, deadline: Instant, attempt: &mut Attempt) {
        let new: Vec<NewOrder> = orders.iter().map(|(_, order)| *order).collect();
        let outcomes = match self.try_commit(&new, deadline).await {
            Ok(outcomes) => outcomes,
            Err(BatchError::Order(error)) if orders.len() > 1 => {
                let voucher_id = orders[0].1.buyer.voucher_id;
                tracing::warn!(voucher_id, orders = orders.len(), %error, "a batch is split");
                for order in orders {
                    Box::pin(self.commit(vec![order], deadline, attempt)).await;
                }
                return;
            }
            Err(
                BatchError::All(error) | BatchError::Sales(_, error) | BatchError::Order(error),
            ) => new.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut refused = Vec::new();
        for ((entry, order), outcome) in orders.into_iter().zip(outcomes) {
            match outcome {
                Ok(_) => attempt.decided.push((entry, Decision::Ordered)),
                Err(
                    error @ (Error::SoldOut | Error::AlreadyOrdered(_) | Error::VoucherNotFound),
                ) => refused.push(ToRefuse::new(entry, order, error)),
                // The id is another buyer's, or its refusal is there already.
                Err(Error::DuplicateId) => {
                    refused.push(ToRefuse::new(entry, order, Error::OrderFailed));
                }
                Err(error) if error.is_about_the_row() => {
                    let detail = error.detail();
                    tracing::error!(entry = entry.id, detail, "an entry cannot be committed");
                    let why = Why::NoRow(detail);
                    refused.push(ToRefuse { entry, order, why });
                }
                Err(error) => {
                    if !is_state(&error) {
                        let detail = error.detail();
                        tracing::error!(detail, "an entry meets a bug; it is tried again");
                    }
                    attempt.leave(entry, Some(error));
                }
            }
        }
        self.refuse(refused, attempt).await;
    }

    /// Commits; an order that is alone is tried again where the database refuses its row.
    async fn try_commit(
        &self,
        orders: &[NewOrder],
        deadline: Instant,
    ) -> Result<Outcomes, BatchError> {
        for _ in 1..TRIES {
            match self.commit_once(orders, deadline).await {
                Err(BatchError::Order(error)) if orders.len() == 1 && error.is_about_the_row() => {
                    tokio::time::sleep(PAUSE).await;
                }
                outcomes => return outcomes,
            }
        }
        self.commit_once(orders, deadline).await
    }

    /// Commits. A panic leaves the entries pending, as an error of all does.
    async fn commit_once(
        &self,
        orders: &[NewOrder],
        deadline: Instant,
    ) -> Result<Outcomes, BatchError> {
        let committing = AssertUnwindSafe(self.committer.commit(orders, deadline));
        committing.catch_unwind().await.unwrap_or_else(|_| {
            let panicked = "a batch of the stream panicked";
            Err(BatchError::All(Error::Internal(panicked.to_owned())))
        })
    }

    /// Writes refusals. An order that is a row by now is not refused.
    async fn refuse(&self, refused: Vec<ToRefuse>, attempt: &mut Attempt) {
        if refused.is_empty() {
            return;
        }
        let orders: Vec<NewOrder> = refused.iter().map(|one| one.order).collect();
        let rows = match self.store.refuse(&orders).await {
            Ok(rows) => rows,
            Err(error) if error.is_about_the_row() && refused.len() > 1 => {
                for one in refused {
                    Box::pin(self.refuse(vec![one], attempt)).await;
                }
                return;
            }
            Err(error) => {
                let no_row = error.is_about_the_row();
                for ToRefuse { entry, why, .. } in refused {
                    match why {
                        // Neither the order nor its refusal can be a row. Where only the refusal cannot, nothing is decided.
                        Why::NoRow(_) if no_row => {
                            let decision = Decision::Dead(error.detail());
                            attempt.decided.push((entry, decision));
                        }
                        _ => attempt.leave(entry, Some(error.clone())),
                    }
                }
                return;
            }
        };
        for one in refused {
            let row = rows.get(&one.order.id).map(|row| row.buyer);
            match one.decision(row) {
                Some(decision) => attempt.decided.push((one.entry, decision)),
                None => {
                    let error = Error::Internal("a refusal is no row".to_owned());
                    attempt.leave(one.entry, Some(error));
                }
            }
        }
    }

    /// Refuses entries that a Java consumer dropped, and resolves those that have an order.
    pub(super) async fn refuse_dropped(&self, entries: Vec<Entry>, mark: &Mark) {
        let mut attempt = Attempt::default();
        let mut refused = Vec::new();
        for entry in entries {
            match entry.order() {
                None => {
                    attempt
                        .decided
                        .push((entry, Decision::Dead("it names no order".to_owned())));
                }
                Some(order) => {
                    // Why that consumer dropped it, as far as it can be seen.
                    let why = match self.store.buyer_status(order.buyer).await {
                        Ok(Some(status)) => status.require_chance().err(),
                        Ok(None) => Some(Error::VoucherNotFound),
                        Err(error) => {
                            attempt.leave(entry, Some(error));
                            continue;
                        }
                    };
                    let why = why.unwrap_or(Error::OrderFailed);
                    refused.push(ToRefuse::new(entry, order, why));
                }
            }
        }
        self.refuse(refused, &mut attempt).await;
        let dropped = attempt
            .decided
            .iter()
            .filter(|decided| !is_order(decided))
            .count();
        self.resolve_all(mark, &mut attempt).await;
        self.stats
            .dropped_elsewhere
            .fetch_add(dropped as u64, Relaxed);
        if let Some(error) = attempt.error {
            tracing::debug!(%error, "entries that were dropped are not decided; trying again");
        }
    }

    /// Resolves decided entries. Where that fails, they are delivered again and found decided.
    async fn resolve_all(&self, mark: &Mark, attempt: &mut Attempt) {
        while !attempt.decided.is_empty() {
            let count = attempt.decided.len().min(RESOLVED_AT_ONCE);
            let decided: Vec<_> = attempt.decided.drain(..count).collect();
            let resolved = self.resolve(mark, &decided).await;
            if !matches!(resolved, Ok(true)) {
                // Under a new mark the sale may have been counted before the commit.
                for order in decided.iter().filter_map(|(entry, _)| entry.order()) {
                    self.recounts.ask(order.buyer.voucher_id, None);
                }
                let entries = decided.into_iter().map(|(entry, _)| entry);
                attempt.leave_all(entries, resolved.as_ref().err());
            }
        }
    }

    /// Resolves entries; says whether the mark is still this one.
    async fn resolve(&self, mark: &Mark, decided: &[(Entry, Decision)]) -> Result<bool, Error> {
        let keys = &self.keys;
        let mut script = scripts::STREAM_RESOLVE.key(&*keys.stream);
        script.key(&*keys.pending).key(&*keys.dead).arg(&mark.text);
        let ordered = decided.iter().filter(|decided| is_order(decided)).count();
        script.arg(ordered);
        for (entry, _) in decided.iter().filter(|decided| is_order(decided)) {
            script.arg(&entry.id).arg(&entry.user).arg(entry.name());
        }
        let mut refused = 0;
        let mut dead = 0;
        for (entry, decision) in decided {
            let (outcome, code, has_order, detail) = match decision {
                Decision::Ordered => continue,
                Decision::Refused(outcome, error) => {
                    let has_order = matches!(error, Error::AlreadyOrdered(_));
                    refused += 1;
                    (*outcome, code(error), has_order, "")
                }
                Decision::Dead(detail) => {
                    dead += 1;
                    let outcome = if entry.order().is_some() {
                        "refused"
                    } else {
                        "dead"
                    };
                    (outcome, code(&Error::OrderFailed), false, detail.as_str())
                }
            };
            // For an entry that names no sale, the script touches none of these keys.
            let voucher = entry.voucher.parse().unwrap_or(0);
            script
                .key(keys.stock(voucher))
                .key(keys.claims(voucher))
                .key(keys.open(voucher));
            script.key(keys.refused(&entry.order));
            script
                .arg(&entry.id)
                .arg(&entry.user)
                .arg(&entry.voucher)
                .arg(&entry.order);
            script
                .arg(outcome)
                .arg(code)
                .arg(u8::from(has_order))
                .arg(detail);
        }
        let done: i64 = script.invoke_async(&mut self.redis.clone()).await?;
        if done < 0 {
            return Ok(false);
        }
        self.stats.ordered.fetch_add(ordered as u64, Relaxed);
        self.stats.refused.fetch_add(refused, Relaxed);
        self.stats.dead_lettered.fetch_add(dead, Relaxed);
        Ok(true)
    }
}

fn is_order((_, decision): &(Entry, Decision)) -> bool {
    matches!(decision, Decision::Ordered)
}

/// Whether an error comes from the state of the database, and says nothing about the entry.
fn is_state(error: &Error) -> bool {
    matches!(
        error,
        Error::Unavailable(_) | Error::Conflict | Error::OutcomeUnknown(_)
    )
}
