//! Error responses: the HTTP status and the envelope of every [`Error`].

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::reply::Envelope;
use crate::error::Error;

/// Seconds after which a client is told to retry a 503.
const RETRY_AFTER_SECONDS: u64 = 1;

/// The HTTP status of `error`.
pub fn status(error: &Error) -> StatusCode {
    StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Seconds after which a retry makes sense, for 429 and 503.
fn retry_after_seconds(error: &Error, status: StatusCode) -> Option<u64> {
    match error {
        Error::TooManyRequests { retry_after_seconds } => Some(*retry_after_seconds),
        _ => (status == StatusCode::SERVICE_UNAVAILABLE).then_some(RETRY_AFTER_SECONDS),
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        if let Error::Internal(detail) = &self {
            tracing::error!(%detail, "internal error");
        }
        let status = status(&self);
        let envelope =
            Envelope::failure(self.code(), self.to_string()).with_order_id(self.order_id());
        let mut response = (status, axum::Json(envelope)).into_response();
        if let Some(seconds) = retry_after_seconds(&self, status) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
