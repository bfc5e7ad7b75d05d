//! Why a request of the lab is refused, as a reply in the service's envelope.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Why nothing was done: the HTTP status, a code for programs, a text for people.
pub struct Refusal(StatusCode, &'static str, String);

impl Refusal {
    pub fn new(code: &'static str, text: impl ToString) -> Self {
        Self(StatusCode::OK, code, text.to_string())
    }

    /// The lab could not do what it was asked to.
    pub fn failed(text: impl ToString) -> Self {
        Self::new("LAB_FAULT", text)
    }

    pub fn run_under_way() -> Self {
        let text = "a run is under way; wait for its end, or stop it";
        Self::new("RUN_UNDER_WAY", text)
    }

    /// See [`hot_key`](crate::shop_cache::hot_key).
    pub fn hot_key() -> Self {
        Self::failed("a hot key is being read, for some ten seconds; wait for its end")
    }

    pub fn no_route() -> Self {
        Self(
            StatusCode::NOT_FOUND,
            "NOT_FOUND",
            "no such route".to_owned(),
        )
    }

    pub fn no_run() -> Self {
        Self::new(
            "RUN_NOT_FOUND",
            "no such run; only the last ones are kept, as long as the lab lives",
        )
    }

    pub fn forbidden() -> Self {
        let text = "x-admin-token is missing or wrong".to_owned();
        Self(StatusCode::FORBIDDEN, "FORBIDDEN", text)
    }

    pub fn bad(text: impl ToString) -> Self {
        Self(
            StatusCode::BAD_REQUEST,
            "INVALID_PARAMETER",
            text.to_string(),
        )
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, code, text) = self;
        let body = json!({"success": false, "errorMsg": text, "code": code});
        (status, Json(body)).into_response()
    }
}
