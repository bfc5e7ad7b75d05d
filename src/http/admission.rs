//! The extractors of admitted requests. [`Admitted`], of a purchase: load shedding, session and rate limits in one step,
//! where layers would box the future of every request once each. [`AdmittedRead`], of a read of a signed-in user.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::auth;
use crate::config::ClientNetworks;
use crate::error::Error;
use crate::request::admission::{Admission, InFlightPermit, SignedInReads};
use crate::request::client_address::ClientAddress;
use crate::request::to_its_end::to_its_end;
use crate::session::{CurrentUser, SharedSessions};

/// Delay before a refused request is answered. Clients that retry at once would otherwise come back thousands of
/// times a second on each connection, and refusing them would take the processor from admitted requests. The delay
/// costs no more than a timer. In milliseconds, drawn for each: those that are refused together would come back together,
/// and delay what is admitted then.
const REFUSAL_DELAY_MS: Range<u64> = 150..350;

/// An admitted request of a signed-in user.
pub struct Admitted {
    /// The signed-in user.
    pub user_id: i64,
    /// Counts the request as in flight until it is dropped.
    pub permit: InFlightPermit,
}

impl<S> FromRequestParts<Arc<S>> for Admitted
where
    S: AsRef<Admission> + AsRef<SharedSessions> + AsRef<ClientNetworks> + Send + Sync,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<S>) -> Result<Self, Error> {
        let address = ClientAddress::from_request_parts(parts, state).await?;
        let state = &**state;
        let admission: &Admission = state.as_ref();
        let permit = admit(admission, address).await?;
        let user_id = auth::signed_in(&parts.headers, state.as_ref()).await?.id;
        admission.check_user(user_id, address)?;
        Ok(Admitted { user_id, permit })
    }
}

/// An admitted read of a signed-in user, whose session a layer has found.
pub struct AdmittedRead {
    /// The signed-in user.
    pub user_id: i64,
    permit: InFlightPermit,
    reads: SignedInReads,
}

impl AdmittedRead {
    /// Runs `read` to its end, also when this future is dropped because the client hung up: a statement that is cut short
    /// costs its connection.
    ///
    /// # Errors
    /// Those of `read`; [`Error::Internal`] where it panicked.
    pub async fn run<T: Send + 'static>(
        self,
        read: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let AdmittedRead { permit, reads, .. } = self;
        let work = async move {
            let _permit = permit;
            read.await
        };
        to_its_end(&reads.tasks, work).await?
    }
}

impl<S> FromRequestParts<Arc<S>> for AdmittedRead
where
    S: AsRef<SignedInReads> + AsRef<ClientNetworks> + Send + Sync,
{
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<S>) -> Result<Self, Error> {
        let address = ClientAddress::from_request_parts(parts, state).await?;
        let user_id = CurrentUser::from_request_parts(parts, state).await?.id;
        let reads: &SignedInReads = (**state).as_ref();
        let permit = admit(&reads.admission, address).await?;
        reads.admission.check_user(user_id, address)?;
        Ok(AdmittedRead {
            user_id,
            permit,
            reads: reads.clone(),
        })
    }
}

/// Admits a request, or refuses it after the delay.
async fn admit(admission: &Admission, address: ClientAddress) -> Result<InFlightPermit, Error> {
    let admitted = admission.admit(address);
    if admitted.is_err() {
        let delay = rand::random_range(REFUSAL_DELAY_MS);
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    admitted
}
