//! The Markdown documents name what exists: every relative link, its heading, and every path in back-ticks; and the READMEs
//! the figures that were measured.

use std::path::{Path, PathBuf};

/// A path in back-ticks that begins with one of these is checked.
const FOLDERS: [&str; 9] =
    ["crates", "deploy", "docs", "loadtest", "lua", "migrations", "scripts", "src", "tests"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: impl AsRef<Path>) -> String {
    std::fs::read_to_string(root().join(file)).unwrap()
}

fn entries(folder: impl AsRef<Path>) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path())
}

/// A heading as GitHub writes it into an address.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The links and paths that a document names, each with whether it exists.
fn named(document: &Path) -> Vec<(String, bool)> {
    // Without fenced blocks, which show commands and output.
    let text: String = read(document).split("```").step_by(2).collect();
    let beside = document.parent().unwrap();
    let mut named = Vec::new();
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    for link in links.filter(|link| !link.contains("://")) {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let target = if file.is_empty() { document.to_owned() } else { beside.join(file) };
        let is_heading = |line: &str| line.starts_with('#') && anchor(line) == heading;
        let exists =
            target.exists() && (heading.is_empty() || read(target).lines().any(is_heading));
        named.push((format!("link {link}"), exists));
    }
    // The change log also names files that were there once.
    let is_log = document.ends_with("CHANGELOG.md");
    for span in text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)) {
        let begins = span.split_once('/').is_some_and(|(first, _)| FOLDERS.contains(&first));
        if begins && !is_log && !span.contains(|c: char| c.is_whitespace() || "…{<".contains(c)) {
            // Of several files, as `lua/*.lua`, their folder; and a crate's document may begin at the crate's.
            let path =
                span.split_once('*').map_or(span, |(start, _)| start.rsplit_once('/').unwrap().0);
            let exists = root().join(path).exists() || beside.join(path).exists();
            named.push((format!("path {span}"), exists));
        }
    }
    named
}

#[test]
fn every_file_and_heading_a_document_names_exists() {
    let crates = entries("crates").chain([root().join("crates/lock/interop")]);
    let folders = [root().to_owned(), root().join("docs"), root().join("loadtest")];
    let files = folders.into_iter().chain(crates).flat_map(entries);
    let documents =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut found = 0;
    for document in documents {
        for (what, exists) in named(&document) {
            assert!(exists, "{}: {what}", document.display());
            found += 1;
        }
    }
    assert!(found > 150, "{found} links and paths");
}

/// READMEs name the orders per second of the benchmark's table.
#[test]
fn the_readmes_show_the_figures_of_the_benchmark() {
    let table = read("docs/BENCHMARKS.md");
    for strategy in ["group-commit, 256 clients", "reentrant-lock"] {
        let row = table.lines().find_map(|line| line.strip_prefix(&format!("| {strategy} | ")));
        let rate = row.and_then(|row| row.split(' ').next()).expect("a row with a rate");
        for readme in ["README.md", "README.zh-CN.md"] {
            assert!(read(readme).contains(rate), "{readme}: {strategy} makes {rate} a second");
        }
    }
}

/// A release is tagged `v` and the version of the change log's top section: CONTRIBUTING.md.
#[test]
fn the_version_is_that_of_the_top_section_of_the_change_log() {
    let log = read("CHANGELOG.md");
    let top = log.lines().find_map(|line| line.strip_prefix("## ")).expect("a section");
    assert_eq!(top.split(' ').next(), Some(env!("CARGO_PKG_VERSION")));
}
