//! Web pages: the shop front at `/`, the model of the strategies at `/learn`, the API at `/docs/`, and their files under
//! `/assets/`. The lab's page is served by `loadtest lab`; with `--lab` the others lead to it. All of it is in `web/`, written
//! by hand and part of the binary: nothing is built, fetched from elsewhere, or read from disk at run time.
//!
//! Every reply has a content security policy (see [`POLICY`]), so that a title or a name cannot run as script even if a
//! page should ever insert it as markup. No text of the database is put into a page here, and of a request only its host,
//! after a check. The pages that stand for an error have theirs in themselves, as nginx sends them, too.

use axum::Router;
use axum::body::Bytes;
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HOST, IF_NONE_MATCH,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use include_dir::{Dir, include_dir};
use tower_http::compression::CompressionLayer;
use xxhash_rust::xxh3::xxh3_64;

use super::extract::Path;
use crate::clock::Zone;
use crate::error::Error;

/// The content security policy: a page may use files and the API of its own origin. No inline script or style, no frames
/// around it, no other host. <https://www.w3.org/TR/CSP3/>
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; \
    base-uri 'none'";

static WEB: Dir = include_dir!("$CARGO_MANIFEST_DIR/web");

/// The pages: route and file. The model at `/learn` also works if it is opened as a file, or from any static host. So it names
/// its files by paths relative to its folder, which [`served_files`] replaces.
const PAGES: [(&str, &str); 3] = [
    ("/", "index.html"),
    ("/learn", "learn.html"),
    ("/docs/", "api.html"),
];

/// The picture of `/learn`, for sites on which a link to it is shared.
const PICTURE: (&str, &[u8]) = ("learn.png", include_bytes!("../../docs/learn.png"));

const HTML: &str = "text/html; charset=utf-8";

/// A file as it is sent.
#[derive(Clone)]
pub struct File {
    kind: &'static str,
    text: Bytes,
    tag: HeaderValue,
}

impl File {
    /// A file of this media type.
    pub fn new(kind: &'static str, text: Bytes) -> Self {
        // Weak, as it is sent compressed, too. Quotes and hexadecimal digits are always a valid header.
        let tag = HeaderValue::try_from(format!("W/\"{:016x}\"", xxh3_64(&text)));
        File {
            kind,
            text,
            tag: tag.unwrap_or(HeaderValue::from_static("W/\"\"")),
        }
    }

    /// The file, or 304 where the browser has it. The browser revalidates each time (`no-cache`), so that the scripts of an
    /// old version never talk to a new server.
    pub fn reply(&self, headers: &HeaderMap) -> Response {
        let fixed = HeaderValue::from_static;
        let common = [
            (ETAG, self.tag.clone()),
            (CACHE_CONTROL, fixed("no-cache")),
            (CONTENT_SECURITY_POLICY, fixed(POLICY)),
            (X_CONTENT_TYPE_OPTIONS, fixed("nosniff")),
            (REFERRER_POLICY, fixed("no-referrer")),
        ];
        if headers.get(IF_NONE_MATCH) == Some(&self.tag) {
            return (StatusCode::NOT_MODIFIED, common).into_response();
        }
        (common, [(CONTENT_TYPE, self.kind)], self.text.clone()).into_response()
    }
}

/// The routes of the pages. `zone` is the zone of the API's date-times.
pub fn routes(lab: bool, zone: Zone) -> Router {
    let mut routes = Router::new()
        // By a relative address, since a proxy may have added a prefix to the path.
        .route("/docs", get(async || Redirect::temporary("docs/")))
        .route("/assets/{file}", get(asset));
    for (route, file) in PAGES {
        let text = with_settings(&served_files(text_of(file)), lab, zone);
        if route == "/learn" {
            routes = routes.route(
                route,
                get(async move |headers: HeaderMap| {
                    let text = with_picture(&text, &headers);
                    File::new(HTML, text.into()).reply(&headers)
                }),
            );
            continue;
        }
        let page = File::new(HTML, text.into());
        routes = routes.route(
            route,
            get(async move |headers: HeaderMap| page.reply(&headers)),
        );
    }
    routes.layer(CompressionLayer::new())
}

/// The reply at an address without a route: a page for a browser that opens it, and the envelope for all others. nginx does the
/// same.
pub async fn not_found(method: Method, headers: HeaderMap) -> Response {
    let accepted = headers.get(ACCEPT).and_then(|types| types.to_str().ok());
    if method != Method::GET || !accepted.unwrap_or_default().contains("text/html") {
        return Error::NotFound.into_response();
    }
    let headers = [
        (CONTENT_TYPE, HTML),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (StatusCode::NOT_FOUND, headers, text_of("not-found.html")).into_response()
}

fn text_of(file: &str) -> &'static str {
    WEB.get_file(file)
        .and_then(|file| file.contents_utf8())
        .unwrap_or_default()
}

