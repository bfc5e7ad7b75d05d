//! Single-flight: concurrent callers of one key share one execution. The leader does the work, the
//! followers wait for its outcome.
//!
//! A flight is bound to the [`VersionStamp`] of its key: after an invalidation a new reader starts a
//! new one instead of joining a load that may have read the old row. A reader that took its stamp before
//! the invalidation joins the new flight as well: it must not replace that by a flight of its own.

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, PoisonError};
#[cfg(not(test))]
use std::sync::{Mutex, MutexGuard};

#[cfg(test)]
use shuttle::sync::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::error::ReadError;
use crate::local_cache::VersionStamp;
use crate::value::ReadResult;

type OutcomeReceiver<T, E> = watch::Receiver<Option<ReadResult<T, E>>>;

/// The flights of one process, by key.
#[derive(Default)]
pub(crate) struct SingleFlight {
    flights: Mutex<Flights>,
}

#[derive(Default)]
struct Flights {
    by_key: HashMap<Arc<str>, Flight>,
    next_id: u64,
}

struct Flight {
    id: u64,
    stamp: VersionStamp,
    /// An `OutcomeReceiver<T, E>`; of another type only if two types of values share a key.
    outcome: Box<dyn Any + Send>,
}

/// Held by the caller that has to do the work. If it is dropped without an outcome, followers get
/// [`ReadError::Aborted`].
pub(crate) struct Leader<T, E> {
    group: Arc<SingleFlight>,
    key: Arc<str>,
    id: u64,
    outcome: watch::Sender<Option<ReadResult<T, E>>>,
}

/// Waits for the outcome.
pub(crate) struct Follower<T, E>(OutcomeReceiver<T, E>);

impl SingleFlight {
    /// Joins the flight of `key`, or starts one: then the caller has to do the work.
    pub(crate) fn join<T, E>(
        self: &Arc<Self>,
        key: &str,
        stamp: VersionStamp,
    ) -> (Option<Leader<T, E>>, Follower<T, E>)
    where
        T: Send + Sync + 'static,
        E: Send + Sync + 'static,
    {
        let mut flights = self.lock();
        if let Some(flight) = flights.by_key.get(key)
            && flight.stamp.covers(stamp)
            && let Some(outcome) = flight.outcome.downcast_ref::<OutcomeReceiver<T, E>>()
        {
            return (None, Follower(outcome.clone()));
        }
        flights.next_id += 1;
        let id = flights.next_id;
        let (sender, receiver) = watch::channel(None);
        let key: Arc<str> = key.into();
        let flight = Flight {
            id,
            stamp,
            outcome: Box::new(receiver.clone()),
        };
        // A flight under an older stamp goes on for its followers.
        flights.by_key.insert(key.clone(), flight);
        drop(flights);
        (
            Some(Leader {
                group: self.clone(),
                key,
                id,
                outcome: sender,
            }),
            Follower(receiver),
        )
    }

    fn lock(&self) -> MutexGuard<'_, Flights> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T, E> Leader<T, E> {
    /// Ends the flight and gives all followers the outcome. Later callers start a new flight, so a failure reaches only
    /// those that waited for it.
    pub(crate) fn complete(self, outcome: ReadResult<T, E>) {
        self.leave();
        self.outcome.send_replace(Some(outcome));
    }

    fn leave(&self) {
        if let Entry::Occupied(flight) = self.group.lock().by_key.entry(self.key.clone())
            && flight.get().id == self.id
        {
            flight.remove();
        }
    }
}

impl<T, E> Drop for Leader<T, E> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<T, E> Follower<T, E> {
    /// Waits for the outcome.
    pub(crate) async fn wait(mut self) -> ReadResult<T, E> {
        match self.0.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Err(ReadError::Aborted)),
            Err(_) => Err(ReadError::Aborted),
        }
    }
}

#[cfg(test)]
mod interleavings;
