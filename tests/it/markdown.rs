//! The Markdown documents name what exists: every relative link, its heading, and every path in back-ticks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A path in back-ticks that begins with one of these is checked.
const FOLDERS: [&str; 9] = [
    "crates/",
    "deploy/",
    "docs/",
    "loadtest/",
    "lua/",
    "migrations/",
    "scripts/",
    "src/",
    "tests/",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All documents: in the root, in `docs/`, and those beside each crate's `Cargo.toml`.
fn documents() -> BTreeSet<PathBuf> {
    let parents = [root().to_owned(), root().join("crates"), root().join("crates/lock")];
    let entries = parents.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let folders = entries.map(|entry| entry.unwrap().path());
    let folders = folders.filter(|path| path.ends_with("docs") || path.join("Cargo.toml").exists());
    let mut found = BTreeSet::new();
    for folder in folders.chain([root().to_owned()]) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                found.insert(path);
            }
        }
    }
    found
}

/// The text without fenced blocks, which show commands and output.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The targets of `[text](target)` that lie in this repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://"))
}

/// What stands between single back-ticks, line by line.
fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// A heading as GitHub writes it into an address.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Whether a file or folder of that name exists; `*` stands for any part of a file's name.
fn exists(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((start, end)) = name.split_once('*') else { return path.exists() };
    let folder = path.parent().and_then(|folder| std::fs::read_dir(folder).ok());
    folder.into_iter().flatten().any(|entry| {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        name.starts_with(start) && name.ends_with(end)
    })
}

/// Everything the document names that does not exist.
fn missing(document: &Path) -> Vec<String> {
    let text = prose(&std::fs::read_to_string(document).unwrap());
    let mut missing = Vec::new();
    for link in links(&text) {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let target = match file {
            "" => document.to_owned(),
            file => document.parent().unwrap().join(file),
        };
        let found = target.exists()
            && (heading.is_empty()
                || std::fs::read_to_string(&target).is_ok_and(|text| {
                    text.lines().any(|l| l.starts_with('#') && anchor(l) == heading)
                }));
        if !found {
            missing.push(format!("link {link}"));
        }
    }
    // The change log also names files that were there once.
    if !document.ends_with("CHANGELOG.md") {
        let is_path = |span: &&str| {
            FOLDERS.iter().any(|folder| span.starts_with(folder))
                && !span.contains(|c: char| c.is_whitespace() || "…{<".contains(c))
        };
        // A crate's own document may name its files from the crate's folder.
        let exist = |span: &str| {
            exists(&root().join(span)) || exists(&document.parent().unwrap().join(span))
        };
        let paths = code_spans(&text).filter(is_path).filter(|span| !exist(span));
        missing.extend(paths.map(|span| format!("path {span}")));
    }
    missing
}

#[test]
fn every_file_and_heading_a_document_names_exists() {
    let documents = documents();
    assert!(documents.len() > 12, "{documents:?}");
    let missing: Vec<_> = documents
        .iter()
        .map(|document| (document.strip_prefix(root()).unwrap(), missing(document)))
        .filter(|(_, missing)| !missing.is_empty())
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// READMEs name the orders per second of the benchmark's table.
#[test]
fn the_readmes_show_the_figures_of_the_benchmark() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
    let table = read("docs/BENCHMARKS.md");
    for strategy in ["group-commit, 256 clients", "reentrant-lock"] {
        let row = table.lines().find_map(|line| line.strip_prefix(&format!("| {strategy} | ")));
        let rate = row.and_then(|row| row.split(' ').next()).expect("a row with a rate");
        for readme in ["README.md", "README.zh-CN.md"] {
            assert!(
                read(readme).contains(rate),
                "{readme}: {strategy} makes {rate} orders a second"
            );
        }
    }
}

/// A release is tagged `v` and the version of the change log's top section: CONTRIBUTING.md.
#[test]
fn the_version_is_that_of_the_top_section_of_the_change_log() {
    let log = std::fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    let sections: Vec<&str> = log.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let version = |section: &str| -> Vec<u64> {
        let number = section.split(' ').next().unwrap_or_default();
        let parts =
            number.split('.').map(|part| part.parse().unwrap_or_else(|_| panic!("{section}")));
        parts.collect()
    };
    let versions: Vec<Vec<u64>> = sections.iter().map(|section| version(section)).collect();
    assert_eq!(versions[0], version(env!("CARGO_PKG_VERSION")), "{}", sections[0]);
    assert!(
        versions.is_sorted_by(|newer, older| newer.len() == 3 && newer > older),
        "{sections:?}"
    );
}

/// The reader above can fail.
#[test]
fn the_reader_of_documents_sees_links_and_paths() {
    let text =
        "See [a](b.md#c), [d](https://e) and `src/f.rs`.\n```sh\nx `src/g.rs` [h](i)\n```\n[j](k)";
    let text = prose(text);
    assert_eq!(links(&text).collect::<Vec<_>>(), ["b.md#c", "k"]);
    assert_eq!(code_spans(&text).collect::<Vec<_>>(), ["src/f.rs"]);
    assert_eq!(anchor("## What a client is told, when?"), "what-a-client-is-told-when");
    assert!(exists(&root().join("docs/*.json")) && !exists(&root().join("docs/*.nothing")));
}
