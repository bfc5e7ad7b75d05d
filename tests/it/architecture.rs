//! The rules of import, held by reading the sources: no files of a crate import each other, and which part of the service
//! may name which.
//!
//! The reader knows words and `::`, not Rust. A path leads to the file of its deepest module, and on through `use`, so that a
//! re-export leads to where the item is defined. Test code is not read; globs and names made by macros are not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const CRATES: [&str; 9] = [
    "src",
    "crates/cache/src",
    "crates/lock/interop/src",
    "crates/lock/src",
    "crates/redis-link/src",
    "crates/testkit/src",
    "crates/workload/src",
    "loadtest/src",
    "tests/it",
];

/// From the top; each layer may import itself and those after it.
const LAYERS: [&[&str]; 12] = [
    &["command", "app", "main"],
    &["router"],
    &["openapi"],
    &["health", "lab", "metrics", "order", "shop", "user", "voucher"],
    &["http"],
    &["telemetry"],
    &["session", "request", "idempotency"],
    &["id", "error"],
    &["clock", "config"],
    &["keys"],
    &["connection", "scripts"],
    &["histogram"],
];

const FEATURES: [&str; 5] = ["lab", "order", "shop", "user", "voucher"];

type Words = Vec<String>;

/// A source file.
#[derive(Default)]
struct Source {
    /// Its module, from the crate's root.
    module: Words,
    paths: BTreeSet<Words>,
    /// What `use` imports a name from.
    uses: BTreeMap<String, Words>,
}

/// The files of a crate by their paths below its folder.
struct Crate(BTreeMap<String, Source>);

impl Crate {
    fn read(folder: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let mut texts = BTreeMap::new();
        let mut open = vec![root.clone()];
        while let Some(folder) = open.pop() {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    open.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                    texts.insert(name, std::fs::read_to_string(&path).unwrap());
                }
            }
        }
        Self::of(texts.iter().map(|(name, text)| (name.as_str(), text.as_str())))
    }

    fn of<'a>(texts: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Crate(texts.into_iter().map(|(name, text)| (name.to_owned(), source(name, text))).collect())
    }

    /// The file of a module.
    fn file(&self, module: &[String]) -> Option<&str> {
        self.0.iter().find(|(_, source)| source.module == module).map(|(name, _)| name.as_str())
    }

    /// The file that defines the item which `path` names in `from`; none for a module and outside the crate.
    fn definition(&self, from: &str, path: &[String], depth: u32) -> Option<&str> {
        let Source { module, uses, .. } = self.0.get(from)?;
        let mut at = match path[0].as_str() {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            name if self.file(&[module, &path[..1]].concat()).is_some() => {
                [module.as_slice(), &[name.to_owned()]].concat()
            }
            name => {
                let used = uses.get(name).filter(|used| used[0] != path[0] && depth < 9)?;
                return self.definition(from, &[used, &path[1..]].concat(), depth + 1);
            }
        };
        let mut rest = &path[1..];
        while let Some(name) = rest.first() {
            let child = if name == "super" {
                at[..at.len().checked_sub(1)?].to_vec()
            } else {
                [at.as_slice(), &rest[..1]].concat()
            };
            if self.file(&child).is_none() {
                break;
            }
            (at, rest) = (child, &rest[1..]);
        }
        let file = self.file(&at)?;
        let used = self.0[file].uses.get(rest.first()?).filter(|_| depth < 9);
        match used {
            Some(used) => self.definition(file, &[used, &rest[1..]].concat(), depth + 1),
            None => Some(file),
        }
    }

    /// The files whose items each file names.
    fn imports(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let of = |(name, source): (&'_ String, &'_ Source)| {
            let files = source.paths.iter().filter_map(|path| self.definition(name, path, 0));
            files.filter(|file| file != name).collect()
        };
        self.0.iter().map(|entry| (entry.0.as_str(), of(entry))).collect()
    }

    /// The files that import themselves through others.
    fn cycles(&self) -> Vec<&str> {
        let imports = self.imports();
        let reaches_itself = |start: &str| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
            while let Some(file) = open.pop() {
                open.extend(imports[file].iter().filter(|next| seen.insert(**next)));
            }
            seen.contains(start)
        };
        imports.keys().copied().filter(|file| reaches_itself(file)).collect()
    }

    /// The pairs of files for which an import is forbidden.
    fn violations(&self, is_forbidden: impl Fn(&str, &str) -> bool) -> Vec<(&str, &str)> {
        let imports = self.imports().into_iter();
        let pairs = imports.flat_map(|(from, to)| to.into_iter().map(move |to| (from, to)));
        pairs.filter(|(from, to)| is_forbidden(from, to)).collect()
    }

    /// The files that name the crate `name` although `may` is false for them.
    fn naming(&self, name: &str, may: impl Fn(&str) -> bool) -> Vec<&str> {
        let names = |source: &Source| source.paths.iter().any(|path| path[0] == name);
        let files = self.0.iter().filter(|(file, source)| names(source) && !may(file));
        files.map(|(file, _)| file.as_str()).collect()
    }
}

fn source(name: &str, text: &str) -> Source {
    let stem = name.trim_end_matches(".rs");
    let mut module: Words = stem.split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        module.pop();
    }
    let mut source = Source { module, ..Source::default() };
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = code.lines().map(|line| line.split("//").next().unwrap());
    let words = words(&lines.collect::<Vec<_>>().join("\n"));
    let mut at = 0;
    while at < words.len() {
        let is_use = words[at] == "use";
        at += usize::from(is_use);
        let is_path = words.get(at).is_some_and(|word| word.starts_with(char::is_alphabetic));
        if is_use || (is_path && words.get(at + 1).is_some_and(|next| next == "::")) {
            at = source.tree(&words, at, &[], is_use);
        } else {
            at += 1;
        }
    }
    source
}

