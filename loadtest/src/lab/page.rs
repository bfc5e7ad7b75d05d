//! The lab's page and the files that it names. They are in `web/`, part of the program, and the same as the service's.

use axum::extract::Path;
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chrono_tz::Tz;
use include_dir::{Dir, include_dir};

use super::refusal::Refusal;

static WEB: Dir = include_dir!("$CARGO_MANIFEST_DIR/../web");

/// Files and the API of the page's own origin, and nothing else: <https://www.w3.org/TR/CSP3/>.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The page; `zone` is that of the service's date-times.
pub fn lab(zone: Tz) -> Result<Response, Refusal> {
    let page = WEB
        .get_file("lab.html")
        .and_then(|file| file.contents_utf8());
    let page = page.ok_or_else(Refusal::no_route)?;
    let zone = zone.name();
    let root = format!("<html lang=\"en\" data-lab=\"true\" data-zone=\"{zone}\">");
    let page = page.replacen("<html lang=\"en\">", &root, 1);
    Ok(file("text/html; charset=utf-8", page))
}

/// A file of the page.
pub async fn asset(Path(name): Path<String>) -> Result<Response, Refusal> {
    let kind = match name.rsplit_once('.').map(|(_, kind)| kind) {
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => return Err(Refusal::no_route()),
    };
    let found = WEB.get_file(&name).ok_or_else(Refusal::no_route)?;
    Ok(file(kind, found.contents()))
}

/// The reply at an address without a route, as the service's: a page for a browser that opens it.
pub async fn not_found(headers: HeaderMap) -> Response {
    let accepted = headers.get(ACCEPT).and_then(|types| types.to_str().ok());
    let page = WEB.get_file("not-found.html");
    match page {
        Some(page) if accepted.unwrap_or_default().contains("text/html") => {
            let kind = [(CONTENT_TYPE, "text/html; charset=utf-8")];
            (StatusCode::NOT_FOUND, kind, page.contents()).into_response()
        }
        _ => Refusal::no_route().into_response(),
    }
}

fn file(kind: &'static str, text: impl IntoResponse) -> Response {
    let headers = [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, text).into_response()
}
