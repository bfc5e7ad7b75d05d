//! The README's tables: each row names tests, and they exist. Versions are those of Cargo.toml.

use std::path::Path;

const README: &str = include_str!("../../README.md");

/// The rows of the tables whose last column is named Test or Tests, without their heads.
fn rows() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut rows = Vec::new();
    let mut in_table = false;
    for line in README.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, .., tests, _] = cells.as_slice() else {
            in_table = false;
            continue;
        };
        if tests.starts_with("Test") {
            in_table = true;
        } else if in_table && !tests.starts_with("--") {
            let tests = tests.split(',').map(|test| test.trim().trim_matches('`'));
            rows.push((*name, tests.filter(|test| !test.is_empty()).collect()));
        }
    }
    rows
}

#[test]
fn every_test_that_the_readme_names_exists() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let rows = rows();
    assert!(rows.len() > 25, "the tables have only {} rows", rows.len());
    for (row, named) in rows {
        assert!(!named.is_empty() || row == "Language", "{row:?} names no test");
        for test in named {
            let (module, name) =
                test.rsplit_once("::").unwrap_or_else(|| panic!("{row:?}: {test}"));
            let file = tests.join(format!("{}.rs", module.replace("::", "/")));
            let text = std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("{row:?}: {test}"));
            let found = ["(", "<"].iter().any(|after| text.contains(&format!("fn {name}{after}")));
            assert!(found, "{row:?} names {test}, which does not exist");
        }
    }
}

#[test]
fn the_readme_names_the_oldest_rust_that_is_supported() {
    let version = env!("CARGO_PKG_RUST_VERSION");
    assert!(
        README.contains(&format!("Rust {version} or newer")),
        "the README is not about {version}"
    );
}
