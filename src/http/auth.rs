//! Authentication: the session of a request, and the layer [`require_admin`], which guards admin writes. The routes that need
//! a session are guarded by [`super::admission`]; on the others the layer [`renew_session`] renews it.

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

/// The user who made a request, and the session's token. A guard puts them into the extensions of each request that it lets
/// pass.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) user: Arc<CurrentUser>,
    token: Token,
}

/// The token that the headers carry for a session in Redis.
pub(super) fn token(headers: &HeaderMap) -> Option<Token> {
    Token::parse(text(headers, AUTHORIZATION)?)
}

/// Finds and renews the session with this token.
///
/// # Errors
/// [`Error::Unauthorized`] without a session; [`Error::Unavailable`] where Redis did not answer.
pub(super) async fn user_of(
    token: Option<Token>,
    sessions: &SharedSessions,
) -> Result<Arc<CurrentUser>, Error> {
    let token = token.ok_or(Error::Unauthorized)?;
    sessions.renew(token).await?.ok_or(Error::Unauthorized)
}

/// Finds and renews the session whose token the headers carry, if any; then looks for one in this process, whose token a
/// cookie carries.
///
/// # Errors
/// [`Error::Unavailable`] where Redis did not answer: the caller may be signed in.
pub(super) async fn find_caller(
    headers: &HeaderMap,
    sessions: &SharedSessions,
    in_memory: Option<&ProcessSessions>,
) -> Result<Option<Caller>, Error> {
    if let Some(token) = token(headers)
        && let Some(user) = sessions.renew(token).await?
    {
        return Ok(Some(Caller { user, token }));
    }
    let Some(in_memory) = in_memory else {
        return Ok(None);
    };
    let token = text(headers, COOKIE).and_then(Token::from_cookie);
    Ok(token.and_then(|token| {
        let user = in_memory.find(token)?;
        Some(Caller { user, token })
    }))
}

/// Layer: renews the session of a request that carries a token. The request is answered in any case.
pub async fn renew_session(
    State(sessions): State<SharedSessions>,
    request: Request,
    next: Next,
) -> Response {
    if let Some(token) = token(request.headers())
        && let Err(error) = sessions.renew(token).await
    {
        tracing::debug!(%error, "a session is not renewed");
    }
    next.run(request).await
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

impl<S: Sync> FromRequestParts<S> for CurrentUser {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let caller = parts.extensions.get::<Caller>();
        let caller = caller.ok_or(Error::Unauthorized)?;
        Ok(CurrentUser::clone(&caller.user))
    }
}

impl<S: Sync> FromRequestParts<S> for Token {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let caller = parts.extensions.get::<Caller>();
        Ok(caller.ok_or(Error::Unauthorized)?.token)
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
