//! Web pages: the shop front at `/`, the model of the strategies at `/learn`, the lab at `/lab` (only with `--lab`), the
//! API at `/docs/`, and their files under `/assets/`. All of it is in `web/`, written by hand and part of the binary:
//! nothing is built, fetched from elsewhere, or read from disk at
//! run time.
//!
//! Every reply has a content security policy (see [`POLICY`]), so that a title or a name cannot run as script even if a
//! page should ever insert it as markup. No text of a request or of the database is put into a page here.

use std::io::Write;
use std::sync::LazyLock;

use axum::Router;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use xxhash_rust::xxh3::xxh3_64;

use super::extract::Path;
use crate::clock::Zone;
use crate::error::Error;

/// The content security policy: a page may use files and the API of its own origin. No inline script or style, no frames
/// around it, no other host. <https://www.w3.org/TR/CSP3/>
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; \
    base-uri 'none'";

const HTML: &str = "text/html; charset=utf-8";

/// A file under `/assets/`: name, media type and text.
type Asset = (&'static str, &'static str, &'static str);

/// The files of the shop's page.
const SHOP: [Asset; 11] = [
    ("mark.svg", "image/svg+xml", include_str!("../../web/mark.svg")),
    ("look.css", "text/css; charset=utf-8", include_str!("../../web/look.css")),
    script("words.js", include_str!("../../web/words.js")),
    script("page.js", include_str!("../../web/page.js")),
    script("account.js", include_str!("../../web/account.js")),
    script("route.js", include_str!("../../web/route.js")),
    script("orders.js", include_str!("../../web/orders.js")),
    script("purchase.js", include_str!("../../web/purchase.js")),
    script("shops.js", include_str!("../../web/shops.js")),
    script("sale.js", include_str!("../../web/sale.js")),
    script("shop.js", include_str!("../../web/shop.js")),
];

/// The page with the model of the strategies. It also works opened as a file, or from any static host, so it names its
/// files as they lie beside it; [`served_files`] changes that.
const LEARN_PAGE: &str = include_str!("../../web/learn.html");

/// The further files of that page.
const LEARN: [Asset; 11] = [
    ("learn.css", "text/css; charset=utf-8", include_str!("../../web/learn.css")),
    script("learn-words.js", include_str!("../../web/learn-words.js")),
    script("learn-ladder.js", include_str!("../../web/learn-ladder.js")),
    script("learn-steps.js", include_str!("../../web/learn-steps.js")),
    script("learn-strategies.js", include_str!("../../web/learn-strategies.js")),
    script("learn-model.js", include_str!("../../web/learn-model.js")),
    script("learn-levels.js", include_str!("../../web/learn-levels.js")),
    script("learn-replay.js", include_str!("../../web/learn-replay.js")),
    script("learn-records.js", include_str!("../../web/learn-records.js")),
    script("learn-board.js", include_str!("../../web/learn-board.js")),
    script("learn.js", include_str!("../../web/learn.js")),
];

/// The page of the API's document.
const API_PAGE: &str = include_str!("../../web/api.html");

/// The further files of the API's page.
const API: [Asset; 3] = [
    ("api.css", "text/css; charset=utf-8", include_str!("../../web/api.css")),
    script("api_schema.js", include_str!("../../web/api_schema.js")),
    script("api.js", include_str!("../../web/api.js")),
];

const LAB_PAGE: &str = include_str!("../../web/lab.html");

/// The further files of the lab's page.
const LAB: [Asset; 11] = [
    script("plots.js", include_str!("../../web/plots.js")),
    script("story.js", include_str!("../../web/story.js")),
    script("scene.js", include_str!("../../web/scene.js")),
    script("stepper.js", include_str!("../../web/stepper.js")),
    script("people.js", include_str!("../../web/people.js")),
    script("run.js", include_str!("../../web/run.js")),
    script("diagram.js", include_str!("../../web/diagram.js")),
    script("lab-words.js", include_str!("../../web/lab-words.js")),
    script("missions.js", include_str!("../../web/missions.js")),
    script("session-story.js", include_str!("../../web/session-story.js")),
    script("lab.js", include_str!("../../web/lab.js")),
];

const fn script(name: &'static str, text: &'static str) -> Asset {
    (name, "text/javascript; charset=utf-8", text)
}

/// A file as it is sent, plain or compressed.
#[derive(Clone)]
pub struct File {
    kind: &'static str,
    plain: Body,
    gzip: Body,
}

/// One encoding of a file, with its entity tag.
#[derive(Clone)]
struct Body {
    bytes: Bytes,
    tag: HeaderValue,
}

impl File {
    /// A file of this media type; compressed here, once, and not for each request.
    pub fn new(kind: &'static str, text: Bytes) -> Self {
        let gzip = gzip(&text).map_or_else(|| text.clone(), Bytes::from);
        File { kind, plain: Body::new(text), gzip: Body::new(gzip) }
    }

    /// The file, or 304 where the browser has it. The browser revalidates each time (`no-cache`), so that the scripts of an
    /// old version never talk to a new server.
    pub fn reply(&self, headers: &HeaderMap) -> Response {
        let fixed = HeaderValue::from_static;
        let zipped = accepts_gzip(headers) && self.gzip.bytes.len() < self.plain.bytes.len();
        let body = if zipped { &self.gzip } else { &self.plain };
        let common = [
            (ETAG, body.tag.clone()),
            (CACHE_CONTROL, fixed("no-cache")),
            (VARY, fixed("accept-encoding")),
            (CONTENT_SECURITY_POLICY, fixed(POLICY)),
            (X_CONTENT_TYPE_OPTIONS, fixed("nosniff")),
            (REFERRER_POLICY, fixed("no-referrer")),
        ];
        if headers.get(IF_NONE_MATCH) == Some(&body.tag) {
            return (StatusCode::NOT_MODIFIED, common).into_response();
        }
        let mut reply = (common, [(CONTENT_TYPE, self.kind)], body.bytes.clone()).into_response();
        if zipped {
            reply.headers_mut().insert(CONTENT_ENCODING, fixed("gzip"));
        }
        reply
    }
}

impl Body {
    fn new(bytes: Bytes) -> Self {
        let tag = HeaderValue::try_from(format!("\"{:016x}\"", xxh3_64(&bytes)));
        // Quotes and hexadecimal digits are always a valid header.
        Body { bytes, tag: tag.unwrap_or(HeaderValue::from_static("\"\"")) }
    }
}

fn gzip(text: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing into memory does not fail.
    encoder.write_all(text).ok()?;
    encoder.finish().ok()
}

/// The routes of the pages. `zone` is the zone of the API's date-times.
pub fn routes(lab: bool, zone: Zone) -> Router {
    let page = |text: &str| {
        let page = File::new(HTML, with_settings(text, lab, zone).into());
        get(async move |headers: HeaderMap| page.reply(&headers))
    };
    let routes = Router::new()
        .route("/", page(include_str!("../../web/index.html")))
        .route("/learn", page(&served_files(LEARN_PAGE)))
        // By a relative address, since a proxy may have added a prefix to the path.
        .route("/docs", get(async || Redirect::temporary("docs/")))
        .route("/docs/", page(API_PAGE))
        .route("/assets/{file}", get(asset));
    if lab { routes.route("/lab", page(LAB_PAGE)) } else { routes }
}

async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, Error> {
    static FILES: LazyLock<Vec<(&str, File)>> = LazyLock::new(|| {
        let file = |(name, kind, text): (_, _, &'static str)| {
            (name, File::new(kind, Bytes::from_static(text.as_bytes())))
        };
        SHOP.into_iter().chain(LEARN).chain(API).chain(LAB).map(file).collect()
    });
    let (_, file) = FILES.iter().find(|(known, _)| *known == name).ok_or(Error::NotFound)?;
    Ok(file.reply(&headers))
}

/// The page with its files where they are served, which it names as lying beside it.
fn served_files(page: &str) -> String {
    page.replace("=\"./", "=\"/assets/")
}

/// The page with the server's settings in its root element.
fn with_settings(page: &str, lab: bool, zone: Zone) -> String {
    let root = format!("<html lang=\"en\" data-lab=\"{lab}\" data-zone=\"{}\">", zone.0.name());
    page.replacen("<html lang=\"en\">", &root, 1)
}

/// Whether the client takes gzip: it names it without `q=0`. RFC 9110, section 12.5.3.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let refused = parts.any(|weight| {
            weight.strip_prefix("q=").and_then(|q| q.parse::<f32>().ok()).is_some_and(|q| q <= 0.0)
        });
        named && !refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> impl Iterator<Item = String> {
        let pages = [include_str!("../../web/index.html"), LEARN_PAGE, API_PAGE, LAB_PAGE];
        pages.into_iter().filter(|page| !page.is_empty()).map(served_files)
    }

    fn assets() -> impl Iterator<Item = Asset> {
        SHOP.into_iter().chain(LEARN).chain(API).chain(LAB)
    }

    /// Every text between `mark` and the next quotation mark.
    fn quoted<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = &'a str> {
        text.split(mark).skip(1).filter_map(|rest| rest.split('"').next())
    }

    #[test]
    fn a_page_has_the_servers_settings() {
        let zone = Zone(chrono_tz::Asia::Shanghai);
        for page in pages() {
            let page = with_settings(&page, true, zone);
            assert!(page.contains("data-lab=\"true\" data-zone=\"Asia/Shanghai\""), "{page}");
        }
    }

    #[test]
    fn a_page_names_only_files_that_exist_and_nothing_its_policy_forbids() {
        for page in pages() {
            let mut files = 0;
            for file in quoted(&page, "\"/assets/") {
                assert!(assets().any(|(name, ..)| name == file), "{file}");
                files += 1;
            }
            assert!(files > 3, "the reader sees the page's files");
            for forbidden in [" style=", "<style", " onclick=", "<script>", "http://", "https://"] {
                assert!(!page.contains(forbidden), "{forbidden}");
            }
        }
    }

    #[test]
    fn every_text_key_exists() {
        let scripts = assets().filter(|(name, ..)| name.ends_with(".js"));
        let all: String = scripts.map(|(.., text)| text.to_owned()).chain(pages()).collect();
        let used = all.split("t('").skip(1).filter_map(|rest| rest.split_once('\''));
        // A composed key, such as t(`code.${…}`), is not written in these quotes.
        let used = used.map(|(key, _)| key).chain(quoted(&all, "data-t=\""));
        // Not the argument of closest('.lane').
        let is_key = |key: &&str| key.contains('.') && !key.starts_with('.');
        let keys: Vec<&str> = used.filter(is_key).collect();
        assert!(keys.len() > 50, "the reader sees the scripts' texts");
        for key in keys {
            assert!(all.contains(&format!("'{key}': ['")), "{key}");
        }
    }

    #[test]
    fn scripts_never_turn_text_into_markup() {
        for (name, kind, text) in assets() {
            for sink in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
            {
                let is_script = kind.starts_with("text/javascript");
                assert!(!is_script || !text.contains(sink), "{name}: {sink}");
            }
        }
    }
}
