//! Load shedding and rate limits for the purchase routes: by client address and by the number in flight, before
//! anything is looked up; then by user, once the session is known. A refusal by the first two costs no round trip.
//! [`SignedInReads`] has the same limits, with counts of its own.
//!
//! Nothing queues here: what is too much is refused, so that the admitted ones go on at full speed. The extractor
//! [`Admitted`](crate::http::admission::Admitted) applies all of it to a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

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

/// A permit of an admitted request, held until it is dropped. Work that outlives its client takes it along.
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

    /// Admits a request from `address`. An unlimited client, such as a load tool on
    /// this machine, has no rate limit.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] for an address over its rate; [`Error::Overloaded`] where too many are in flight.
    pub fn admit(&self, address: ClientAddress) -> Result<InFlightPermit, Error> {
        let Inner {
            free,
            per_address,
            refused,
            ..
        } = &*self.0;
        let [overloaded, _, over_rate] = refused;
        if !address.is_unlimited() {
            counted(per_address.check(&address), over_rate)?;
        }
        let permit = free.clone().try_acquire_owned();
        counted(permit.map_err(|_| Error::Overloaded), overloaded)
    }

    /// Counts an admitted request for its user.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] for a user over its rate, unless the client is unlimited.
    pub fn check_user(&self, user_id: i64, address: ClientAddress) -> Result<(), Error> {
        let Inner {
            per_user, refused, ..
        } = &*self.0;
        if address.is_unlimited() {
            Ok(())
        } else {
            counted(per_user.check(&user_id), &refused[1])
        }
    }
}

/// Reads of signed-in users: their admission, apart from that of purchases, so that neither refuses the other, and the
/// tasks that read. Cheap to clone.
#[derive(Clone)]
pub struct SignedInReads {
    /// Admits them.
    pub admission: Admission,
    /// Reads, which go on when their clients hang up.
    pub tasks: TaskTracker,
}

impl SignedInReads {
    /// Reads that are admitted by the configured limits.
    pub fn new(limits: &SaleConfig) -> Self {
        SignedInReads {
            admission: Admission::new(limits),
            tasks: TaskTracker::new(),
        }
    }

    /// Waits until no read is at work. To be called when no request can come in any more.
    pub async fn finished(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

fn counted<T>(outcome: Result<T, Error>, refused: &AtomicU64) -> Result<T, Error> {
    outcome.inspect_err(|_| {
        refused.fetch_add(1, Ordering::Relaxed);
    })
}
