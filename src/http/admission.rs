//! Who is let in at all, to a route that is dear and wanted by very many: by address and by how much is in
//! flight, before anything is looked up; then by session; then by user. A refusal by the first two
//! costs no round trip and says when to come back. Who comes when [`Pace`] says that it would wait too
//! long is refused, too.
//!
//! A handler asks for it all by taking an [`Admitted`]: one step instead of four layers, each of which
//! would be boxed for every request.
//!
//! Nothing queues here. Whoever would wait longer than the work takes is refused, after a short pause
//! that is the same for all, so that the requests that are let in go on at full speed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::address::ClientAddress;
use super::auth;
use super::limit::Limit;
use super::pace::Pace;
use super::session::Sessions;
use crate::error::Error;

/// How long a refusal waits before it is told. Answered at once, those who try again at once would ask so
/// often that refusing them takes the processor from those who were let in: each connection would come
/// back thousands of times a second. It costs no more than a timer.
const PACE_OF_REFUSALS: Duration = Duration::from_millis(50);

/// What is let in.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionLimits {
    /// Requests in flight at once, whatever their pace.
    pub in_flight: u32,
    /// Longest wait that is of use: no more are let in than come out within it.
    pub wait: Duration,
    /// Requests a second of one user; 0 for no limit.
    pub per_user_per_second: u32,
    /// Requests a second from one address; 0 for no limit.
    pub per_address_per_second: u32,
}

/// Counts who is in, and refuses who is too many. Cheap to clone.
#[derive(Clone)]
pub struct Admission(Arc<Inner>);

struct Inner {
    in_flight: Arc<Semaphore>,
    places: u32,
    pace: Pace,
    per_user: Limit<i64>,
    per_address: Limit<ClientAddress>,
    refused: Refused,
    sessions: Sessions,
}

/// How many were refused, by reason.
#[derive(Default)]
struct Refused {
    overloaded: AtomicU64,
    user: AtomicU64,
    address: AtomicU64,
}

/// A request that was let in.
pub struct Admitted {
    /// Whose it is.
    pub user_id: i64,
    /// Where it is counted.
    pub place: Place,
}

/// A place among those in flight, held until it is dropped. What goes on when its client has hung up
/// takes it along.
pub struct Place {
    // Never read: it is there to be dropped.
    _permit: OwnedSemaphorePermit,
    admission: Admission,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission.0.pace.done();
    }
}

impl Admission {
    /// Admission by these limits, of those who have a session.
    pub fn new(limits: AdmissionLimits, sessions: Sessions) -> Self {
        Admission(Arc::new(Inner {
            in_flight: Arc::new(Semaphore::new(limits.in_flight as usize)),
            places: limits.in_flight,
            pace: Pace::new(limits.in_flight, limits.wait),
            per_user: Limit::new(limits.per_user_per_second),
            per_address: Limit::new(limits.per_address_per_second),
            refused: Refused::default(),
            sessions,
        }))
    }

    /// How many are in.
    pub fn in_flight(&self) -> u64 {
        self.inside().into()
    }

    fn inside(&self) -> u32 {
        let free = u32::try_from(self.0.in_flight.available_permits()).unwrap_or(u32::MAX);
        self.0.places.saturating_sub(free)
    }

    /// How many were refused so far, by reason.
    pub fn refused(&self) -> [(&'static str, u64); 3] {
        let Refused { overloaded, user, address } = &self.0.refused;
        [("overloaded", overloaded), ("user", user), ("address", address)]
            .map(|(reason, count)| (reason, count.load(Ordering::Relaxed)))
    }

    /// Refuses an address that asks too often (429), then whoever comes when all places are taken (503).
    fn enter(&self, address: ClientAddress) -> Result<Place, Error> {
        let Inner { in_flight, pace, per_address, refused, .. } = &*self.0;
        if !address.is_local() {
            counted(per_address.check(&address), &refused.address)?;
        }
        let permit = if pace.admits(self.inside(), Instant::now()) {
            in_flight.clone().try_acquire_owned().map_err(|_| Error::Overloaded)
        } else {
            Err(Error::Overloaded)
        };
        let permit = counted(permit, &refused.overloaded)?;
        Ok(Place { _permit: permit, admission: self.clone() })
    }

    /// Refuses a user who asks too often (429). This machine itself is not limited, so that load tools
    /// can be.
    fn enter_as(&self, user_id: i64, address: ClientAddress) -> Result<(), Error> {
        let Inner { per_user, refused, .. } = &*self.0;
        if address.is_local() { Ok(()) } else { counted(per_user.check(&user_id), &refused.user) }
    }
}

fn counted<T>(outcome: Result<T, Error>, refused: &AtomicU64) -> Result<T, Error> {
    outcome.inspect_err(|_| {
        refused.fetch_add(1, Ordering::Relaxed);
    })
}

impl<S: Sync> FromRequestParts<S> for Admitted
where
    Admission: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        let admission = Admission::from_ref(state);
        let address = ClientAddress::from_request_parts(parts, state).await?;
        let place = match admission.enter(address) {
            Err(refusal) => {
                tokio::time::sleep(PACE_OF_REFUSALS).await;
                return Err(refusal);
            }
            admitted => admitted?,
        };
        let user_id = auth::signed_in(&parts.headers, &admission.0.sessions).await?.id;
        admission.enter_as(user_id, address)?;
        Ok(Admitted { user_id, place })
    }
}
