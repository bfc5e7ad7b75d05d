//! Load shedding and rate limits for the purchase routes: by client address and by the number in flight, before
//! anything is looked up; then by user, once the session is known. A refusal by the first two costs no round trip.
//!
//! Nothing queues here. A request that would wait longer than is of use (see [`ConcurrencyLimit`]) is refused, so that
//! the admitted ones go on at full speed. The extractor [`Admitted`](crate::http::admission::Admitted) applies all of it
//! to a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::client_address::ClientAddress;
use super::concurrency_limit::ConcurrencyLimit;
use super::rate_limiter::RateLimiter;
use crate::error::Error;

/// The limits of the purchase routes.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionLimits {
    /// Requests in flight at once, however fast they are.
    pub in_flight: u32,
    /// Longest wait that is of use: no more are admitted than are completed within it.
    pub max_wait: Duration,
    /// Requests a second of one user; 0 for no limit.
    pub per_user_per_second: u32,
    /// Requests a second from one address; 0 for no limit.
    pub per_address_per_second: u32,
}

/// Admits or refuses requests by [`AdmissionLimits`]. Cheap to clone.
#[derive(Clone)]
pub struct Admission(Arc<Inner>);

struct Inner {
    permits: Arc<Semaphore>,
    max_in_flight: u32,
    concurrency: ConcurrencyLimit,
    per_user: RateLimiter<i64>,
    per_address: RateLimiter<ClientAddress>,
    /// Refused requests, by reason.
    refused: [AtomicU64; 3],
}

/// Why requests are refused.
const REASONS: [&str; 3] = ["overloaded", "user", "address"];

/// A permit of an admitted request, held until it is dropped. Work that outlives its client takes it along.
pub struct InFlightPermit {
    // Never read: it is there to be dropped.
    _permit: OwnedSemaphorePermit,
    admission: Admission,
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.admission.0.concurrency.complete();
    }
}

impl Admission {
    /// Admission by these limits.
    pub fn new(limits: AdmissionLimits) -> Self {
        Admission(Arc::new(Inner {
            permits: Arc::new(Semaphore::new(limits.in_flight as usize)),
            max_in_flight: limits.in_flight,
            concurrency: ConcurrencyLimit::new(limits.in_flight, limits.max_wait),
            per_user: RateLimiter::new(limits.per_user_per_second),
            per_address: RateLimiter::new(limits.per_address_per_second),
            refused: Default::default(),
        }))
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u32 {
        let free = u32::try_from(self.0.permits.available_permits()).unwrap_or(u32::MAX);
        self.0.max_in_flight.saturating_sub(free)
    }

    /// Requests refused so far, by reason.
    pub fn refused(&self) -> [(&'static str, u64); 3] {
        std::array::from_fn(|at| (REASONS[at], self.0.refused[at].load(Ordering::Relaxed)))
    }

    /// Admits a request from `address`. An unlimited client, such as a load tool on
    /// this machine, has no rate limit.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] for an address over its rate; [`Error::Overloaded`] where too many are in flight.
    pub fn admit(&self, address: ClientAddress) -> Result<InFlightPermit, Error> {
        let Inner { permits, concurrency, per_address, refused, .. } = &*self.0;
        let [overloaded, _, over_rate] = refused;
        if !address.is_unlimited() {
            counted(per_address.check(&address), over_rate)?;
        }
        let permit = if concurrency.admits(self.in_flight(), Instant::now()) {
            permits.clone().try_acquire_owned().map_err(|_| Error::Overloaded)
        } else {
            Err(Error::Overloaded)
        };
        let permit = counted(permit, overloaded)?;
        Ok(InFlightPermit { _permit: permit, admission: self.clone() })
    }

    /// Counts an admitted request for its user.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] for a user over its rate, unless the client is unlimited.
    pub fn check_user(&self, user_id: i64, address: ClientAddress) -> Result<(), Error> {
        let Inner { per_user, refused, .. } = &*self.0;
        if address.is_unlimited() { Ok(()) } else { counted(per_user.check(&user_id), &refused[1]) }
    }
}

fn counted<T>(outcome: Result<T, Error>, refused: &AtomicU64) -> Result<T, Error> {
    outcome.inspect_err(|_| {
        refused.fetch_add(1, Ordering::Relaxed);
    })
}
