//! The rules of import, held by reading the sources: no cycle between files, and which part may name which.

mod imports;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use imports::Imports;

/// The crates of the workspace, by their root files.
const CRATES: [&str; 12] = [
    "src/lib.rs",
    "src/main.rs",
    "bench/src/main.rs",
    "cache/src/lib.rs",
    "interop/src/main.rs",
    "ladder/src/lib.rs",
    "loadtest/src/lib.rs",
    "loadtest/src/main.rs",
    "lock/src/lib.rs",
    "testkit/src/lib.rs",
    "tests/it/main.rs",
    "workload/src/lib.rs",
];

const FEATURES: [&str; 5] = ["lab", "order", "shop", "user", "voucher"];

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).ok()
}

fn service() -> Imports {
    let imports = Imports::read("src/lib.rs", &read);
    assert!(imports.files().len() > 60, "the reader finds the service's files");
    imports
}

/// The top-level module that a file of the service belongs to.
fn module(file: &str) -> &str {
    file.trim_start_matches("src/").split(['/', '.']).next().unwrap_or(file)
}

fn feature(file: &str) -> Option<&str> {
    Some(module(file)).filter(|module| FEATURES.contains(module))
}

/// `mod.rs` of a feature.
fn has_handlers(file: &str) -> bool {
    feature(file).is_some_and(|feature| file == format!("src/{feature}/mod.rs"))
}

/// Holds SQL: a feature's `store.rs`, or a file in its folder `store`.
fn is_store(file: &str) -> bool {
    let Some(feature) = feature(file) else { return false };
    let rest = &file[format!("src/{feature}/").len()..];
    rest == "store.rs" || rest.starts_with("store/")
}

fn assert_none(rule: &str, violations: &BTreeSet<String>) {
    assert!(
        violations.is_empty(),
        "{rule}:\n{}",
        Vec::from_iter(violations.iter().map(String::as_str)).join("\n")
    );
}

/// The edges for which `is_forbidden` holds, each as text.
fn forbidden(imports: &Imports, is_forbidden: impl Fn(&str, &str) -> bool) -> BTreeSet<String> {
    let edges = imports.edges.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
    edges
        .filter(|(from, (to, _))| is_forbidden(from, to))
        .map(|(from, (to, name))| format!("{from} -> {to} ({name})"))
        .collect()
}

/// The files that name the crate `name` although `may` is false for them.
fn naming(imports: &Imports, name: &str, may: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let files = imports.external.iter().filter(|(file, names)| names.contains(name) && !may(file));
    files.map(|(file, _)| file.clone()).collect()
}

#[test]
fn no_files_of_a_crate_import_each_other() {
    let mut found = BTreeMap::new();
    for root in CRATES {
        let cycles = Imports::read(root, &read).cycles();
        if !cycles.is_empty() {
            found.insert(root, cycles.iter().map(|edges| edges.join("\n")).collect::<Vec<_>>());
        }
    }
    let text: Vec<String> = found
        .iter()
        .map(|(root, cycles)| {
            format!("crate {root}, {} cycles:\n{}", cycles.len(), cycles.join("\n--\n"))
        })
        .collect();
    assert!(text.is_empty(), "{}", text.join("\n\n"));
}

#[test]
fn every_crate_of_the_workspace_is_read() {
    let manifest = read("Cargo.toml").unwrap();
    let members = manifest.split("members = [").nth(1).unwrap().split(']').next().unwrap();
    for member in members.split(',').map(|member| member.trim().trim_matches('"')) {
        let member = if member == "." { "" } else { &format!("{member}/") };
        for file in ["lib.rs", "main.rs"] {
            let root = format!("{member}src/{file}");
            assert!(
                read(&root).is_none() || CRATES.contains(&root.as_str()),
                "{root} is not in CRATES"
            );
        }
    }
}

#[test]
fn axum_appears_only_where_http_is_spoken() {
    let may = |file: &str| {
        has_handlers(file)
            || ["app", "router", "openapi", "health", "http"].contains(&module(file))
            || file == "src/metrics/mod.rs"
    };
    assert_none("these must not name axum", &naming(&service(), "axum", may));
}

#[test]
fn sqlx_appears_only_in_connection_the_stores_and_one_conversion() {
    let may = |file: &str| is_store(file) || ["connection", "error"].contains(&module(file));
    assert_none("these must not name sqlx", &naming(&service(), "sqlx", may));
}

#[test]
fn stores_know_no_redis() {
    let may = |file: &str| !is_store(file);
    assert_none("these must not name redis", &naming(&service(), "redis", may));
}

#[test]
fn features_do_not_import_http_outside_their_handlers() {
    let violations = forbidden(&service(), |from, to| {
        feature(from).is_some() && !has_handlers(from) && module(to) == "http"
    });
    assert_none("only a feature's mod.rs speaks HTTP", &violations);
}

#[test]
fn a_feature_never_touches_another_features_store() {
    let violations = forbidden(&service(), |from, to| {
        feature(from).is_some() && is_store(to) && feature(from) != feature(to)
    });
    assert_none("a store belongs to its feature", &violations);
}