impl Source {
    /// Reads the path or tree of paths at `at`, which stands after `prefix`; returns where it ends.
    fn tree(&mut self, words: &[String], mut at: usize, prefix: &[String], is_use: bool) -> usize {
        let mut path = prefix.to_vec();
        while let Some(word) = words.get(at) {
            if word == "{" && !path.is_empty() {
                while words.get(at).is_some_and(|word| word != "}") {
                    at = self.tree(words, at + 1, &path, is_use);
                }
                return at + 1;
            }
            if !word.starts_with(|first: char| first.is_alphanumeric() || first == '_') {
                break;
            }
            if word != "self" || path.is_empty() {
                path.push(word.clone());
            }
            at += 1;
            if words.get(at).is_none_or(|next| next != "::") {
                break;
            }
            at += 1;
        }
        let Some(mut name) = path.last().cloned() else { return at + 1 };
        if is_use && words.get(at).is_some_and(|word| word == "as") {
            name.clone_from(&words[at + 1]);
            at += 2;
        }
        self.paths.insert(path.clone());
        if is_use {
            self.uses.insert(name, path);
        }
        at
    }
}

/// Words, `::`, and every other mark by itself.
fn words(text: &str) -> Words {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = match rest {
            _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ if rest.starts_with("::") => 2,
            _ => first.len_utf8(),
        };
        found.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    found
}

/// The service's top module of a file.
fn part(file: &str) -> &str {
    file.split(['/', '.']).next().unwrap_or(file)
}

fn is_feature(file: &str) -> bool {
    FEATURES.contains(&part(file))
}

fn has_handlers(file: &str) -> bool {
    is_feature(file) && file == format!("{}/mod.rs", part(file))
}

/// Holds SQL.
fn is_store(file: &str) -> bool {
    let rest = file.split_once('/').map_or("", |(_, rest)| rest);
    is_feature(file) && (rest == "store.rs" || rest.starts_with("store/"))
}

#[test]
fn no_files_of_a_crate_import_each_other() {
    for folder in CRATES {
        let files = Crate::read(folder);
        assert!(files.0.len() > 1, "{folder}");
        let cycles = files.cycles();
        let imports = files.imports();
        let named: Vec<_> = cycles.iter().map(|file| (file, &imports[file])).collect();
        assert!(named.is_empty(), "{folder}: {named:#?}");
    }
}

#[test]
fn the_service_imports_downwards_and_each_part_what_it_may() {
    let service = Crate::read("src");
    let layer = |file: &str| LAYERS.iter().position(|layer| layer.contains(&part(file)));
    let unplaced = service.0.keys().filter(|file| *file != "lib.rs" && layer(file).is_none());
    assert_eq!(unplaced.collect::<Vec<_>>(), [""; 0], "these are in no layer");
    let nothing: [(&str, &str); 0] = [];
    let upwards = service.violations(|from, to| layer(to) < layer(from));
    assert_eq!(upwards, nothing, "these import upwards");
    let http = service
        .violations(|from, to| is_feature(from) && !has_handlers(from) && part(to) == "http");
    assert_eq!(http, nothing, "only a feature's mod.rs speaks HTTP");
    let stores =
        service.violations(|from, to| is_feature(from) && is_store(to) && part(from) != part(to));
    assert_eq!(stores, nothing, "a store belongs to its feature");

    let speaks_http = |file: &str| {
        let parts = ["app", "router", "openapi", "health", "http"];
        has_handlers(file) || parts.contains(&part(file)) || file == "metrics/mod.rs"
    };
    assert_eq!(service.naming("axum", speaks_http), [""; 0], "these must not name axum");
    let has_sql =
        |file: &str| is_store(file) || ["connection", "error", "idempotency"].contains(&part(file));
    assert_eq!(service.naming("sqlx", has_sql), [""; 0], "these must not name sqlx");
    assert_eq!(service.naming("redis", |file| !is_store(file)), [""; 0], "no store knows Redis");
}

#[test]
fn the_reader_finds_planted_cycles_and_no_others() {
    let cycles = |a: &str, b: &str, c: &str| {
        let files = [("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b/mod.rs", b), ("b/c.rs", c)];
        Crate::of(files).cycles().len()
    };
    for (a, b, c) in [
        ("use crate::b::c::C;", "", "use crate::a::A;"),
        ("use crate::{b::{c::{C, D}}, other::X};", "", "use super::super::a::A;"),
        ("fn f() { crate::b::c::run() }", "", "use crate::a; pub fn run(_: a::A) {}"),
        ("use crate::b::C as Other;", "pub use c::C;", "pub fn run(_: crate::a::A) {}"),
        ("", "use c::C;", "use super::B;"),
    ] {
        assert_eq!(cycles(a, b, c), 2, "{a} {b} {c}");
    }
    for (a, b, c) in [
        ("use crate::b::c::C;", "", "// use crate::a::A;"),
        ("use crate::b::c::C;", "", "\n#[cfg(test)]\nmod tests { use crate::a::A; }"),
        ("", "pub use crate::a::A; pub use c::C;", "use super::A;"),
        ("use std::b::c::C;", "", "use crate::a::A;"),
    ] {
        assert_eq!(cycles(a, b, c), 0, "{a} {b} {c}");
    }
}
