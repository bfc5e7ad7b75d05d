//! The reply envelope: `{"success","errorMsg"?,"data"?,"total"?,"code"?,"orderId"?}`. Absent values are omitted, never
//! `null`. Every [`Error`] is answered in it, too.

use axum::Json;
use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::error::Error;

/// Seconds after which a client is told to retry a 503.
const RETRY_AFTER_SECONDS: u64 = 1;

/// A handler's usual result.
pub type Reply<T> = Result<Success<T>, Error>;

/// The JSON body of every reply, success or failure.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope<T: Serialize = ()> {
    success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_msg: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// The order id as a string: ids pass 2^53, which a JavaScript number cannot hold exactly.
    #[serde(skip_serializing_if = "Option::is_none")]
    order_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

impl Envelope<i64> {
    /// A failure with its stable code and a text for people.
    pub fn failure(code: &'static str, message: String) -> Self {
        Envelope { error_msg: Some(message), code: Some(code), ..Envelope::default() }
    }

    /// Adds the id of the order that the failure is about, as a number and as a string.
    pub fn with_order_id(self, id: Option<i64>) -> Self {
        Envelope { data: id, order_id: id.map(|id| id.to_string()), ..self }
    }

    /// Adds the request's id, so that a user can point an operator to the log.
    pub fn with_request_id(self, id: &str) -> Self {
        Envelope { request_id: Some(id.to_owned()), ..self }
    }
}

/// A success with the envelope around `data`: 200, or 202 while an order is pending.
#[derive(Debug)]
pub struct Success<T> {
    data: Option<T>,
    order_id: Option<String>,
    /// The order is admitted and not committed yet.
    pending: bool,
}

/// Success without data.
pub fn done() -> Success<()> {
    Success { data: None, order_id: None, pending: false }
}

/// Success with `data`.
pub fn data<T: Serialize>(data: T) -> Success<T> {
    Success { data: Some(data), order_id: None, pending: false }
}

/// Success with `data` where there is any.
pub fn maybe<T: Serialize>(data: Option<T>) -> Success<T> {
    Success { data, order_id: None, pending: false }
}

/// Success with an order id, as a number and, exactly, as a string.
pub fn order_id(id: i64) -> Success<i64> {
    Success { data: Some(id), order_id: Some(id.to_string()), pending: false }
}

/// Success with the id of an order that is admitted and not committed yet: 202, `PENDING`.
pub fn pending_order(id: i64) -> Success<i64> {
    Success { data: Some(id), order_id: Some(id.to_string()), pending: true }
}

impl<T: Serialize> Success<T> {
    /// The body, for a reply that is sent many times.
    pub fn to_bytes(self) -> Bytes {
        // Our own types always have a JSON form: no map with keys that are not text.
        serde_json::to_vec(&self.envelope()).unwrap_or_default().into()
    }

    fn envelope(self) -> Envelope<T> {
        Envelope {
            success: true,
            error_msg: None,
            data: self.data,
            code: self.pending.then_some("PENDING"),
            order_id: self.order_id,
            request_id: None,
        }
    }
}

impl<T: Serialize> IntoResponse for Success<T> {
    fn into_response(self) -> Response {
        let status = if self.pending { StatusCode::ACCEPTED } else { StatusCode::OK };
        (status, Json(self.envelope())).into_response()
    }
}

/// A reply whose body was made by [`Success::to_bytes`].
pub fn json(body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
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
        if let Error::Internal(detail) | Error::RowRefused(detail) = &self {
            tracing::error!(%detail, "internal error");
        }
        let status =
            StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let envelope = Envelope::failure(self.code(), self.to_string());
        let envelope = envelope.with_order_id(self.order_id());
        let mut response = (status, Json(envelope)).into_response();
        if let Some(seconds) = retry_after_seconds(&self, status) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
