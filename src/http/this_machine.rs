//! Whether a request comes from the lab's page in a browser on this machine, which may start runs without the
//! administrator's token: the first minute should not begin with a search for a secret.
//!
//! Being on the loopback is not enough, since any web page that is open in that browser is, too. All of this must hold:
//!
//! - The connection comes from a loopback address. A proxy on this machine, as of `./dev up`, may stand in between, if
//!   every address in its `x-forwarded-for` is a loopback address, too. Any other sign of a proxy refuses: a tunnel or a
//!   load balancer on this machine may bring strangers.
//! - `Host` is `localhost` or a loopback address: not a name that an attacker lets resolve to 127.0.0.1 (DNS rebinding).
//! - The header [`PAGE`] is there, which a page of another origin may send only after a preflight, and those are refused;
//!   and neither `Origin` nor `Sec-Fetch-Site` name another origin (cross-site request forgery).
//!
//! What remains: a load balancer that passes TCP through on this machine leaves no sign of its clients. A server behind
//! one must not run with `--lab`, which shows sign-in codes, too.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::header::{FORWARDED, HOST, ORIGIN, VIA};
use axum::http::uri::Authority;
use axum::http::{Extensions, HeaderMap};
use axum::middleware::Next;
use axum::response::Response;

use super::auth::{ADMIN_TOKEN, AdminToken, require_admin};
use super::extract::Peer;
use crate::error::Error;

/// The header that the lab's page sends with each of its requests.
pub const PAGE: &str = "x-lab-page";

/// Further headers of proxies.
const OTHER_PROXIES: [&str; 4] =
    ["x-real-ip", "x-forwarded-host", "x-forwarded-server", "cf-connecting-ip"];

/// Layer: requires the administrator's token, except of the lab's page in a browser on this machine.
///
/// # Errors
/// Those of [`require_admin`].
pub async fn require_admin_or_this_machine(
    State(admin): State<AdminToken>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    // A wrong token is refused all the same, so that it is noticed.
    let has_token = request.headers().contains_key(ADMIN_TOKEN);
    if !has_token && is_this_machine(request.extensions(), request.headers()) {
        return Ok(next.run(request).await);
    }
    require_admin(State(admin), request, next).await
}

/// Whether the request comes from the lab's page in a browser on this machine.
pub fn is_this_machine(extensions: &Extensions, headers: &HeaderMap) -> bool {
    let from = extensions.get::<Peer>().map(|Peer(peer)| *peer);
    from.is_some_and(is_loopback) && says_this_machine(headers)
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

fn says_this_machine(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or(""));
    let Some(host) = text(HOST.as_str()) else { return false };
    let forwarded = headers.get_all("x-forwarded-for").iter();
    let mut forwarded = forwarded.flat_map(|line| line.to_str().unwrap_or("?").split(','));
    let proxies = OTHER_PROXIES.into_iter().chain([FORWARDED.as_str(), VIA.as_str()]);
    text(PAGE).is_some()
        && headers.get_all(HOST).iter().count() == 1
        && host.parse::<Authority>().is_ok_and(|host| is_local_name(host.host()))
        && forwarded.all(|entry| entry.trim().parse().is_ok_and(is_loopback))
        && proxies.into_iter().all(|name| !headers.contains_key(name))
        && text("sec-fetch-site").is_none_or(|site| site == "same-origin")
        && text(ORIGIN.as_str())
            .is_none_or(|origin| origin.split_once("://").is_some_and(|(_, name)| name == host))
}

fn is_local_name(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn allowed(peer: &str, headers: &[(&'static str, &'static str)]) -> bool {
        let mut extensions = Extensions::new();
        extensions.insert(Peer(peer.parse().unwrap()));
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        is_this_machine(&extensions, &all)
    }

    const BROWSER: [(&str, &str); 4] = [
        ("host", "127.0.0.1:8080"),
        ("x-lab-page", "1"),
        ("origin", "http://127.0.0.1:8080"),
        ("sec-fetch-site", "same-origin"),
    ];

    fn with(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        let kept = BROWSER.into_iter().filter(|(name, _)| more.iter().all(|(new, _)| new != name));
        kept.chain(more.iter().copied().filter(|(_, value)| !value.is_empty())).collect()
    }

    #[test]
    fn the_page_on_this_machine_needs_no_token() {
        for peer in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(allowed(peer, &BROWSER), "{peer}");
        }
        for more in [
            &[("host", "localhost:8080"), ("origin", "http://localhost:8080")][..],
            &[("host", "[::1]:8080"), ("origin", "http://[::1]:8080")],
            &[("host", "localhost"), ("origin", "")],
            // As nginx of the development stack forwards it.
            &[("x-forwarded-for", "127.0.0.1"), ("x-forwarded-proto", "http")],
        ] {
            assert!(allowed("127.0.0.1", &with(more)), "{more:?}");
        }
    }

    #[test]
    fn nobody_else_goes_without() {
        for peer in ["203.0.113.9", "172.18.0.4", "::ffff:10.0.0.1"] {
            assert!(!allowed(peer, &BROWSER), "{peer}");
        }
        for (why, more) in [
            ("another machine behind a proxy", &[("x-forwarded-for", "203.0.113.9")][..]),
            ("an address put before it", &[("x-forwarded-for", "203.0.113.9, 127.0.0.1")]),
            ("an address put behind it", &[("x-forwarded-for", "127.0.0.1, 203.0.113.9")]),
            ("no address", &[("x-forwarded-for", "unknown")]),
            ("a proxy", &[("forwarded", "for=127.0.0.1")]),
            ("a proxy", &[("via", "1.1 proxy")]),
            ("a tunnel", &[("x-forwarded-host", "lab.example.org")]),
            ("a rebound name", &[("host", "evil.example:8080"), ("origin", "")]),
            ("a name like ours", &[("host", "localhost.evil.example"), ("origin", "")]),
            ("a user in front", &[("host", "127.0.0.1@evil.example"), ("origin", "")]),
            ("two hosts", &[("host", "127.0.0.1:8080"), ("host", "evil.example")]),
            ("no host", &[("host", "")]),
            ("another site's page", &[("origin", "https://evil.example")]),
            ("another port's page", &[("origin", "http://127.0.0.1:9999")]),
            ("a page of no origin", &[("origin", "null")]),
            ("another site's page", &[("sec-fetch-site", "cross-site"), ("origin", "")]),
            ("another port's page", &[("sec-fetch-site", "same-site"), ("origin", "")]),
            ("a form, or a link", &[("x-lab-page", "")]),
        ] {
            assert!(!allowed("127.0.0.1", &with(more)), "{why}: {more:?}");
        }
    }
}
