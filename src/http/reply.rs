//! The reply envelope: `{"success","errorMsg"?,"data"?,"code"?,"orderId"?,"requestId"?}`. Absent values are omitted, never
//! `null`. Every [`Error`] is answered in it, too.

use std::sync::LazyLock;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::error::Error;

/// Seconds after which a client is told to retry a 503.
const RETRY_AFTER_SECONDS: u64 = 1;

/// A handler's usual result.
pub type Reply<T> = Result<Envelope<T>, Error>;

/// The JSON body of every reply. As a handler's result it is a success: 200, or 202 while an order is pending.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Envelope<T> {
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

/// Success without data.
pub fn done() -> Envelope<()> {
    maybe(None)
}

/// Success with `data`.
pub fn data<T>(data: T) -> Envelope<T> {
    maybe(Some(data))
}

/// Success with `data` where there is any.
pub fn maybe<T>(data: Option<T>) -> Envelope<T> {
    Envelope {
        success: true,
        error_msg: None,
        data,
        code: None,
        order_id: None,
        request_id: None,
    }
}

/// Success with an order id, as a number and, exactly, as a string.
pub fn order_id(id: i64) -> Envelope<i64> {
    Envelope {
        order_id: Some(id.to_string()),
        ..data(id)
    }
}

/// Success with the id of an order that is admitted and not committed yet: 202, `PENDING`.
pub fn pending_order(id: i64) -> Envelope<i64> {
    Envelope {
        code: Some("PENDING"),
        ..order_id(id)
    }
}

/// A failure with its stable code, a text for people, and the order that it is about.
pub fn failure(code: &'static str, message: String, order: Option<i64>) -> Envelope<i64> {
    let about = order.map_or(maybe(None), order_id);
    Envelope {
        success: false,
        error_msg: Some(message),
        code: Some(code),
        ..about
    }
}

impl<T: Serialize> Envelope<T> {
    /// Adds the request's id, so that a user can point an operator to the log.
    pub fn with_request_id(self, id: &str) -> Self {
        Envelope {
            request_id: Some(id.to_owned()),
            ..self
        }
    }

    /// The body, for a reply that is sent many times.
    pub fn to_bytes(&self) -> Bytes {
        // Our own types always have a JSON form: no map with keys that are not text.
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

impl<T: Serialize> IntoResponse for Envelope<T> {
    fn into_response(self) -> Response {
        let status = if self.code.is_some() {
            StatusCode::ACCEPTED
        } else {
            StatusCode::OK
        };
        let mut response = json(self.to_bytes());
        *response.status_mut() = status;
        response
    }
}

/// A reply whose body was made by [`Envelope::to_bytes`].
pub fn json(body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The body of the refusal that most buyers of a sale get.
static SOLD_OUT: LazyLock<Bytes> = LazyLock::new(|| body_of(&Error::SoldOut));

fn body_of(error: &Error) -> Bytes {
    failure(error.code(), error.to_string(), error.order_id()).to_bytes()
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        if let Error::Internal(detail) | Error::RowRefused(detail) = &self {
            tracing::error!(%detail, "internal error");
        }
        let status =
            StatusCode::from_u16(self.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = match &self {
            Error::SoldOut => SOLD_OUT.clone(),
            error => body_of(error),
        };
        let mut response = json(body);
        *response.status_mut() = status;
        let retry_after = match &self {
            Error::TooManyRequests {
                retry_after_seconds,
            } => Some(*retry_after_seconds),
            _ => (status == StatusCode::SERVICE_UNAVAILABLE).then_some(RETRY_AFTER_SECONDS),
        };
        if let Some(seconds) = retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
