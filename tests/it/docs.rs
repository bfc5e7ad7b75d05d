//! The API's document agrees with its snapshot and with a running instance, and the READMEs with what was measured; and how the
//! web pages are served. `./dev test api` asks for every operation, and checks the replies. `./dev test browser` loads the pages:
//! no part of them may be missing, come from elsewhere, or violate their policy.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::support::api::{get, post};
use crate::support::read;
use crate::support::stack::Stack;

/// Method and path.
pub type Route = (String, String);

/// Every operation of the document.
pub fn documented() -> BTreeMap<Route, Value> {
    let text = seckill::router::api_document().text().unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let mut found = BTreeMap::new();
    let mut names = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name), "two operations are called {name}");
            found.insert((method.to_uppercase(), path.clone()), operation.clone());
        }
    }
    found
}

#[test]
fn the_api_document_equals_its_snapshot_and_has_every_error() {
    let text = seckill::router::api_document().text().unwrap();
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        let snapshot = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");
        std::fs::write(snapshot, &text).unwrap();
    }
    let snapshot_text = read("docs/openapi.json");
    let advice = "if that is intended, write docs/openapi.json with `UPDATE_OPENAPI=1 ./dev test docs` and review it";
    for (line, (new, old)) in (1..).zip(text.lines().zip(snapshot_text.lines())) {
        assert_eq!(
            new, old,
            "the handlers, and line {line} of the snapshot: {advice}"
        );
    }
    assert!(text == snapshot_text, "one is longer: {advice}");
    let document: Value = serde_json::from_str(&text).unwrap();
    for part in text.split("\"#").skip(1) {
        let pointer = part.split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "there is no {pointer}");
    }
    let codes = seckill::error::Error::each()
        .into_iter()
        .map(|error| error.code());
    // Except those that no documented path replies with.
    for code in codes.filter(|code| !["METHOD_NOT_ALLOWED", "INTERNAL"].contains(code)) {
        assert!(
            text.contains(&format!("\"{code}\"")),
            "{code} is in no operation"
        );
    }
}

/// READMEs name the orders per second of the benchmark's table. The change log's first section is "Unreleased", the next
/// that of the version in `Cargo.toml`: CONTRIBUTING.md.
#[test]
fn the_readmes_show_the_figures_of_the_benchmark_and_the_change_log_has_the_version() {
    let table = read("docs/BENCHMARKS.md");
    let first_run = "group-commit, buyers that no instance knows";
    for run in [first_run, "reentrant-lock"] {
        let row = table
            .lines()
            .find_map(|line| line.strip_prefix(&format!("| {run} | ")));
        let rate = row
            .and_then(|row| row.split(' ').next())
            .expect("a row with a rate");
        for readme in ["README.md", "README.zh-CN.md"] {
            assert!(
                read(readme).contains(rate),
                "{readme}: {run} makes {rate} a second"
            );
        }
    }
    let log = read("CHANGELOG.md");
    let mut sections = log.lines().filter_map(|line| line.strip_prefix("## "));
    assert_eq!(sections.next(), Some("Unreleased"));
    let released = sections.next().expect("a release");
    assert!(
        released.starts_with(concat!(env!("CARGO_PKG_VERSION"), " (20")),
        "{released}"
    );
}

#[tokio::test]
async fn an_instance_serves_its_document_and_pages_with_a_policy() {
    let stack = Stack::lab(1).await;
    let moved = get(stack.url(), "/docs").send().await;
    assert_eq!(
        (moved.status, &moved.headers["location"]),
        (307, &"docs/".parse().unwrap())
    );
    let html = "text/html; charset=utf-8";
    for (path, kind) in [
        ("/docs/", html),
        ("/", html),
        ("/learn", html),
        ("/assets/shop.js", "text/javascript; charset=utf-8"),
        ("/docs/openapi.json", "application/json"),
    ] {
        let zipped = get(stack.url(), path).header("accept-encoding", "gzip");
        let (status, headers, _) = zipped.raw().await;
        assert_eq!(
            (status, headers["content-type"].to_str().unwrap()),
            (200, kind),
            "{path}"
        );
        assert!(headers.contains_key("content-encoding"), "{path}");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self';"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
    }
    let served = get(stack.url(), "/docs/openapi.json").text().await;
    assert_eq!(served, seckill::router::api_document().text().unwrap());
    get(stack.url(), "/docs/no-such-file")
        .send()
        .await
        .refused(404, "NOT_FOUND");
    let opened = get(stack.url(), "/no/such/page").header("accept", "text/html,*/*;q=0.8");
    let (status, headers, page) = opened.raw().await;
    assert_eq!(
        (status, headers["content-type"].to_str().unwrap()),
        (404, html)
    );
    assert_eq!(page, read("web/not-found.html"));
    post(stack.url(), "/no/such/page")
        .header("accept", "text/html")
        .send()
        .await
        .refused(404, "NOT_FOUND");
}

#[tokio::test]
async fn pages_are_cached_and_without_the_lab_flag_nothing_of_the_lab_exists() {
    let stack = Stack::start(1, &[]).await;
    let (_, headers, page) = get(stack.url(), "/").raw().await;
    let settings = "data-lab=\"false\" data-zone=\"Asia/Shanghai\"";
    assert!(
        page.contains(settings) && page.contains("/assets/shop.js"),
        "{page}"
    );
    let tag = headers["etag"].to_str().unwrap().to_owned();
    let (status, headers, body) = get(stack.url(), "/")
        .header("if-none-match", &tag)
        .raw()
        .await;
    assert_eq!(
        (status, headers["etag"].to_str().unwrap(), body.as_str()),
        (304, &*tag, "")
    );
    get(stack.url(), "/assets/no.js")
        .send()
        .await
        .refused(404, "NOT_FOUND");
    get(stack.url(), "/assets/..%2fCargo.toml")
        .send()
        .await
        .refused(404, "NOT_FOUND");

    // Where a link to the model of the strategies is shared, it has a title and a picture, at the host of the link.
    let page = get(stack.url(), "/learn").text().await;
    for property in ["title", "description"] {
        assert_eq!(page.matches(&format!("og:{property}")).count(), 1);
    }
    let (_, picture) = page.split_once("\"og:image\" content=\"").unwrap();
    let (picture, _) = picture.split_once('"').unwrap();
    assert_eq!(picture, format!("{}/assets/learn.png", stack.url()));
    let (status, headers, _) = get(stack.url(), "/assets/learn.png").raw().await;
    assert_eq!(
        (status, headers["content-type"].to_str().unwrap()),
        (200, "image/png")
    );

    // The model of the strategies is served without lab.
    for path in ["/learn", "/assets/learn.js", "/assets/learn-model.js"] {
        get(stack.url(), path).text().await;
    }

    // Nothing of the lab is there without `--lab`.
    let sign_in = post(stack.url(), "/lab/login").json(json!({}));
    sign_in.send().await.refused(404, "NOT_FOUND");
    let code = get(stack.url(), "/lab/code/13800138000");
    code.send().await.refused(404, "NOT_FOUND");
    // Nor does a purchase's reply have its steps.
    let voucher = stack.publish(1, "reentrant-lock").await;
    let user = &stack.users(1).await[0];
    let bought = stack
        .purchase(user, voucher)
        .header("x-lab-trace", "1")
        .send()
        .await;
    assert!(bought.bought() > 0 && !bought.headers.contains_key("x-lab-trace"));
}
