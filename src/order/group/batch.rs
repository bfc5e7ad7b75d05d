//! One batch, from the queue to everybody's answer. Four rules:
//!
//! - nobody is answered before the commit, and all by what was committed;
//! - who came first is served first, where fewer are left than asked for;
//! - an order that cannot be inserted fails alone: then each order of the batch gets a transaction of
//!   its own, beside the queue, so that the sale goes on;
//! - a commit whose outcome is unknown is resolved first, by looking up one of its orders: the
//!   transaction happened for all or for none.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::{Stats, Waiting};
use crate::error::Error;
use crate::id::Ids;
use crate::order::model::{Buyer, NewOrder};
use crate::order::store::OrderStore;
use crate::order::store::batch::{Begun, NotBegun};

/// How often a batch is tried in all when it meets conflicts.
const ATTEMPTS: u32 = 4;

/// Longest pause before a try, milliseconds; the pause is random, so that rivals part.
const PAUSE_MS: u64 = 20;

/// Transactions at once where each order gets its own.
const ALONE_AT_ONCE: usize = 8;

/// What a batch works with.
#[derive(Clone)]
pub struct Tools {
    pub(super) store: OrderStore,
    pub(super) ids: Arc<Ids>,
    /// Longest time one database step may take.
    pub(super) timeout: Duration,
    pub(super) tasks: TaskTracker,
    pub(super) stats: Arc<Stats>,
}

impl Tools {
    /// For batches that no queue feeds.
    pub fn new(store: OrderStore, ids: Arc<Ids>, timeout: Duration) -> Self {
        let (tasks, stats) = (TaskTracker::new(), Arc::default());
        Tools { store, ids, timeout, tasks, stats }
    }
}

/// One buyer of the batch, with everybody who waits for the answer.
struct Member {
    user_id: i64,
    since: Instant,
    answer: oneshot::Sender<Result<i64, Error>>,
    /// The same buyer's further requests.
    again: Vec<oneshot::Sender<Result<i64, Error>>>,
}

impl Member {
    /// Answers; whoever hung up is not told, which is why a failed send is no failure.
    fn answer(self, outcome: Result<i64, Error>) {
        for again in self.again {
            // The first request made the order: the others come second.
            again.send(outcome.clone().and_then(|id| Err(Error::AlreadyOrdered(Some(id))))).ok();
        }
        self.answer.send(outcome).ok();
    }
}

/// Commits a batch of one sale's purchases, in the order of their arrival, and answers them all.
pub async fn run(tools: Tools, voucher_id: i64, waiting: Vec<Waiting>) {
    let members = admit(waiting, tools.timeout);
    if members.is_empty() {
        return;
    }
    let orders = match tools.orders(voucher_id, &members).await {
        Ok(orders) => orders,
        Err(fault) => {
            return members.into_iter().for_each(|member| member.answer(Err(fault.clone())));
        }
    };
    match tools.settle(voucher_id, &orders).await {
        Ok(outcomes) => {
            members.into_iter().zip(outcomes).for_each(|(member, outcome)| member.answer(outcome));
        }
        Err(NotBegun::All(fault)) => {
            members.into_iter().for_each(|member| member.answer(Err(fault.clone())));
        }
        Err(NotBegun::Insert(fault)) if members.len() == 1 => {
            members.into_iter().for_each(|member| member.answer(Err(fault.clone())));
        }
        Err(NotBegun::Insert(fault)) => {
            tracing::warn!(voucher_id, orders = orders.len(), %fault, "a batch is split");
            tools.stats.split();
            let tasks = tools.tasks.clone();
            tasks.spawn(alone(tools, voucher_id, members, orders));
        }
    }
}

/// Refuses who waited too long or past the end of the sale, and joins requests of the same buyer.
fn admit(waiting: Vec<Waiting>, limit: Duration) -> Vec<Member> {
    let mut members: Vec<Member> = Vec::with_capacity(waiting.len());
    let mut places: HashMap<i64, usize> = HashMap::with_capacity(waiting.len());
    for Waiting { user_id, window, since, answer } in waiting {
        let admitted = if since.elapsed() > limit {
            Err(Error::Unavailable("the database"))
        } else {
            window.require_open()
        };
        if let Err(refusal) = admitted {
            answer.send(Err(refusal)).ok();
        } else if let Some(&place) = places.get(&user_id) {
            members[place].again.push(answer);
        } else {
            places.insert(user_id, members.len());
            members.push(Member { user_id, since, answer, again: Vec::new() });
        }
    }
    members
}

/// Gives each order a transaction of its own, a few at a time.
async fn alone(tools: Tools, voucher_id: i64, members: Vec<Member>, orders: Vec<NewOrder>) {
    let mut queue = members.into_iter().zip(orders);
    let one = |(member, order): (Member, NewOrder)| {
        let tools = &tools;
        async move {
            // By then the caller must have an answer.
            let outcome = if member.since.elapsed() > 3 * tools.timeout {
                Err(Error::Unavailable("the database"))
            } else {
                match tools.settle(voucher_id, &[order]).await {
                    Ok(mut outcomes) => outcomes.pop().unwrap_or(Err(Error::OutcomeUnknown(None))),
                    Err(NotBegun::Insert(fault) | NotBegun::All(fault)) => Err(fault),
                }
            };
            member.answer(outcome);
        }
    };
    let mut running: FuturesUnordered<_> = queue.by_ref().take(ALONE_AT_ONCE).map(one).collect();
    while running.next().await.is_some() {
        running.extend(queue.next().map(one));
    }
}

