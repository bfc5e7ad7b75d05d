//! The rules of import, held by reading `use` lines and paths: who may name whom.

use std::path::{Path, PathBuf};

/// Every source file of the service, by its path below `src/`.
fn sources() -> Vec<(String, String)> {
    fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    collect(&root, &mut found);
    found
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&root).unwrap().display().to_string();
            (name, code(&std::fs::read_to_string(&path).unwrap()))
        })
        .collect()
}

/// The text without comments and documentation, which may name anything.
fn code(text: &str) -> String {
    text.lines()
        .map(|line| if line.trim_start().starts_with("//") { "" } else { line })
        .map(|line| line.split(" // ").next().unwrap_or(line))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The first lines of `text` that name `what` as the start of a path.
fn naming(text: &str, what: &str) -> Option<String> {
    let names = |line: &str| {
        line.match_indices(what).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + what.len()..].chars().next();
            !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
                && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
        })
    };
    text.lines().find(|line| names(line)).map(|line| line.trim().to_owned())
}

const FEATURES: [&str; 5] = ["lab", "order", "shop", "user", "voucher"];

fn feature(name: &str) -> Option<&'static str> {
    FEATURES.into_iter().find(|feature| name.starts_with(&format!("{feature}/")))
}

#[test]
fn axum_appears_only_where_http_is_spoken() {
    for (name, text) in sources() {
        let is_handlers = feature(&name).is_some_and(|feature| name == format!("{feature}/mod.rs"));
        let allowed = is_handlers
            || name.starts_with("http/")
            || ["app.rs", "router.rs", "openapi.rs", "health.rs", "metrics/mod.rs"]
                .contains(&name.as_str());
        if !allowed && let Some(line) = naming(&text, "axum") {
            panic!("src/{name} names axum: {line}");
        }
    }
}

#[test]
fn sqlx_appears_only_in_conn_the_stores_and_one_conversion() {
    for (name, text) in sources() {
        let allowed =
            name.starts_with("connection/") || name.contains("/store") || name == "error.rs";
        if !allowed && let Some(line) = naming(&text, "sqlx") {
            panic!("src/{name} names sqlx: {line}");
        }
    }
}

#[test]
fn the_lab_alone_knows_the_workload_crate() {
    for (name, text) in sources().iter().filter(|(name, _)| !name.starts_with("lab/")) {
        if let Some(line) = naming(text, "workload::") {
            panic!("src/{name} names the workload crate: {line}");
        }
    }
}

#[test]
fn a_feature_never_touches_another_features_store() {
    for (name, text) in sources() {
        let Some(own) = feature(&name) else { continue };
        for other in FEATURES.into_iter().filter(|other| *other != own) {
            if let Some(line) = naming(&text, &format!("crate::{other}::store")) {
                panic!("src/{name} names {other}'s store: {line}");
            }
        }
    }
}

#[test]
fn libraries_know_no_feature_and_nobody_imports_upwards() {
    // Each layer may name itself and those after it.
    let layers: [&[&str]; 9] = [
        &["main"],
        &["command", "app"],
        &["router"],
        &["openapi"],
        &["health", "lab", "metrics", "order", "shop", "user", "voucher"],
        &["http"],
        &["telemetry", "session", "request"],
        &["id", "error", "clock", "config"],
        &["connection"],
    ];
    let layer_of = |module: &str| layers.iter().position(|layer| layer.contains(&module));
    for (name, text) in sources() {
        let module = name.split(['/', '.']).next().unwrap();
        if module == "lib" {
            continue;
        }
        let own = layer_of(module).unwrap_or_else(|| panic!("src/{name} is in no layer"));
        for (above, layer) in layers.iter().enumerate().take(own) {
            for upper in *layer {
                if let Some(line) = naming(&text, &format!("crate::{upper}")) {
                    panic!("src/{name} (layer {own}) names {upper} (layer {above}): {line}");
                }
            }
        }
    }
}

#[test]
fn every_module_says_what_it_is_for() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (name, _) in sources() {
        let text = std::fs::read_to_string(root.join(&name)).unwrap();
        assert!(text.starts_with("//!"), "src/{name} does not open with //! prose");
    }
}

/// The tests above can fail.
#[test]
fn the_reader_sees_paths_and_passes_comments() {
    assert!(naming("use axum::Router;", "axum").is_some());
    assert!(naming("fn f(x: sqlx::MySqlPool) {}", "sqlx").is_some());
    assert!(naming("use my_axum::Router;", "axum").is_none());
    assert!(naming(&code("// use axum::Router;\nlet x = 1; // sqlx"), "axum").is_none());
    assert!(naming("use crate::user::store::UserStore;", "crate::user::store").is_some());
}

/// The crates `lock` and `cache` must build and test when copied out of the repository, so the cache's tests carry
/// copies of the harness of the lock's tests.
#[test]
fn copies_of_the_redis_harness_are_equal() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["proxy.rs", "redis_server.rs", "wait.rs"] {
        let read =
            |of: &str| std::fs::read(root.join(of).join("tests/it/support").join(name)).unwrap();
        assert!(read("lock") == read("cache"), "copy lock/tests/it/support/{name} to the cache's");
    }
}
