//! The guards of the routes for signed-in users: rate limits, load shedding and the session. [`admit_signed_in`] is the layer
//! of all of these routes except purchases. A purchase takes the extractor [`Admitted`] instead, because a layer boxes the
//! future of every request. No handler can forget the extractor: without its permit, nothing can be bought.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::http::HeaderName;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;

use super::auth;
use crate::config::ClientNetworks;
use crate::error::Error;
use crate::request::admission::{Admission, InFlightPermit};
use crate::request::client_address::ClientAddress;
use crate::session::{ProcessSessions, SharedSessions};

/// Delay before a refused request is answered. Clients that retry at once would otherwise come back thousands of
/// times a second on each connection, and refusing them would take the processor from admitted requests. The delay
/// costs no more than a timer. It is drawn at random for each refusal: otherwise clients that are refused together would come
/// back together, and delay the requests that are admitted then. In milliseconds.
const REFUSAL_DELAY_MS: Range<u64> = 150..350;

/// What the guards need.
pub struct Guards {
    /// Counts purchases.
    pub purchases: Admission,
    /// Counts all other requests of signed-in users. Too many of one kind are no reason to refuse the other.
    pub signed_in: Admission,
    /// The sessions in Redis.
    pub sessions: SharedSessions,
    /// With `--lab`, the sessions in this process.
    pub in_memory: Option<ProcessSessions>,
    /// Which clients have no rate limit, and which proxies may name a client's address.
    pub clients: ClientNetworks,
}

/// An admitted purchase. Its input is read before it gets its permit, so a body that does not arrive holds no permit.
pub struct Admitted<T> {
    /// The signed-in user.
    pub user_id: i64,
    /// What the request asks for: its body, or a parameter of its path.
    pub input: T,
    /// Counts the request as in flight until it is dropped.
    pub permit: InFlightPermit,
}

impl<S, T, Kind> FromRequest<Arc<S>, Kind> for Admitted<T>
where
    S: AsRef<Guards> + Send + Sync,
    T: FromRequest<Arc<S>, Kind, Rejection = Error> + Send,
{
    type Rejection = Error;

    async fn from_request(request: Request, state: &Arc<S>) -> Result<Self, Error> {
        let guards: &Guards = (**state).as_ref();
        let (parts, body) = request.into_parts();
        let address = guards.address_of(&parts)?;
        or_delayed(guards.purchases.check_address(address)).await?;
        let token = auth::token(&parts.headers);
        let input = T::from_request(Request::from_parts(parts, body), state).await?;
        let permit = or_delayed(guards.purchases.permit()).await?;
        let user_id = auth::user_of(token, &guards.sessions).await?.id;
        guards.purchases.check_user(user_id, address)?;
        Ok(Admitted {
            user_id,
            input,
            permit,
        })
    }
}

/// An admitted request of a signed-in user, as [`admit_signed_in`] hands it to the handler.
#[derive(Clone)]
pub struct SignedIn {
    /// The signed-in user.
    pub user_id: i64,
}

impl<S: Sync> FromRequestParts<S> for SignedIn {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let admitted = parts.extensions.remove();
        admitted.ok_or(Error::Unauthorized)
    }
}

/// Layer: refuses a request without a session, from an address or of a user over its rate, and when too many are in flight.
/// With `--lab` also a session in this process counts.
///
/// # Errors
/// The refusal.
pub async fn admit_signed_in(
    State(guards): State<Arc<Guards>>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    let (mut parts, body) = request.into_parts();
    let address = guards.address_of(&parts)?;
    or_delayed(guards.signed_in.check_address(address)).await?;
    let permit = or_delayed(guards.signed_in.permit()).await?;
    let in_memory = guards.in_memory.as_ref();
    let caller = auth::find_caller(&parts.headers, &guards.sessions, in_memory);
    let caller = caller.await?.ok_or(Error::Unauthorized)?;
    let user_id = caller.user.id;
    guards.signed_in.check_user(user_id, address)?;
    parts.extensions.insert(caller);
    parts.extensions.insert(SignedIn { user_id });
    let response = next.run(Request::from_parts(parts, body)).await;
    drop(permit);
    Ok(response)
}

/// The header in which a proxy names its client.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The other end of the connection, put into each request by the listener.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

impl Guards {
    fn address_of(&self, parts: &Parts) -> Result<ClientAddress, Error> {
        let peer = parts.extensions.get::<Peer>().copied();
        let Peer(peer) = peer.ok_or_else(|| Error::Internal("a request without a peer".into()))?;
        let lines = parts.headers.get_all(FORWARDED_FOR).iter();
        let lines = lines.map(|line| line.to_str().ok());
        Ok(ClientAddress::new(&self.clients, peer, lines))
    }
}

impl<S: AsRef<Guards> + Send + Sync> FromRequestParts<Arc<S>> for ClientAddress {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<S>) -> Result<Self, Error> {
        (**state).as_ref().address_of(parts)
    }
}

/// Returns what was admitted at once, and a refusal after the delay.
async fn or_delayed<T>(admitted: Result<T, Error>) -> Result<T, Error> {
    if admitted.is_err() {
        let delay = rand::random_range(REFUSAL_DELAY_MS);
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    admitted
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_refusal_comes_150_to_350_ms_late_and_each_at_a_time_of_its_own() {
        let mut delays = Vec::new();
        for _ in 0..1000 {
            let began = Instant::now();
            let refused = or_delayed(Err::<(), _>(Error::Overloaded)).await;
            assert!(matches!(refused, Err(Error::Overloaded)));
            delays.push(began.elapsed().as_millis());
        }
        delays.sort_unstable();
        // The timer rounds up to a millisecond.
        let bounds = (delays[0], delays[delays.len() - 1]);
        assert!(bounds.0 >= 150 && bounds.1 <= 351, "{bounds:?}");
        delays.dedup();
        assert!(delays.len() > 100, "only {} different times", delays.len());

        let began = Instant::now();
        assert!(or_delayed(Ok(())).await.is_ok());
        assert_eq!(began.elapsed(), Duration::ZERO, "what is admitted waits");
    }
}