impl Tools {
    /// An order with a fresh id for each member.
    async fn orders(&self, voucher_id: i64, members: &[Member]) -> Result<Vec<NewOrder>, Error> {
        let mut orders = Vec::with_capacity(members.len());
        for Member { user_id, .. } in members {
            let buyer = Buyer { user_id: *user_id, voucher_id };
            orders.push(NewOrder { id: self.ids.next().await?, buyer, unguarded: false });
        }
        Ok(orders)
    }

    /// Commits these orders; returns each one's outcome. Conflicts that concern all are tried again, so
    /// those of one order alone are too.
    pub(in crate::order) async fn settle(
        &self,
        voucher_id: i64,
        orders: &[NewOrder],
    ) -> Result<Vec<Result<i64, Error>>, NotBegun> {
        // In the same order on every node: then two batches cannot wait for each other's buyers.
        let mut sorted = orders.to_vec();
        sorted.sort_unstable_by_key(|order| order.buyer.user_id);
        let started = Instant::now();
        let mut attempt = 1;
        loop {
            let begun = match self.store.begin_batch(voucher_id, &sorted).await {
                Ok(begun) => self.end(voucher_id, orders, begun).await,
                Err(not_begun) => Err(not_begun),
            };
            let again = attempt < ATTEMPTS && started.elapsed() < self.timeout;
            match begun {
                Err(NotBegun::All(Error::Conflict)) if again => {}
                Err(NotBegun::Insert(Error::Conflict)) if again && orders.len() == 1 => {}
                settled => return settled,
            }
            attempt += 1;
            let pause = rand::random_range(1..=PAUSE_MS);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    /// From the insert to the outcomes. An error means that nothing was done.
    async fn end(
        &self,
        voucher_id: i64,
        orders: &[NewOrder],
        begun: Begun,
    ) -> Result<Vec<Result<i64, Error>>, NotBegun> {
        let Begun { mut ledger, inserted, decremented } = begun;
        if inserted == orders.len() && decremented {
            let committed = self.store.commit(ledger, orders[0].id).await;
            self.stats.committed(&committed, inserted);
            return Ok(orders.iter().map(|order| told(order.id, &committed)).collect());
        }
        let mut kept = ledger.present(orders).await.map_err(NotBegun::All)?;
        if kept.len() != inserted {
            let detail = format!("{inserted} orders were inserted and {} are there", kept.len());
            return Err(NotBegun::All(Error::Internal(detail)));
        }
        let dropped: Vec<i64> = orders
            .iter()
            .filter(|order| !kept.contains(&order.id))
            .map(|order| order.buyer.user_id)
            .collect();
        if !decremented {
            let left = ledger.lock_stock(voucher_id).await.map_err(NotBegun::All)?;
            let left = usize::try_from(left).unwrap_or(0);
            let arrived = orders.iter().map(|order| order.id).filter(|id| kept.contains(id));
            let too_late: HashSet<i64> = arrived.skip(left).collect();
            if too_late.len() < kept.len() {
                ledger.take_back(&too_late).await.map_err(NotBegun::All)?;
                let count = kept.len() - too_late.len();
                if !ledger.decrement_by(voucher_id, count).await.map_err(NotBegun::All)? {
                    let detail = format!("stock of {left} did not suffice for {count}");
                    return Err(NotBegun::All(Error::Internal(detail)));
                }
            }
            kept.retain(|id| !too_late.contains(id));
        }
        let first = orders.iter().map(|order| order.id).find(|id| kept.contains(id));
        let committed = match first {
            Some(id) => {
                let committed = self.store.commit(ledger, id).await;
                self.stats.committed(&committed, kept.len());
                committed
            }
            // Nothing to keep, and the stock is what it was.
            None => ledger.rollback().await.map_err(|_| Error::Unavailable("the database")),
        };
        // Those that the unique index dropped are told which order they have.
        let existing = self.store.of_buyers(voucher_id, &dropped).await;
        let dropped: HashSet<i64> = dropped.into_iter().collect();
        let outcome = |order: &NewOrder| {
            let user = order.buyer.user_id;
            if kept.contains(&order.id) {
                return told(order.id, &committed);
            }
            if !dropped.contains(&user) {
                // Sold out because of those that were kept: only true once they are committed.
                return Err(committed
                    .clone()
                    .err()
                    .map_or(Error::SoldOut, |_| Error::Unavailable("the database")));
            }
            match &existing {
                Ok(existing) => Err(existing
                    .get(&user)
                    .map_or(Error::DuplicateId, |id| Error::AlreadyOrdered(Some(*id)))),
                Err(fault) => Err(fault.clone()),
            }
        };
        Ok(orders.iter().map(outcome).collect())
    }
}

/// What the owner of order `id` is told of the commit.
fn told(id: i64, committed: &Result<(), Error>) -> Result<i64, Error> {
    match committed {
        Ok(()) => Ok(id),
        Err(Error::OutcomeUnknown(_)) => Err(Error::OutcomeUnknown(Some(id))),
        Err(fault) => Err(fault.clone()),
    }
}
