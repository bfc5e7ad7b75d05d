//! Memory queue, the blocking queue of the course: one script in Redis admits the buyer, who is told yes at once, and one
//! worker of this process writes the orders later, one by one, from a queue in its memory. A process that is killed takes
//! with it what waits there: orders that were confirmed. A clean stop writes them first. Unsafe on purpose;
//! [`super::stream`] keeps the queue in Redis and answers "pending".
//!
//! What the script takes is never given back: a buyer whose order was lost is refused as one who has ordered, and so is one
//! who has cancelled. Where stock is added or returned, the counter is set from the table, which does not know what still
//! waits: too many are then admitted, and lost. A look-up does not know what waits either: it calls an order that waits for
//! longer than half a minute one that does not exist, and yet it may be written. A purchase to which Redis does not answer is of
//! unknown outcome: it may have taken a unit, and has no order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::RedisError;
use redis_link::Outcome;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::connection::redis::RoutedConnection;
use crate::error::{Cause, Error};
use crate::keys::Keys;
use crate::order::batch::BatchCommitter;
use crate::order::deadline::Deadline;
use crate::order::model::NewOrder;
use crate::order::steps;
use crate::order::store::{Kind, OrderStore};
use crate::request::trace;
use crate::scripts;

/// Orders that may wait; further purchases are refused.
const QUEUE: usize = 1 << 16;

/// The pause before an order that the database did not decide is tried again.
const PAUSE: Duration = Duration::from_millis(50);

/// The queue of this process, of all its sales. Cheap to clone.
#[derive(Clone)]
pub struct MemoryQueue(Arc<Inner>);

struct Inner {
    redis: RoutedConnection,
    keys: Keys,
    committer: BatchCommitter,
    /// The time limit of one try.
    limit: Duration,
    /// First in, first out. The first one is being written: while there is one, there is a worker.
    orders: Mutex<VecDeque<NewOrder>>,
    worker: TaskTracker,
}

impl MemoryQueue {
    /// An empty queue, whose worker writes to this store.
    pub fn new(redis: RoutedConnection, keys: Keys, store: OrderStore) -> Self {
        MemoryQueue(Arc::new(Inner {
            redis,
            keys,
            limit: store.time_limit(),
            // An order is tried again under its id until it is decided.
            committer: BatchCommitter::new(store, Kind::Entries),
            orders: Mutex::default(),
            worker: TaskTracker::new(),
        }))
    }

    /// Admits the buyer and queues the order; returns its id, as if it were committed.
    pub async fn order(&self, order: NewOrder, deadline: Deadline) -> Result<i64, Error> {
        if self.waiting() >= QUEUE {
            return Err(Error::Overloaded);
        }
        let admitting = trace::step(self.admit(order), steps::ended("admitted"));
        match tokio::time::timeout_at(deadline, admitting).await {
            Ok(admitted) => admitted?,
            Err(_) => return Err(Error::OutcomeUnknown(Some(order.id))),
        }
        self.push(order);
        trace::mark("queued", "");
        // Too early: there is no such order yet.
        Ok(order.id)
    }

    async fn admit(&self, order: NewOrder) -> Result<(), Error> {
        let buyer = order.buyer;
        let keys = &self.0.keys;
        let mut script = scripts::MEMORY_ADMIT.key(keys.stock(buyer.voucher_id));
        script.key(keys.claims(buyer.voucher_id)).arg(buyer.user_id);
        let mut redis = self.0.redis.clone();
        let answer: Result<String, RedisError> = script.invoke_async(&mut redis).await;
        let answer = answer.map_err(|error| match Outcome::of(&error) {
            Outcome::Unknown => Error::OutcomeUnknown(Some(order.id)),
            _ => Error::from(error),
        })?;
        match answer.as_str() {
            "admitted" => Ok(()),
            "claimed" => Err(Error::AlreadyOrdered(None)),
            "sold out" => Err(Error::SoldOut),
            _ => Err(Error::Unavailable(Cause::SaleBeingCounted)),
        }
    }

    /// How many confirmed orders are not written yet.
    pub fn waiting(&self) -> usize {
        self.0.orders.lock().len()
    }

    /// Waits until all orders are written. To be called when no purchase can come in any more.
    pub async fn finished(&self) {
        self.0.worker.close();
        self.0.worker.wait().await;
    }

    fn push(&self, order: NewOrder) {
        let mut orders = self.0.orders.lock();
        orders.push_back(order);
        if orders.len() == 1 {
            self.0.worker.spawn(self.clone().write_all(order));
        }
    }

    async fn write_all(self, first: NewOrder) {
        let mut next = Some(first);
        while let Some(order) = next {
            self.write(order).await;
            next = self.next();
        }
    }

    /// Takes the order that was written out of the queue; returns the one behind it.
    fn next(&self) -> Option<NewOrder> {
        let mut orders = self.0.orders.lock();
        orders.pop_front();
        orders.front().copied()
    }

    /// Tries until the database has decided. A refusal comes too late for the buyer.
    async fn write(&self, order: NewOrder) {
        loop {
            let deadline = Instant::now() + self.0.limit;
            match self.0.committer.commit_one(order, deadline).await {
                Ok(_) => return,
                Err(Error::Conflict | Error::Unavailable(_) | Error::OutcomeUnknown(_)) => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => {
                    let error = error.detail();
                    let order_id = order.id;
                    tracing::error!(
                        order_id,
                        error,
                        "a confirmed order cannot be written: it is lost"
                    );
                    return;
                }
            }
        }
    }
}
