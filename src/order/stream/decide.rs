//! From entries to orders: entries of one sale are committed together, by the code that group commit uses,
//! and acknowledged after the commit. Three rules:
//!
//! - an entry that may have been delivered before is looked up first: its order may be committed;
//! - what the database refuses is undone in Redis by the same script that acknowledges it;
//! - an outage decides nothing. Only an entry that fails alone, by its own fault, [`TRIES`] times, is parked
//!   among the dead letters.

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;

use futures_util::{FutureExt, StreamExt, stream};
use redis::AsyncCommands;

use super::entry::Entry;
use super::place::code;
use super::{DEAD, FAILURES, GROUP, Inner, REMEMBERED_S, STREAM, scripts};
use crate::error::Error;
use crate::order::model::NewOrder;
use crate::order::store::batch::NotBegun;

/// How often an entry may fail by its own fault.
const TRIES: u32 = 5;

/// Dead letters that are kept, about.
const DEAD_LETTERS: u32 = 10_000;

/// Sales whose batches are committed at once.
const SALES_AT_ONCE: usize = 4;

/// Entries that one script settles.
const SETTLED_AT_ONCE: usize = 64;

/// What became of an entry.
#[derive(Debug)]
enum Verdict {
    Ordered,
    /// The database has nothing left.
    Full,
    /// The user has this order already.
    Refused(Option<i64>),
    /// The user may try again.
    Freed(&'static str),
    /// It cannot be made into an order.
    Parked(String),
}

/// What a try to commit came to, for each order.
enum Outcome {
    Verdict(Verdict),
    /// It failed by its own fault.
    Failed(Error),
    /// Nothing is known, or nothing could be done: later.
    Later,
}

type Outcomes = Vec<(NewOrder, Outcome)>;

impl Inner {
    /// Decides what can be decided; returns how many entries are not. An error means that a server is
    /// away. `again`: these may have been delivered before.
    pub(super) async fn decide(&self, entries: Vec<Entry>, again: bool) -> Result<usize, Error> {
        let mut verdicts: Vec<(&Entry, Verdict)> = Vec::with_capacity(entries.len());
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
                None => verdicts.push((entry, Verdict::Parked("it names no order".to_owned()))),
            }
        }
        let committing = sales.into_iter().map(|(sale, orders)| self.commit(sale, orders, again));
        let outcomes: Vec<Outcomes> =
            stream::iter(committing).buffer_unordered(SALES_AT_ONCE).collect().await;
        let mut later = 0;
        for (order, outcome) in outcomes.into_iter().flatten() {
            let mut same = by_order.remove(&order.id).unwrap_or_default();
            let verdict = match outcome {
                Outcome::Verdict(verdict) => Some(verdict),
                Outcome::Failed(fault) => self.failed(&mut same, fault).await?,
                Outcome::Later => {
                    later += 1;
                    None
                }
            };
            // Only the first of several stands for the order; the others fall to a later look.
            if let (Some(verdict), Some(first)) = (verdict, same.first()) {
                verdicts.push((first, verdict));
            }
        }
        let decided = verdicts.len();
        for verdicts in verdicts.chunks(SETTLED_AT_ONCE) {
            self.settle(verdicts).await?;
        }
        if later > 0 {
            return Err(Error::Unavailable("the database"));
        }
        Ok(entries.len() - decided)
    }

    /// Commits orders of one sale, in the order of their arrival.
    async fn commit(&self, voucher_id: i64, orders: Vec<NewOrder>, again: bool) -> Outcomes {
        let mut outcomes = Vec::with_capacity(orders.len());
        let new = if again { self.sort_out(orders, &mut outcomes).await } else { orders };
        if new.is_empty() {
            return outcomes;
        }
        match self.try_commit(voucher_id, &new).await {
            Ok(settled) => outcomes.extend(new.into_iter().zip(settled)),
            Err(fault) if is_outage(&fault) => outcomes.extend(later(new)),
            Err(fault) if new.len() == 1 => {
                outcomes
                    .extend(new.into_iter().map(|order| (order, Outcome::Failed(fault.clone()))));
            }
            Err(fault) => {
                tracing::warn!(voucher_id, orders = new.len(), %fault, "a batch is split");
                let new = if again { new } else { self.sort_out(new, &mut outcomes).await };
                for order in new {
                    let outcome = match self.try_commit(voucher_id, &[order]).await {
                        Ok(mut settled) => settled.pop().unwrap_or(Outcome::Later),
                        Err(fault) if is_outage(&fault) => Outcome::Later,
                        Err(fault) => Outcome::Failed(fault),
                    };
                    outcomes.push((order, outcome));
                }
            }
        }
        outcomes
    }

    /// Gives those that are in the database their verdict; returns the others.
    async fn sort_out(&self, orders: Vec<NewOrder>, outcomes: &mut Outcomes) -> Vec<NewOrder> {
        let known = match self.store.known(&orders).await {
            Ok(known) => known,
            Err(fault) => {
                tracing::warn!(%fault, "entries cannot be looked up");
                outcomes.extend(later(orders));
                return Vec::new();
            }
        };
        let mut new = Vec::with_capacity(orders.len());
        for order in orders {
            match known.get(&order.id) {
                None => new.push(order),
                Some(buyer) if *buyer == order.buyer => {
                    outcomes.push((order, Outcome::Verdict(Verdict::Ordered)));
                }
                Some(_) => {
                    tracing::error!(order_id = order.id, "an entry's id is another buyer's order");
                    outcomes.push((order, Outcome::Verdict(Verdict::Freed(code::ORDER_FAILED))));
                }
            }
        }
        new
    }

    /// One transaction; an error concerns all, and means that nothing was done.
    async fn try_commit(
        &self,
        voucher_id: i64,
        orders: &[NewOrder],
    ) -> Result<Vec<Outcome>, Error> {
        let settling = AssertUnwindSafe(self.batches.settle(voucher_id, orders)).catch_unwind();
        let settled = match settling.await {
            Ok(settled) => settled,
            Err(_) => return Err(Error::Internal("a batch of the stream panicked".to_owned())),
        };
        let outcomes = match settled {
            Ok(outcomes) => outcomes,
            Err(NotBegun::All(Error::VoucherNotFound)) => {
                orders.iter().map(|_| Err(Error::VoucherNotFound)).collect()
            }
            Err(NotBegun::All(fault) | NotBegun::Insert(fault)) => return Err(fault),
        };
        Ok(orders.iter().zip(outcomes).map(|(order, outcome)| read(order, outcome)).collect())
    }

    /// Counts a failure; parks the entry after too many.
    async fn failed(&self, same: &mut [&Entry], fault: Error) -> Result<Option<Verdict>, Error> {
        let Some(entry) = same.first() else { return Ok(None) };
        let failures: u32 = self.redis.clone().hincr(FAILURES, &entry.id, 1).await?;
        let detail =
            if let Error::Internal(detail) = &fault { detail.clone() } else { fault.to_string() };
        tracing::error!(entry = entry.id, failures, fault = detail, "an entry cannot be committed");
        Ok((failures >= TRIES).then_some(Verdict::Parked(detail)))
    }

    /// Acknowledges, and undoes in Redis what was refused.
    async fn settle(&self, verdicts: &[(&Entry, Verdict)]) -> Result<(), Error> {
        let mut script = scripts::SETTLE.key(STREAM);
        script.key(FAILURES).key(DEAD).arg(GROUP).arg(REMEMBERED_S).arg(DEAD_LETTERS);
        let (mut ordered, mut refused, mut parked) = (0, 0, 0);
        for (entry, verdict) in verdicts {
            let (name, code) = match verdict {
                Verdict::Ordered => ("ordered", String::new()),
                Verdict::Full => ("full", code::SOLD_OUT.to_owned()),
                Verdict::Refused(Some(id)) => {
                    ("refused", format!("{} {id}", code::ALREADY_ORDERED))
                }
                Verdict::Refused(None) => ("refused", code::ALREADY_ORDERED.to_owned()),
                Verdict::Freed(code) => ("freed", (*code).to_owned()),
                Verdict::Parked(reason) => ("parked", reason.clone()),
            };
            match verdict {
                Verdict::Ordered => ordered += 1,
                Verdict::Parked(_) => parked += 1,
                _ => refused += 1,
            }
            script.arg(&entry.id).arg(entry.field("id")).arg(entry.field("userId"));
            script.arg(entry.field("voucherId")).arg(name).arg(code);
        }
        script.invoke_async::<i64>(&mut self.redis.clone()).await?;
        self.stats.ordered.add(ordered);
        self.stats.refused.add(refused);
        self.stats.parked.add(parked);
        Ok(())
    }
}

fn later(orders: Vec<NewOrder>) -> impl Iterator<Item = (NewOrder, Outcome)> {
    orders.into_iter().map(|order| (order, Outcome::Later))
}

/// Whether a failure says nothing about the entry.
fn is_outage(fault: &Error) -> bool {
    matches!(fault, Error::Unavailable(_) | Error::Conflict | Error::OutcomeUnknown(_))
}

/// What the outcome of a purchase means for its entry.
fn read(order: &NewOrder, outcome: Result<i64, Error>) -> Outcome {
    Outcome::Verdict(match outcome {
        Ok(_) => Verdict::Ordered,
        // It was delivered before, and committed then.
        Err(Error::AlreadyOrdered(Some(id))) if id == order.id => Verdict::Ordered,
        Err(Error::AlreadyOrdered(id)) => Verdict::Refused(id),
        Err(Error::SoldOut) => Verdict::Full,
        Err(Error::VoucherNotFound) => Verdict::Freed(code::VOUCHER_NOT_FOUND),
        Err(fault) if is_outage(&fault) => return Outcome::Later,
        Err(fault) => return Outcome::Failed(fault),
    })
}
