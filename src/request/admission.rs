//! Load shedding and rate limits for the purchase routes: by client address and by the number in flight, before
//! anything is looked up; then by user, once the session is known. A refusal by the first two costs no round trip.
//! [`SignedInReads`] has the same limits, with counts of its own.
//!
//! Nothing queues here: what is too much is refused, so that the admitted ones go on at full speed. The extractor
//! [`Admitted`](crate::http::admission::Admitted) applies all of it to a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tokio_util::task::TaskTracker;

use super::client_address::ClientAddress;
use super::context::in_current_context;
use super::rate_limiter::RateLimiter;
use crate::config::SaleConfig;
use crate::error::Error;

/// Admits or refuses requests: by their number in flight, by user and by client address. Cheap to clone.
#[derive(Clone)]
pub struct Admission(Arc<Inner>);

struct Inner {
    /// A plain count: a semaphore would be one more allocation that all threads share, and nobody waits for a permit.
    in_flight: AtomicU32,
    max_in_flight: u32,
    per_user: RateLimiter<i64>,
    per_address: RateLimiter<ClientAddress>,
    /// Refused requests, by reason.
    refused: [AtomicU64; 3],
}

/// Why requests are refused.
const REASONS: [&str; 3] = ["overloaded", "user", "address"];

/// A permit of an admitted request, held until it is dropped. Work that outlives its client takes it along.
pub struct InFlightPermit(Admission);

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        let in_flight = &self.0.0.in_flight;
        in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Admission {
    /// Admission by the configured limits.
    pub fn new(limits: &SaleConfig) -> Self {
        Admission(Arc::new(Inner {
            in_flight: AtomicU32::new(0),
            max_in_flight: limits.max_purchases,
            per_user: RateLimiter::new(limits.per_user_per_second),
            per_address: RateLimiter::new(limits.per_address_per_second),
            refused: Default::default(),
        }))
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.0.in_flight.load(Ordering::Relaxed)
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
        let Inner { in_flight, max_in_flight, per_address, refused, .. } = &*self.0;
        let [overloaded, _, over_rate] = refused;
        if !address.is_unlimited() {
            counted(per_address.check(&address), over_rate)?;
        }
        let one_more = |count| (count < *max_in_flight).then_some(count + 1);
        let admitted = in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        counted(admitted.map_err(|_| Error::Overloaded), overloaded)?;
        Ok(InFlightPermit(self.clone()))
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

/// Reads of signed-in users: their admission, apart from that of purchases, so that neither refuses the other, and the
/// tasks that read. Cheap to clone.
#[derive(Clone)]
pub struct SignedInReads {
    /// Admits them.
    pub admission: Admission,
    tasks: TaskTracker,
}

impl SignedInReads {
    /// Reads that are admitted by the configured limits.
    pub fn new(limits: &SaleConfig) -> Self {
        SignedInReads { admission: Admission::new(limits), tasks: TaskTracker::new() }
    }

    /// Runs an admitted read to its end, also when this future is dropped because the client hung up: a statement that is
    /// cut short costs its connection.
    ///
    /// # Errors
    /// Those of `read`; [`Error::Internal`] where it panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        permit: InFlightPermit,
        read: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let task = self.tasks.spawn(in_current_context(async move {
            let _permit = permit;
            read.await
        }));
        task.await.unwrap_or_else(|error| Err(Error::Internal(format!("a read: {error}"))))
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
