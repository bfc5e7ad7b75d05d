//! Extractors of bodies and parameters, which refuse bad input in the reply envelope instead of axum's plain text.

use std::time::Duration;

use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use crate::error::Error;

/// Most bytes of a body that anybody may send, such as a purchase or a sign-in.
pub const SMALL_BODY: usize = 2 * 1024;

/// Most bytes of a body that the administrator sends. The largest, a voucher with its rules, has some 6 KiB if each character
/// is escaped.
pub const ADMIN_BODY: usize = 64 * 1024;

/// Longest time that a body may take to arrive, counted from when it begins to be read. Nothing that others need is held
/// meanwhile.
const BODY_TIME_LIMIT: Duration = Duration::from_secs(3);

/// Limits the size of a request's body. To be called where the body is read: as a layer, the limit would cost every request
/// an entry in its extensions.
fn limit_body<const MOST_BYTES: usize>(request: &mut Request) {
    DefaultBodyLimit::max(MOST_BYTES).apply(request);
}

/// Waits for `reading`, which reads a body.
async fn in_time<T>(reading: impl Future<Output = T>) -> Result<T, Error> {
    let read = tokio::time::timeout(BODY_TIME_LIMIT, reading).await;
    read.map_err(|_| Error::RequestTimeout)
}

/// A JSON body of at most so many bytes.
pub struct Json<T, const MOST_BYTES: usize = SMALL_BODY>(pub T);

impl<S, T, const MOST_BYTES: usize> FromRequest<S> for Json<T, MOST_BYTES>
where
    S: Send + Sync,
    T: DeserializeOwned,
{
    type Rejection = Error;

    async fn from_request(mut request: Request, state: &S) -> Result<Self, Error> {
        limit_body::<MOST_BYTES>(&mut request);
        match in_time(axum::Json::<T>::from_request(request, state)).await? {
            Ok(axum::Json(value)) => Ok(Json(value)),
            Err(JsonRejection::JsonDataError(error)) => {
                Err(Error::InvalidParameter(error.body_text()))
            }
            Err(JsonRejection::MissingJsonContentType(_)) => Err(Error::UnsupportedMediaType),
            Err(error) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                Err(Error::PayloadTooLarge(MOST_BYTES))
            }
            Err(error) => Err(Error::MalformedJson(error.body_text())),
        }
    }
}

/// A path parameter, such as the `{id}` of a voucher.
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        axum::extract::Path::<T>::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Path(value)| Path(value))
            .map_err(|error: PathRejection| Error::InvalidParameter(error.body_text()))
    }
}

/// Parameters from the query string, or, where there is none, from a form body: the original front-end sends either.
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Params<T> {
    type Rejection = Error;

    async fn from_request(mut request: Request, state: &S) -> Result<Self, Error> {
        limit_body::<SMALL_BODY>(&mut request);
        let is_form = request
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"));
        if request.uri().query().is_none() && is_form {
            return match in_time(axum::Form::<T>::from_request(request, state)).await? {
                Ok(axum::Form(value)) => Ok(Params(value)),
                Err(error) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                    Err(Error::PayloadTooLarge(SMALL_BODY))
                }
                Err(error) => Err(Error::InvalidParameter(error.body_text())),
            };
        }
        axum::extract::Query::<T>::try_from_uri(request.uri())
            .map(|axum::extract::Query(value)| Params(value))
            .map_err(|error| Error::InvalidParameter(error.body_text()))
    }
}

/// The header `Idempotency-Key`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub struct Idempotent {
    /// Names this request for a day: a repeat with the same key does nothing, and is answered alike.
    #[param(
        rename = "Idempotency-Key",
        nullable = false,
        pattern = "^[!-~]{1,128}$",
        example = "0b5d3c1e-7a55-4c0c-9d1f-2d1c3b4a5e6f"
    )]
    pub key: Option<String>,
}

impl<S: Sync> FromRequestParts<S> for Idempotent {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let Some(value) = parts.headers.get("idempotency-key") else {
            return Ok(Self { key: None });
        };
        let key = value.to_str().unwrap_or_default();
        Error::require(
            (1..=128).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic()),
            "Idempotency-Key must be 1 to 128 printable ASCII characters without spaces",
        )?;
        Ok(Self {
            key: Some(key.to_owned()),
        })
    }
}
