//! Authentication. The layer [`renew_session`] runs on every request and renews the session whose token it carries. The
//! extractors [`CurrentUser`] and [`Token`] require one: a handler without them is for everyone. The layer
//! [`require_admin`] guards admin writes. Purchases find their session after load shedding: see [`super::admission`].

use std::sync::Arc;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use axum::middleware::Next;
use axum::response::Response;
use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;

use crate::error::Error;
use crate::session::{CurrentUser, ProcessSessions, SharedSessions, Token};

/// The session that [`renew_session`] found, and its token, in the request's extensions; or why it could not be looked up:
/// guarded routes reply 503 then, never a false 401.
#[derive(Clone)]
struct Caller(Result<(Arc<CurrentUser>, Token), Error>);

impl Caller {
    /// Finds and renews the session whose token the headers carry, if any.
    async fn find(headers: &HeaderMap, sessions: &SharedSessions) -> Option<Caller> {
        let token = Token::parse(text(headers, AUTHORIZATION)?)?;
        let user = sessions.renew(token).await.transpose()?;
        Some(Caller(user.map(|user| (user, token))))
    }

    /// Finds the session in this process whose token a cookie carries.
    fn in_process(headers: &HeaderMap, sessions: &ProcessSessions) -> Option<Caller> {
        let token = Token::from_cookie(text(headers, COOKIE)?)?;
        Some(Caller(Ok((sessions.find(token)?, token))))
    }

    fn require(caller: Option<&Caller>) -> Result<(Arc<CurrentUser>, Token), Error> {
        caller.map_or(Err(Error::Unauthorized), |Caller(found)| found.clone())
    }
}

/// Finds and renews the session of the request with these headers.
///
/// # Errors
/// [`Error::Unauthorized`] without a session; [`Error::Unavailable`] where Redis did not answer.
pub async fn signed_in(
    headers: &HeaderMap,
    sessions: &SharedSessions,
) -> Result<Arc<CurrentUser>, Error> {
    let caller = Caller::find(headers, sessions).await;
    Caller::require(caller.as_ref()).map(|(user, _)| user)
}

/// Layer: finds and renews the session of a request that carries a token; with `--lab` also one in this process.
pub async fn renew_session(
    State((sessions, in_memory)): State<(SharedSessions, Option<ProcessSessions>)>,
    mut request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let mut caller = Caller::find(headers, &sessions).await;
    if let (None, Some(in_memory)) = (&caller, in_memory) {
        caller = Caller::in_process(headers, &in_memory);
    }
    if let Some(caller) = caller {
        request.extensions_mut().insert(caller);
    }
    next.run(request).await
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

impl<S: Sync> FromRequestParts<S> for CurrentUser {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        Caller::require(parts.extensions.get()).map(|(user, _)| CurrentUser::clone(&user))
    }
}

impl<S: Sync> FromRequestParts<S> for Token {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        Caller::require(parts.extensions.get()).map(|(_, token)| token)
    }
}

/// The header that carries the secret of admin writes.
pub const ADMIN_TOKEN: &str = "x-admin-token";

/// The secret of admin writes; unset means that every admin write is refused.
#[derive(Clone)]
pub struct AdminToken(pub Option<SecretString>);

/// Layer: refuses requests whose `x-admin-token` is not the configured one, with 403. Compared in constant time.
pub async fn require_admin(
    State(AdminToken(expected)): State<AdminToken>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    let Some(expected) = expected else {
        return Err(Error::Forbidden(
            "admin writes are off: start the server with ADMIN_TOKEN set and send it as x-admin-token",
        ));
    };
    let given = request
        .headers()
        .get(ADMIN_TOKEN)
        .map(|value| value.as_bytes());
    let matches = expected
        .expose_secret()
        .as_bytes()
        .ct_eq(given.unwrap_or_default());
    if given.is_none() || !bool::from(matches) {
        return Err(Error::Forbidden("x-admin-token is missing or wrong"));
    }
    Ok(next.run(request).await)
}
