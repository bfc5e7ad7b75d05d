//! Load shedding and rate limits for signed-in users: by client address and by the number in flight, before anything is
//! looked up; then by user, once the session is known. A refusal by the first two costs no round trip. Purchases are
//! counted apart from all other requests of signed-in users.
//!
//! Nothing queues here: requests above a limit are refused, so that the admitted ones go on at full speed. The limits are
//! applied in [`crate::http::admission`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::client_address::ClientAddress;
use super::rate_limiter::RateLimiter;
use crate::config::SaleConfig;
use crate::error::Error;

/// Admits or refuses requests: by their number in flight, by user and by client address. Cheap to clone.
#[derive(Clone)]
pub struct Admission(Arc<Inner>);

struct Inner {
    /// Nobody waits for a permit.
    free: Arc<Semaphore>,
    max_in_flight: usize,
    per_user: RateLimiter<i64>,
    per_address: RateLimiter<ClientAddress>,
    /// Refused requests, by reason.
    refused: [AtomicU64; 3],
}

const REASONS: [&str; 3] = ["overloaded", "user", "address"];

/// A permit of an admitted request, held until it is dropped.
pub type InFlightPermit = OwnedSemaphorePermit;

impl Admission {
    /// Admission by the configured limits.
    pub fn new(limits: &SaleConfig) -> Self {
        Admission(Arc::new(Inner {
            free: Arc::new(Semaphore::new(limits.max_purchases as usize)),
            max_in_flight: limits.max_purchases as usize,
            per_user: RateLimiter::new(limits.per_user_per_second),
            per_address: RateLimiter::new(limits.per_address_per_second),
            refused: Default::default(),
        }))
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.0.max_in_flight - self.0.free.available_permits()
    }

    /// Requests refused so far, by reason.
    pub fn refused(&self) -> [(&'static str, u64); 3] {
        std::array::from_fn(|at| (REASONS[at], self.0.refused[at].load(Ordering::Relaxed)))
    }

    /// Counts a request for the address that it comes from.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] for an address over its rate, unless the client is unlimited.
    pub fn check_address(&self, address: ClientAddress) -> Result<(), Error> {
        let [_, _, over_rate] = &self.0.refused;
        if address.is_unlimited() {
            return Ok(());
        }
        counted(self.0.per_address.check(&address), over_rate)
    }

    /// Counts a request as in flight until the permit is dropped.
    ///
    /// # Errors
    /// [`Error::Overloaded`] where too many are in flight.
    pub fn permit(&self) -> Result<InFlightPermit, Error> {
        let [overloaded, _, _] = &self.0.refused;
        let permit = self.0.free.clone().try_acquire_owned();
        counted(permit.map_err(|_| Error::Overloaded), overloaded)
    }

    /// Counts an admitted request for its user.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] for a user over its rate, unless the client is unlimited.
    pub fn check_user(&self, user_id: i64, address: ClientAddress) -> Result<(), Error> {
        let [_, over_rate, _] = &self.0.refused;
        if address.is_unlimited() {
            return Ok(());
        }
        counted(self.0.per_user.check(&user_id), over_rate)
    }
}

fn counted<T>(outcome: Result<T, Error>, refused: &AtomicU64) -> Result<T, Error> {
    outcome.inspect_err(|_| {
        refused.fetch_add(1, Ordering::Relaxed);
    })
}
