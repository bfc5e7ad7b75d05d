//! One piece of work per key and process, whose outcome all who ask for it share (*single flight*).
//! It knows nothing of what the work is.
//!
//! A flight belongs to the [`Stamp`] of its key: after an invalidation a new reader begins a new
//! one instead of joining a load that may have seen the old row.

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::error::ReadError;
use super::local::Stamp;
use super::value::Cached;

/// What a reader is told.
pub(super) type Outcome<T, E> = Result<Option<Arc<Cached<T>>>, ReadError<E>>;

type Result_<T, E> = watch::Receiver<Option<Outcome<T, E>>>;

/// The flights of one process.
#[derive(Default)]
pub(super) struct Flights {
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    by_key: HashMap<Arc<str>, Slot>,
    next_id: u64,
}

struct Slot {
    id: u64,
    stamp: Stamp,
    /// A `Result_<T, E>`; of another type only if two kinds of data share a key.
    outcome: Box<dyn Any + Send>,
}

/// The part one reader has in a flight.
pub(super) enum Boarding<T, E> {
    /// The caller does the work.
    Lead(Ticket<T, E>, Seat<T, E>),
    /// Somebody else is doing it.
    Join(Seat<T, E>),
}

/// The duty to do the work. Dropped without an outcome, it ends the flight as broken off.
pub(super) struct Ticket<T, E> {
    flights: Arc<Flights>,
    key: Arc<str>,
    id: u64,
    outcome: watch::Sender<Option<Outcome<T, E>>>,
}

/// The right to the outcome.
pub(super) struct Seat<T, E>(Result_<T, E>);

impl Flights {
    /// Join the flight of `key`, or begin one.
    pub(super) fn board<T, E>(self: &Arc<Self>, key: &str, stamp: Stamp) -> Boarding<T, E>
    where
        T: Send + Sync + 'static,
        E: Send + Sync + 'static,
    {
        let mut slots = self.slots();
        if let Some(slot) = slots.by_key.get(key)
            && slot.stamp == stamp
            && let Some(outcome) = slot.outcome.downcast_ref::<Result_<T, E>>()
        {
            return Boarding::Join(Seat(outcome.clone()));
        }
        slots.next_id += 1;
        let id = slots.next_id;
        let (sender, receiver) = watch::channel(None);
        let key: Arc<str> = key.into();
        let slot = Slot { id, stamp, outcome: Box::new(receiver.clone()) };
        // One that is under way for an older stamp goes on for those who sit in it.
        slots.by_key.insert(key.clone(), slot);
        drop(slots);
        Boarding::Lead(Ticket { flights: self.clone(), key, id, outcome: sender }, Seat(receiver))
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T, E> Ticket<T, E> {
    /// Give everybody the outcome.
    pub(super) fn land(self, outcome: Outcome<T, E>) {
        self.outcome.send_replace(Some(outcome));
    }
}

impl<T, E> Drop for Ticket<T, E> {
    fn drop(&mut self) {
        if let Entry::Occupied(slot) = self.flights.slots().by_key.entry(self.key.clone())
            && slot.get().id == self.id
        {
            slot.remove();
        }
    }
}

impl<T, E> Seat<T, E> {
    /// Wait for the outcome.
    pub(super) async fn arrive(mut self) -> Outcome<T, E> {
        match self.0.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Err(ReadError::BrokenOff)),
            Err(_) => Err(ReadError::BrokenOff),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::local::Local;
    use super::*;

    fn lead(flights: &Arc<Flights>, stamp: Stamp) -> (Ticket<u64, ()>, Seat<u64, ()>) {
        match flights.board("a", stamp) {
            Boarding::Lead(ticket, seat) => (ticket, seat),
            Boarding::Join(_) => panic!("a flight is under way"),
        }
    }

    fn join(flights: &Arc<Flights>, stamp: Stamp) -> Seat<u64, ()> {
        match flights.board("a", stamp) {
            Boarding::Lead(..) => panic!("no flight is under way"),
            Boarding::Join(seat) => seat,
        }
    }

    #[tokio::test]
    async fn everybody_shares_one_outcome_and_the_next_flight_is_new() {
        let (flights, local) = (Arc::new(Flights::default()), Local::new(1));
        let stamp = local.stamp("a");
        let (ticket, first) = lead(&flights, stamp);
        let second = join(&flights, stamp);
        ticket.land(Ok(Some(Arc::new(Cached::new(7)))));
        for seat in [first, second] {
            assert_eq!(**seat.arrive().await.unwrap().unwrap(), 7);
        }
        drop(lead(&flights, stamp));
        assert!(flights.slots().by_key.is_empty());
    }

    #[tokio::test]
    async fn work_that_is_given_up_tells_those_who_wait() {
        let (flights, local) = (Arc::new(Flights::default()), Local::new(1));
        let (ticket, seat) = lead(&flights, local.stamp("a"));
        drop(ticket);
        assert!(matches!(seat.arrive().await, Err(ReadError::BrokenOff)));
    }

    #[test]
    fn nobody_joins_a_flight_that_began_before_an_invalidation() {
        let (flights, local) = (Arc::new(Flights::default()), Local::new(1));
        let (old, _) = lead(&flights, local.stamp("a"));
        local.forget("a");
        let (_new, _) = lead(&flights, local.stamp("a"));
        drop(old);
        join(&flights, local.stamp("a"));
    }
}
