//! The API's document agrees with its snapshot and with a running instance. `./dev test api` checks the replies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use hyper::Method;
use serde_json::Value;

use crate::support::api::{call, get};
use crate::support::stack::Stack;

/// Method and path.
pub type Route = (String, String);

fn file(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn document() -> Value {
    serde_json::from_str(&seckill::router::api_document().text().unwrap()).unwrap()
}

/// Every operation of the document.
pub fn documented() -> BTreeMap<Route, Value> {
    let mut found = BTreeMap::new();
    for (path, operations) in document()["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            found.insert((method.to_uppercase(), path.clone()), operation.clone());
        }
    }
    found
}

#[test]
fn the_text_equals_its_snapshot() {
    let text = seckill::router::api_document().text().unwrap();
    let kept = file("docs/openapi.json");
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(&kept, &text).unwrap();
    }
    let known = std::fs::read_to_string(&kept).unwrap_or_default();
    let differs = text.lines().zip(known.lines()).position(|(new, old)| new != old);
    let line = differs.unwrap_or_else(|| text.lines().count().min(known.lines().count()));
    let (old, new) = (known.lines().nth(line), text.lines().nth(line));
    assert!(
        text == known,
        "docs/openapi.json differs from the handlers, from line {}:\n  kept: {old:?}\n  now:  {new:?}\n\
         If that is intended, write it with `UPDATE_OPENAPI=1 ./dev test docs` and review it.",
        line + 1
    );
}

#[test]
fn every_error_is_documented() {
    let source = std::fs::read_to_string(file("src/error.rs")).unwrap();
    let each: BTreeSet<&str> =
        seckill::error::Error::each().iter().map(|failure| failure.code()).collect();
    let codes = source.split("\ncodes! {").nth(1).unwrap().split("\n}").next();
    let of_a_line = |line: &str| Some(line.rsplit_once("=> ")?.1.split('"').nth(1)?.to_owned());
    let codes: BTreeSet<String> = codes.unwrap().lines().filter_map(of_a_line).collect();
    assert_eq!(each, codes.iter().map(String::as_str).collect());
    // And each is in the document, except those that no documented path replies with.
    let text = seckill::router::api_document().text().unwrap();
    for code in each.iter().filter(|code| !["METHOD_NOT_ALLOWED", "INTERNAL"].contains(code)) {
        assert!(text.contains(&format!("\"{code}\"")), "{code} is in no operation");
    }
}

#[test]
fn every_operation_is_described() {
    let document = document();
    let tags: Vec<&str> = document["tags"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|tag| tag["name"].as_str())
        .collect();
    let mut names = BTreeSet::new();
    for ((method, path), operation) in documented() {
        let name = operation["operationId"].as_str().unwrap().to_owned();
        assert!(names.insert(name.clone()), "two operations are called {name}");
        let what = format!("{method} {path}");
        assert!(operation["summary"].as_str().is_some_and(|text| text.ends_with('.')), "{what}");
        assert!(tags.contains(&operation["tags"][0].as_str().unwrap_or_default()), "{what}");
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let shown = parameter["in"] == "header" || !parameter["example"].is_null();
            assert!(shown, "{what}: no example of {parameter}");
        }
        for (status, response) in operation["responses"].as_object().unwrap() {
            assert!(status != "500", "{what} has a code that does not exist: {response}");
            let text = response["description"].as_str().or(response["$ref"].as_str());
            assert!(text.is_some_and(|text| !text.is_empty()), "{what} {status}");
        }
    }
}

#[tokio::test]
async fn an_instance_answers_every_documented_operation_and_serves_pages_that_load_nothing_else() {
    let stack = Stack::lab(1).await;
    for (method, path) in documented().into_keys() {
        let path = path.split('/').map(|part| if part.starts_with('{') { "1" } else { part });
        let path = path.collect::<Vec<_>>().join("/");
        let answer = call(Method::from_bytes(method.as_bytes()).unwrap(), stack.url(), &path);
        let (status, _, body) = answer.raw().await;
        assert!(status != 404 && status != 405, "{method} {path}: {status} {body}");
        assert!(!body.contains(r#""code":"NOT_FOUND""#), "{method} {path}: {body}");
    }

    let moved = get(stack.url(), "/docs").send().await;
    assert_eq!((moved.status, &moved.headers["location"]), (307, &"docs/".parse().unwrap()));
    for path in ["/docs/", "/", "/learn", "/lab"] {
        let (status, headers, page) = get(stack.url(), path).raw().await;
        let kind = headers["content-type"].to_str().unwrap();
        assert_eq!((status, kind), (200, "text/html; charset=utf-8"), "{path}");
        assert!(page.contains("name=\"viewport\"") && page.contains("href=\"/\""), "{page}");
        for forbidden in [" style=", "<style", " onclick=", "<script>"] {
            assert!(!page.contains(forbidden), "{path}: its policy forbids {forbidden}");
        }
        let named: Vec<&str> = ["src=\"", "href=\""]
            .iter()
            .flat_map(|start| page.split(start).skip(1).filter_map(|rest| rest.split('"').next()))
            .filter(|name| !name.starts_with('#'))
            .collect();
        assert!(named.len() >= 8, "{page}");
        for name in named {
            assert!(name.starts_with('/') && !name.contains("//"), "{name} is on another host");
            let zipped = get(stack.url(), name).header("accept-encoding", "gzip");
            let (status, headers, _) = zipped.raw().await;
            assert!(status == 200 && headers.contains_key("content-encoding"), "{name}: {status}");
        }
    }

    assert_eq!(
        get(stack.url(), "/docs/openapi.json").text().await,
        seckill::router::api_document().text().unwrap()
    );
    let served = get(stack.url(), "/docs/openapi.json").send().await;
    assert_eq!(served.headers["content-type"], "application/json");
    assert_eq!(served.headers["x-content-type-options"], "nosniff");
    let policy = served.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
    get(stack.url(), "/docs/no-such-file").send().await.refused(404, "NOT_FOUND");
}
