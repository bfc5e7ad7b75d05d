//! The API's document, and the pages that show it. The document is generated from the handlers: their
//! `#[utoipa::path]` says what is their own, [`crate::http::docs`] adds what all have in common. A test holds it
//! equal to the route table, and its text to `docs/openapi.json`.
//!
//! Swagger UI is served from the binary, so the pages work without a network. A new handler gets its line in
//! `paths(…)` below; its schemas come along by themselves.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use axum::extract::Path;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Redirect, Response};
use bytes::Bytes;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_swagger_ui::Config;

use crate::error::Error;
use crate::http::docs;
use crate::http::page::POLICY;
use crate::{health, lab, metrics, order, shop, user, voucher};

/// How long a browser may keep a file of the pages, and the document: neither changes while an instance runs.
const CACHING: &str = "public, max-age=300";

#[derive(OpenApi)]
#[openapi(
    info(title = "seckill", license(name = "MIT")),
    servers((url = "/", description = "this server"), (url = "/api", description = "the same, behind nginx")),
    tags(
        (name = "user", description = "Signing in by phone and code, and who one is"),
        (name = "shop", description = "Shops: by id, type, name and distance"),
        (name = "voucher", description = "Vouchers and flash sales: publishing and listing"),
        (name = "order", description = "Buying, looking up, paying and cancelling"),
        (name = "lab", description = "Runs of two strategies side by side, and faults: only on a server started with \
            `--lab`"),
        (name = "service", description = "For operators. These answer without the envelope."),
    ),
    paths(
        user::send_code, user::login, user::logout, user::me, user::get,
        shop::get, shop::of_type, shop::of_name, shop::types, shop::create, shop::update,
        voucher::list, voucher::publish, voucher::publish_seckill, voucher::add_stock,
        order::buy, order::buy_by_body, order::get, order::mine, order::pay, order::cancel,
        lab::about, lab::runs, lab::start, lab::run, lab::stop, lab::raw, lab::report, lab::fault, lab::kill,
        user::sent_code, health::live, health::ready, metrics::get, document,
    ),
    modifiers(&Frame),
)]
struct Api;

/// What is said of the API as a whole.
struct Frame;

impl Modify for Frame {
    fn modify(&self, api: &mut utoipa::openapi::OpenApi) {
        api.info.description = Some(include_str!("openapi.md").to_owned());
        let components = api.components.get_or_insert_default();
        for (name, text) in [
            (
                docs::SESSION,
                "A session's token, as `POST /user/login` gives it; `Bearer ` may stand before it.",
            ),
            (
                docs::ADMIN,
                "The server's `ADMIN_TOKEN`. Where none is set, every admin write is refused.",
            ),
        ] {
            let key = ApiKey::Header(ApiKeyValue::with_description(name, text));
            components.add_security_scheme(name, SecurityScheme::ApiKey(key));
        }
    }
}

/// The finished document as pretty JSON, which ends with a line feed.
pub fn text() -> Result<String, serde_json::Error> {
    let document = docs::complete(serde_json::to_value(Api::openapi())?);
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// This document.
#[utoipa::path(
    get, path = "/docs/openapi.json", tag = "service",
    responses((status = 200, body = Object, description = "OpenAPI 3.1.")),
)]
pub async fn document() -> Response {
    static TEXT: LazyLock<Result<Bytes, Error>> = LazyLock::new(|| {
        text()
            .map(Bytes::from)
            .map_err(|fault| Error::Internal(format!("the API's document: {fault}")))
    });
    match &*TEXT {
        Ok(text) => served("application/json", text.clone()),
        Err(fault) => fault.clone().into_response(),
    }
}

/// `GET /docs`: to the pages, by a relative address, since a proxy may have put something before ours.
pub async fn page() -> impl IntoResponse {
    Redirect::temporary("docs/")
}

/// `GET /docs/`: the page.
pub async fn index() -> Response {
    file(Path("index.html".to_owned())).await
}

/// `GET /docs/{file}`: what the page is made of.
pub async fn file(Path(name): Path<String>) -> Response {
    static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
        let config = Config::from("openapi.json").use_base_layout();
        // Else it would ask a server of its makers' whether the document is valid.
        let config = config.validator_url("none").try_it_out_enabled(true);
        Arc::new(config.display_request_duration(true).default_models_expand_depth(0))
    });
    match utoipa_swagger_ui::serve(&name, CONFIG.clone()) {
        Ok(Some(found)) => {
            let bytes = match found.bytes {
                Cow::Borrowed(bytes) => Bytes::from_static(bytes),
                Cow::Owned(bytes) => bytes.into(),
            };
            served(&found.content_type, bytes)
        }
        Ok(None) => Error::NotFound.into_response(),
        Err(fault) => Error::Internal(format!("Swagger UI: {fault}")).into_response(),
    }
}

fn served(kind: &str, bytes: Bytes) -> Response {
    let mut response = bytes.into_response();
    let headers = response.headers_mut();
    if let Ok(kind) = HeaderValue::from_str(kind) {
        headers.insert(header::CONTENT_TYPE, kind);
    }
    let fixed: [(HeaderName, &'static str); 4] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, CACHING),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
