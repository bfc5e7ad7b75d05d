//! The API's document (OpenAPI), which the page at `/docs/` shows. It is generated from the handlers: their
//! `#[utoipa::path]` says what is particular to each, [`crate::http::docs`] adds what all have in common, and
//! [`crate::router`] collects them. A test compares the text with `docs/openapi.json`.

use std::sync::OnceLock;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use utoipa::OpenApi;

use crate::error::Error;
use crate::http::docs;
use crate::http::page::File;

#[derive(OpenApi)]
#[openapi(
    info(title = "seckill", license(name = "MIT"), description = include_str!("openapi.md")),
    servers((url = "/", description = "this server"), (url = "/api", description = "the same, behind nginx")),
    tags(
        (name = "user", description = "Sign-in by phone and code, and the signed-in user"),
        (name = "shop", description = "Shops: by id, type, name and distance"),
        (name = "voucher", description = "Vouchers and flash sales: publishing and listing"),
        (name = "order", description = "Buying, looking up, paying and cancelling"),
        (name = "lab", description = "For trying and learning: only on a server started with `--lab`"),
        (name = "service", description = "For operators. These answer without the envelope."),
    ),
)]
struct Api;

/// The API's document, made from these operations at its first request.
#[derive(Clone, Copy)]
pub struct ApiDocument(pub fn() -> utoipa::openapi::OpenApi);

impl ApiDocument {
    /// The document as pretty JSON, which ends with a line feed.
    pub fn text(self) -> Result<String, serde_json::Error> {
        let mut document = Api::openapi().merge_from((self.0)());
        docs::complete(&mut document);
        Ok(document.to_pretty_json()? + "\n")
    }
}

/// This document.
#[utoipa::path(
    get, path = "/docs/openapi.json", tag = "service",
    responses((status = 200, body = Object, description = "OpenAPI 3.1.")),
)]
pub async fn document(
    State(document): State<ApiDocument>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    static FILE: OnceLock<Result<File, Error>> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let text = document
            .text()
            .map(|text| File::new("application/json", text.into()));
        text.map_err(|error| Error::Internal(format!("the API's document: {error}")))
    });
    Ok(file.as_ref().map_err(Error::clone)?.reply(&headers))
}
