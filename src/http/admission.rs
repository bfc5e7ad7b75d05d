//! Who is let in at all, in front of a route that is dear and wanted by very many: first by address and
//! by how much is in flight ([`admit`]), before anything is looked up; then by user ([`admit_user`]), once
//! the session has told who it is. A refusal costs no round trip and says when to come back.
//!
//! Who comes when [`Pace`] says that it would wait too long is refused, too.
//!
//! Nothing queues here. Whoever would wait longer than the work takes is better told at once: a refused
//! request costs a few microseconds, so that the requests that are let in go on at full speed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::address::ClientAddress;
use super::limit::Limit;
use super::pace::Pace;
use super::session::CurrentUser;
use crate::error::Error;

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
}

/// How many were refused, by reason.
#[derive(Default)]
struct Refused {
    overloaded: AtomicU64,
    user: AtomicU64,
    address: AtomicU64,
}

/// A place among those in flight, held until the last clone is dropped. What goes on when its client has
/// hung up takes a clone along.
#[derive(Clone)]
pub struct Admitted {
    // Never read: it is there to be dropped.
    _place: Arc<Place>,
}

struct Place {
    _permit: OwnedSemaphorePermit,
    admission: Arc<Inner>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.admission.pace.done();
    }
}

impl Admission {
    /// Admission by these limits.
    pub fn new(limits: AdmissionLimits) -> Self {
        Admission(Arc::new(Inner {
            in_flight: Arc::new(Semaphore::new(limits.in_flight as usize)),
            places: limits.in_flight,
            pace: Pace::new(limits.in_flight, limits.wait),
            per_user: Limit::new(limits.per_user_per_second),
            per_address: Limit::new(limits.per_address_per_second),
            refused: Refused::default(),
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

    fn enter(&self, address: ClientAddress) -> Result<Admitted, Error> {
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
        Ok(Admitted { _place: Arc::new(Place { _permit: permit, admission: self.0.clone() }) })
    }
}

fn counted<T>(outcome: Result<T, Error>, refused: &AtomicU64) -> Result<T, Error> {
    outcome.inspect_err(|_| {
        refused.fetch_add(1, Ordering::Relaxed);
    })
}

/// Outermost, before the session is looked up: refuses an address that asks too often (429), then
/// whoever comes when all places are taken (503). The place goes along with the request.
pub async fn admit(
    State(admission): State<Admission>,
    address: ClientAddress,
    mut request: Request,
    next: Next,
) -> Result<Response, Error> {
    request.extensions_mut().insert(admission.enter(address)?);
    Ok(next.run(request).await)
}

/// After the session was found: refuses a user who asks too often (429). This machine itself is not
/// limited, so that load tools can be.
pub async fn admit_user(
    State(admission): State<Admission>,
    address: ClientAddress,
    user: CurrentUser,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    let Inner { per_user, refused, .. } = &*admission.0;
    if !address.is_local() {
        counted(per_user.check(&user.id), &refused.user)?;
    }
    Ok(next.run(request).await)
}

impl<S: Sync> FromRequestParts<S> for Admitted {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        // Taken out, so that the request does not keep a place that its work has given back.
        let place = parts.extensions.remove::<Admitted>();
        place.ok_or_else(|| Error::Internal("a request that was not admitted".into()))
    }
}
