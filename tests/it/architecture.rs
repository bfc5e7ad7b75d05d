//! The rules of import, held by reading the sources: no files of a crate import each other, and which part of the service
//! may name which.
//!
//! The reader knows words and `::`, not Rust. A path leads to its deepest module, and on through `use`, so that a re-export
//! leads to where the item is defined. Test code is not read; globs and names made by macros are not followed.

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

#[derive(Default)]
struct Source {
    paths: BTreeSet<String>,
    /// What `use` imports a name from.
    uses: BTreeMap<String, String>,
}

/// The sources of a crate by their modules, such as `order::store`; the root's is empty.
struct Crate(BTreeMap<String, Source>);

impl Crate {
    fn read(folder: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let main = if root.join("lib.rs").exists() { "lib" } else { "main" };
        let (mut sources, mut open) = (BTreeMap::new(), vec![root.clone()]);
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&root).unwrap().with_extension("");
                let name = name.to_str().unwrap();
                let name =
                    if name == main { "" } else { name.strip_suffix("/mod").unwrap_or(name) };
                let text = std::fs::read_to_string(&path).unwrap();
                sources.insert(name.replace('/', "::"), source(&text));
            }
        }
        Crate(sources)
    }

    /// The module that defines what `path` names in `from`, or `from` where that is no module of this crate; none for a
    /// module itself.
    fn definition(&self, from: &str, path: &str, depth: u32) -> Option<&str> {
        let (first, rest) = path.split_once("::").unwrap_or((path, ""));
        let (child, (known, source)) = (join(from, first), self.0.get_key_value(from)?);
        match (first, source.uses.get(first)) {
            ("", _) => None,
            ("crate", _) => self.definition("", rest, depth),
            ("self", _) => self.definition(from, rest, depth),
            ("super", _) => {
                let parent = from.rsplit_once("::").map_or("", |(parent, _)| parent);
                self.definition(parent, rest, depth)
            }
            _ if self.0.contains_key(&child) => self.definition(&child, rest, depth),
            (_, Some(used)) if part(used) != first && depth < 9 => {
                self.definition(from, &join(used, rest), depth + 1)
            }
            _ => Some(known),
        }
    }

    /// The modules whose items each module names.
    fn imports(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let of = |(module, source): (&'_ String, &'_ Source)| {
            let modules = source.paths.iter().filter_map(|path| self.definition(module, path, 0));
            modules.filter(|imported| imported != module).collect()
        };
        self.0.iter().map(|entry| (entry.0.as_str(), of(entry))).collect()
    }

    /// The modules that import themselves through others, with what they import.
    fn cycles(&self) -> Vec<(&str, BTreeSet<&str>)> {
        let imports = self.imports();
        let reaches_itself = |start: &str| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
            while let Some(module) = open.pop() {
                open.extend(imports[module].iter().filter(|next| seen.insert(**next)));
            }
            seen.contains(start)
        };
        imports.clone().into_iter().filter(|(module, _)| reaches_itself(module)).collect()
    }
}

/// Reads the paths, also those of `use` with braces in each other.
fn source(text: &str) -> Source {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter_map(|line| line.split("//").next());
    let apart = |c: char| match c {
        '{' | '}' | ';' => format!(" {c} "),
        _ if c.is_alphanumeric() || "_:".contains(c) => c.to_string(),
        _ => " ".to_owned(),
    };
    let code: String = lines.collect::<Vec<_>>().join(" ").chars().map(apart).collect();
    let (mut source, mut open, mut is_use) = (Source::default(), Vec::<String>::new(), false);
    let mut words = code.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let path = open.last().cloned().unwrap_or_default() + word;
        match word {
            "use" => is_use = true,
            ";" => is_use = false,
            "{" => open.push(String::new()),
            "}" => drop(open.pop()),
            _ if word.ends_with("::") && words.next_if_eq(&"{").is_some() => open.push(path),
            _ if !path.contains("::") || path.starts_with(':') => {}
            _ => {
                let path = path.trim_end_matches("::self").trim_end_matches("::");
                let is_renamed = is_use && words.next_if_eq(&"as").is_some();
                let name = if is_renamed { words.next() } else { path.rsplit("::").next() };
                if is_use {
                    source.uses.insert(name.unwrap_or(path).to_owned(), path.to_owned());
                }
                source.paths.insert(path.to_owned());
            }
        }
    }
    source
}

fn join(module: &str, path: &str) -> String {
    let between = if module.is_empty() || path.is_empty() { "" } else { "::" };
    format!("{module}{between}{path}")
}

/// The first name of a path.
fn part(path: &str) -> &str {
    path.split("::").next().unwrap_or(path)
}

#[test]
fn no_files_of_a_crate_import_each_other() {
    for folder in CRATES {
        let files = Crate::read(folder);
        assert!(
            files.imports().values().any(|imports| !imports.is_empty()),
            "{folder} was not read"
        );
        assert!(files.cycles().is_empty(), "{folder}: {:#?}", files.cycles());
    }
}

#[test]
fn the_service_imports_downwards_and_each_part_what_it_may() {
    let service = Crate::read("src");
    let layer = |module: &str| LAYERS.iter().position(|layer| layer.contains(&part(module)));
    let is_feature = |module: &str| FEATURES.contains(&part(module));
    // A feature's `mod.rs` has its handlers, its `store` the SQL.
    let has_handlers = |module: &str| FEATURES.contains(&module);
    let is_store = |module: &str| {
        let rest = module.split_once("::").map_or("", |(_, rest)| rest);
        is_feature(module) && part(rest) == "store"
    };
    for (from, imports) in service.imports() {
        for to in imports {
            let what = format!("{from} imports {to}");
            assert!(layer(from) <= layer(to), "{what}, upwards");
            let may_speak_http = !is_feature(from) || has_handlers(from);
            assert!(may_speak_http || part(to) != "http", "{what}, and is no feature's mod.rs");
            let is_another = is_feature(from) && part(from) != part(to);
            assert!(!is_another || !is_store(to), "{what}: a store belongs to its feature");
        }
    }
    for (module, Source { paths, .. }) in &service.0 {
        assert!(module.is_empty() || layer(module).is_some(), "{module} is in no layer");
        let names = |library: &str| paths.iter().any(|path| part(path) == library);
        let serves = ["app", "router", "openapi", "health", "http"].contains(&part(module))
            || has_handlers(module)
            || module == "metrics";
        assert!(serves || !names("axum"), "{module} must not name axum");
        let has_sql =
            is_store(module) || ["connection", "error", "idempotency"].contains(&part(module));
        assert!(has_sql || !names("sqlx"), "{module} must not name sqlx");
        assert!(!is_store(module) || !names("redis"), "{module}: no store knows Redis");
    }
}