#[test]
fn imports_go_down_the_layers() {
    // Each layer may import itself and those after it.
    let layers: [&[&str]; 12] = [
        &["command", "app"],
        &["router"],
        &["openapi"],
        &["health", "lab", "metrics", "order", "shop", "user", "voucher"],
        &["http"],
        &["telemetry"],
        &["session", "request"],
        &["id", "error"],
        &["clock", "config"],
        &["keys"],
        &["connection", "scripts"],
        &["sync"],
    ];
    let layer_of = |file: &str| layers.iter().position(|layer| layer.contains(&module(file)));
    let imports = service();
    for file in imports.files() {
        assert!(file == "src/lib.rs" || layer_of(file).is_some(), "{file} is in no layer");
    }
    let violations = forbidden(&imports, |from, to| layer_of(to) < layer_of(from));
    assert_none("these import upwards", &violations);
}

#[test]
fn every_file_opens_with_what_it_is_for() {
    let roots = CRATES.iter().filter(|root| read(root).is_some());
    for root in roots {
        for file in Imports::read(root, &read).files() {
            let text = read(file).unwrap();
            let is_documented =
                text.starts_with("//!") || text.starts_with("#![doc = include_str!");
            assert!(is_documented, "{file} does not open with what it is");
        }
    }
}

/// The crates `lock` and `cache` must build and test when copied out of the repository, so the cache's tests carry
/// copies of the harness of the lock's tests.
#[test]
fn copies_of_the_redis_harness_are_equal() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["process.rs", "proxy.rs", "redis_server.rs", "wait.rs"] {
        let read =
            |of: &str| std::fs::read(root.join(of).join("tests/it/support").join(name)).unwrap();
        assert!(read("lock") == read("cache"), "copy lock/tests/it/support/{name} to the cache's");
    }
}

/// The reader's imports of a crate of these files, of which the first is the root.
fn planted(files: &[(&str, &str)]) -> Imports {
    let read = |path: &str| {
        files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
    };
    Imports::read(files[0].0, &read)
}

/// The cycles of a crate that consists of the modules `a`, `b` and `b::c`, with these texts.
fn cycles(a: &str, b: &str, c: &str) -> Vec<Vec<String>> {
    let b = format!("pub mod c; {b}");
    let root = ("src/lib.rs", "mod a; mod b;");
    planted(&[root, ("src/a.rs", a), ("src/b/mod.rs", &b), ("src/b/c.rs", c)]).cycles()
}

const A_AND_C: [&str; 2] = ["src/a.rs -> src/b/c.rs", "src/b/c.rs -> src/a.rs"];

fn assert_cycle(found: &[Vec<String>], edges: [&str; 2]) {
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].len(), 2, "{found:?}");
    assert!(found[0].iter().zip(edges).all(|(found, edge)| found.starts_with(edge)), "{found:?}");
}

#[test]
fn a_planted_cycle_is_found_in_every_spelling() {
    let item = "pub struct A;";
    for (a, b, c) in [
        ("use crate::b::c::C;", "", "use crate::a::A; pub struct C;"),
        ("use crate::{b::{c::{C, D}}, other::X};", "", "use super::super::a::A; pub struct C;"),
        ("fn f() { crate::b::c::run() }", "", "use crate::a; pub fn run(_: a::A) {}"),
        // A re-export leads to where the item is defined.
        (
            "use crate::b::C as Other;",
            "pub use c::C;",
            "pub fn run(_: crate::a::A) {} pub enum C {}",
        ),
        ("use crate::b::*;", "pub use self::c::C;", "use crate::a::*; pub enum C {}"),
        ("use crate::b; fn f(_: b::C) {}", "pub use c::*;", "use crate::a::A; pub enum C {}"),
        ("mod x { use super::super::b::c::C; }", "", "use crate::a::A; pub type C = A;"),
    ] {
        assert_cycle(&cycles(&format!("{item} {a}"), b, c), A_AND_C);
    }
    // A child that uses what its parent defines, where the parent uses the child.
    let within = ["src/b/c.rs -> src/b/mod.rs", "src/b/mod.rs -> src/b/c.rs"];
    assert_cycle(&cycles("", "use c::C; pub struct B;", "use super::B; pub struct C;"), within);
    assert_cycle(
        &cycles("", "pub use c::C; pub fn b() {}", "pub struct C; fn f() { super::b() }"),
        within,
    );
}

#[test]
fn what_is_no_cycle_is_not_found() {
    for (a, b, c) in [
        ("use crate::b::c::C; pub struct A;", "", "pub struct C; // use crate::a::A;"),
        ("use crate::b::c::C; pub struct A;", "", "pub struct C; const T: &str = \"crate::a::A\";"),
        // Siblings through their parent's re-exports.
        ("pub struct A;", "pub use crate::a::A; pub use c::C;", "use super::A; pub struct C;"),
        // Test code may import anything.
        (
            "use crate::b::c::C; pub struct A;",
            "",
            "pub struct C; #[cfg(test)] mod t { use crate::a::A; }",
        ),
        // A module's name alone.
        ("use crate::b::c::C; pub struct A;", "", "use crate::a; pub struct C;"),
        ("use std::b::c::C; pub struct A;", "", "use crate::a::A; pub struct C;"),
    ] {
        assert_eq!(cycles(a, b, c), Vec::<Vec<String>>::new(), "{a} {b} {c}");
    }
}

#[test]
fn external_crates_are_seen_through_imports() {
    let text = "use axum::{Router as R, http}; use my_sqlx::X; fn f() -> R { http::get(); tower::go() } // use redis;";
    let imports = planted(&[("src/lib.rs", text)]);
    let names: Vec<&str> = imports.external["src/lib.rs"].iter().map(String::as_str).collect();
    assert_eq!(names, ["axum", "my_sqlx", "tower"]);
}