async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, Error> {
    let kind = media_type(&name).ok_or(Error::NotFound)?;
    let contents = if name == PICTURE.0 {
        PICTURE.1
    } else {
        WEB.get_file(&name).ok_or(Error::NotFound)?.contents()
    };
    Ok(File::new(kind, Bytes::from_static(contents)).reply(&headers))
}

fn media_type(name: &str) -> Option<&'static str> {
    match name.rsplit_once('.')?.1 {
        "js" => Some("text/javascript; charset=utf-8"),
        "css" => Some("text/css; charset=utf-8"),
        "svg" => Some("image/svg+xml"),
        "png" => Some("image/png"),
        _ => None,
    }
}

/// The page with the paths under which its files are served, in place of paths relative to its folder.
fn served_files(page: &str) -> String {
    page.replace("=\"./", "=\"/assets/")
}

/// The page with the server's settings in its root element.
fn with_settings(page: &str, lab: bool, zone: Zone) -> String {
    let root = format!(
        "<html lang=\"en\" data-lab=\"{lab}\" data-zone=\"{}\">",
        zone.0.name()
    );
    page.replacen("<html lang=\"en\">", &root, 1)
}

/// The page with its picture, whose address must be absolute: it has the host by which the page was asked for. A page that was
/// asked for without a usable host has no picture.
fn with_picture(page: &str, headers: &HeaderMap) -> String {
    let Some(origin) = origin(headers) else {
        return page.to_owned();
    };
    let (name, _) = PICTURE;
    let picture =
        format!("</title>\n<meta property=\"og:image\" content=\"{origin}/assets/{name}\">");
    page.replacen("</title>", &picture, 1)
}

/// The scheme and the host by which a page was asked for. A proxy that ends TLS says so in `X-Forwarded-Proto`.
fn origin(headers: &HeaderMap) -> Option<String> {
    let host = headers.get(HOST)?.to_str().ok()?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    if !host.bytes().all(is_plain) {
        return None;
    }
    let is_https = headers
        .get("x-forwarded-proto")
        .is_some_and(|scheme| scheme == "https");
    let scheme = if is_https { "https" } else { "http" };
    Some(format!("{scheme}://{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> impl Iterator<Item = String> {
        let files = PAGES.into_iter().map(|(_, file)| file);
        files
            .chain(["lab.html"])
            .map(text_of)
            .inspect(|page| assert!(page.contains("<html"), "{page}"))
            .map(served_files)
    }

    /// The name and text of each script.
    fn scripts() -> impl Iterator<Item = (String, &'static str)> {
        let files = WEB
            .files()
            .map(|file| file.path().to_string_lossy().into_owned());
        files
            .filter(|name| name.ends_with(".js"))
            .map(|name| (name.clone(), text_of(&name)))
    }

    /// Every text between `mark` and the next quotation mark.
    fn quoted<'a>(text: &'a str, mark: &'a str) -> impl Iterator<Item = &'a str> {
        text.split(mark)
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
    }

    #[test]
    fn every_text_key_exists() {
        let all: String = scripts()
            .map(|(_, text)| text.to_owned())
            .chain(pages())
            .collect();
        let used = all
            .split("t('")
            .skip(1)
            .filter_map(|rest| rest.split_once('\''));
        // A composed key, such as t(`code.${…}`), is not written in these quotes.
        let used = used.map(|(key, _)| key).chain(quoted(&all, "data-t=\""));
        let keys: Vec<&str> = used
            // Not the argument of closest('.lane').
            .filter(|key| key.contains('.') && !key.starts_with('.'))
            .collect();
        assert!(keys.len() > 50, "the reader sees the scripts' texts");
        for key in keys {
            assert!(all.contains(&format!("'{key}': ['")), "{key}");
        }
    }

    #[test]
    fn the_address_of_a_picture_has_the_host_that_was_asked_for() {
        for (host, scheme, expected) in [
            ("sale.example:81", None, Some("http://sale.example:81")),
            ("sale.example", Some("https"), Some("https://sale.example")),
            ("[::1]:8080", Some("gopher"), Some("http://[::1]:8080")),
            ("a\"><script", None, None),
            ("a'b", None, None),
            ("a/b", None, None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static(host));
            if let Some(scheme) = scheme {
                headers.insert("x-forwarded-proto", HeaderValue::from_static(scheme));
            }
            assert_eq!(origin(&headers).as_deref(), expected, "{host}");
        }
        assert_eq!(origin(&HeaderMap::new()), None);
    }

    #[test]
    fn scripts_never_turn_text_into_markup() {
        assert!(scripts().count() > 30, "the reader sees them");
        for (name, text) in scripts() {
            for sink in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ] {
                assert!(!text.contains(sink), "{name}: {sink}");
            }
        }
    }
}
