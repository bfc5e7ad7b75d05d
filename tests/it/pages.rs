//! The web pages: what is served, when, and with which security policy.

use crate::support::api::get;
use crate::support::stack::Stack;

#[tokio::test]
async fn the_pages_have_a_strict_policy_and_are_cached() {
    let stack = Stack::start(1, &[]).await;
    let (status, headers, page) = get(stack.url(), "/").raw().await;
    assert_eq!(
        (status, &headers["content-type"]),
        (200, &"text/html; charset=utf-8".parse().unwrap())
    );
    let settings = "data-lab=\"false\" data-zone=\"Asia/Shanghai\"";
    assert!(page.contains(settings) && page.contains("/assets/shop.js"), "{page}");
    let tag = headers["etag"].to_str().unwrap().to_owned();
    for (path, kind) in [("/", "text/html"), ("/assets/shop.js", "text/javascript")] {
        let (_, headers, _) = get(stack.url(), path).raw().await;
        assert!(headers["content-type"].to_str().unwrap().starts_with(kind));
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers["x-content-type-options"], "nosniff");
    }
    let (status, headers, body) = get(stack.url(), "/").header("if-none-match", &tag).raw().await;
    assert_eq!((status, headers["etag"].to_str().unwrap(), body.as_str()), (304, &*tag, ""));
    let (status, headers, _) =
        get(stack.url(), "/").header("accept-encoding", "br, gzip").raw().await;
    assert_eq!((status, &headers["content-encoding"]), (200, &"gzip".parse().unwrap()));
    assert_eq!(headers["vary"], "accept-encoding");
    let refused = get(stack.url(), "/").header("accept-encoding", "gzip;q=0").raw().await;
    assert!(!refused.1.contains_key("content-encoding"));
    get(stack.url(), "/assets/no.js").send().await.refused(404, "NOT_FOUND");
    get(stack.url(), "/assets/..%2fCargo.toml").send().await.refused(404, "NOT_FOUND");

    // The model of the strategies is served without lab.
    let (status, headers, page) = get(stack.url(), "/learn").raw().await;
    let has = |text: &str| page.contains(text);
    assert!(status == 200 && has("\"/assets/learn.js\"") && has("data-zone="), "{status}: {page}");
    assert!(headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    let (status, ..) = get(stack.url(), "/assets/learn-model.js").raw().await;
    assert_eq!(status, 200);
}
