//! The rules of import, held by reading the sources: no files and no folders of a crate import each other, and which part of
//! the service may name which.
//!
//! The reader knows words and `::`, not Rust. A path leads to its deepest module, and on to the one that this module has the
//! item from. Test code is not read; globs and names made by macros are not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const CRATES: [&str; 10] = [
    "src",
    "crates/cache/src",
    "crates/lock/interop/src",
    "crates/lock/src",
    "crates/redis-link/src",
    "crates/strategies/src",
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
    &["health", "metrics", "order", "shop", "user", "voucher"],
    &["http"],
    &["telemetry"],
    &["session", "request", "idempotency"],
    &["id", "error"],
    &["clock", "config"],
    &["keys"],
    &["connection", "scripts"],
    &["histogram"],
];

const FEATURES: [&str; 4] = ["order", "shop", "user", "voucher"];

/// The paths in each module of a crate, such as `order::store`; the root's name is empty.
struct Crate(BTreeMap<String, BTreeSet<String>>);

impl Crate {
    fn read(folder: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let main = if root.join("lib.rs").exists() {
            "lib"
        } else {
            "main"
        };
        let mut sources = BTreeMap::new();
        let mut open = vec![root.clone()];
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(
                    std::fs::read_dir(path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&root).unwrap().with_extension("");
                let name = name.to_str().unwrap();
                let name = if name == main {
                    ""
                } else {
                    name.strip_suffix("/mod").unwrap_or(name)
                };
                let text = std::fs::read_to_string(&path).unwrap();
                sources.insert(name.replace('/', "::"), paths(&text));
            }
        }
        Crate(sources)
    }

    /// The deepest module that `path` names in `from`; of an item, the one that this module imports it from, over so many
    /// imports.
    fn module<'a>(&'a self, from: &'a str, path: &str, follows: u32) -> &'a str {
        let mut current_module = from;
        for name in path.split("::") {
            let next = match name {
                "crate" => String::new(),
                "self" => current_module.to_owned(),
                "super" => current_module
                    .rsplit_once("::")
                    .map_or("", |(parent, _)| parent)
                    .to_owned(),
                _ if current_module.is_empty() => name.to_owned(),
                _ => format!("{current_module}::{name}"),
            };
            let Some((module, _)) = self.0.get_key_value(&next) else {
                let mut origins = self.0[current_module]
                    .iter()
                    .filter(|path| follows > 0 && path.rsplit("::").next() == Some(name))
                    .map(|path| self.module(current_module, path, follows - 1));
                return origins
                    .find(|origin| *origin != current_module)
                    .unwrap_or(current_module);
            };
            current_module = module;
        }
        current_module
    }

    /// The modules that each module names, or whose items it does.
    fn imports(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut imports = BTreeMap::<_, BTreeSet<_>>::new();
        for (from, paths) in &self.0 {
            let named = paths.iter().map(|path| self.module(from, path, 2));
            imports.insert(
                from.as_str(),
                named.filter(|module| module != from).collect(),
            );
        }
        imports
    }
}

/// The paths in a source, also those of `use` with braces in each other.
fn paths(text: &str) -> BTreeSet<String> {
    let code = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let lines = code.lines().filter_map(|line| line.split("//").next());
    let code: String = lines
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .map(|c| match c {
            '{' | '}' | ';' => format!(" {c} "),
            _ if c.is_alphanumeric() || "_:".contains(c) => c.to_string(),
            _ => " ".to_owned(),
        })
        .collect();
    let mut paths = BTreeSet::new();
    let mut open = Vec::<String>::new();
    let mut words = code.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let path = open.last().cloned().unwrap_or_default() + word;
        match word {
            "{" => open.push(String::new()),
            "}" => drop(open.pop()),
            _ if word.ends_with("::") && words.next_if_eq(&"{").is_some() => open.push(path),
            _ if !path.contains("::") || path.starts_with(':') => {}
            _ => {
                paths.insert(
                    path.trim_end_matches("::self")
                        .trim_end_matches("::")
                        .to_owned(),
                );
            }
        }
    }
    paths
}

/// The first name of a path.
fn part(path: &str) -> &str {
    path.split("::").next().unwrap_or(path)
}

/// What imports each other: whatever imports nothing that is left, or is imported by nothing that is left, goes.
fn circles<'a>(
    mut remaining: BTreeMap<&'a str, BTreeSet<&'a str>>,
) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut before = usize::MAX;
    while remaining.len() < before {
        before = remaining.len();
        let open: BTreeSet<&str> = remaining.keys().copied().collect();
        let used: BTreeSet<&str> = remaining.values().flatten().copied().collect();
        remaining.retain(|name, imports| used.contains(name) && !imports.is_disjoint(&open));
    }
    let kept: BTreeSet<&str> = remaining.keys().copied().collect();
    for imports in remaining.values_mut() {
        imports.retain(|imported| kept.contains(imported));
    }
    remaining
}

#[test]
fn no_files_of_a_crate_import_each_other() {
    for folder in CRATES {
        let files = Crate::read(folder);
        let imports = files.imports();
        assert!(
            imports.values().any(|imports| !imports.is_empty()),
            "{folder} was not read"
        );
        let circles = circles(imports);
        assert!(circles.is_empty(), "{folder}: {circles:#?}");
    }
}

#[test]
fn no_folders_of_a_crate_import_each_other() {
    for folder in CRATES {
        let files = Crate::read(folder);
        let imports = files.imports();
        let parents = imports.keys().filter_map(|module| module.rsplit_once("::"));
        let parents: BTreeSet<&str> = parents.map(|(parent, _)| parent).chain([""]).collect();
        for parent in parents {
            let mut between = BTreeMap::<_, BTreeSet<_>>::new();
            for (from, imports) in &imports {
                let Some(from) = child_of(parent, from) else {
                    continue;
                };
                let siblings = imports
                    .iter()
                    .filter_map(|imported| child_of(parent, imported));
                between
                    .entry(from)
                    .or_default()
                    .extend(siblings.filter(|sibling| *sibling != from));
            }
            let circles = circles(between);
            assert!(circles.is_empty(), "{folder}, in `{parent}`: {circles:#?}");
        }
    }
}

/// The file or folder of `parent` that `module` is, or is in; the root's name is empty.
fn child_of<'a>(parent: &str, module: &'a str) -> Option<&'a str> {
    let below_parent = match parent {
        "" => module,
        _ => module.strip_prefix(parent)?.strip_prefix("::")?,
    };
    (!below_parent.is_empty()).then(|| part(below_parent))
}

#[test]
fn the_service_imports_downwards_and_each_part_what_it_may() {
    let service = Crate::read("src");
    let layer = |module: &str| {
        LAYERS
            .iter()
            .position(|layer| layer.contains(&part(module)))
    };
    let is_feature = |module: &str| FEATURES.contains(&part(module));
    // A feature's `mod.rs` has its handlers, its `store` the SQL.
    let has_handlers = |module: &str| FEATURES.contains(&module);
    let is_store = |module: &str| {
        let path_in_feature = module.split_once("::").map_or("", |(_, path)| path);
        is_feature(module) && part(path_in_feature) == "store"
    };
    for (from, imports) in service.imports() {
        for imported in imports {
            let what = format!("{from} imports {imported}");
            assert!(layer(from) <= layer(imported), "{what}, upwards");
            let may_speak_http = !is_feature(from) || has_handlers(from);
            assert!(
                may_speak_http || part(imported) != "http",
                "{what}, and is no feature's mod.rs"
            );
            let is_another = is_feature(from) && part(from) != part(imported);
            assert!(
                !is_another || !is_store(imported),
                "{what}: a store belongs to its feature"
            );
        }
    }
    for (module, paths) in &service.0 {
        assert!(
            module.is_empty() || layer(module).is_some(),
            "{module} is in no layer"
        );
        let names = |library: &str| paths.iter().any(|path| part(path) == library);
        let serves = ["app", "router", "openapi", "health", "http"].contains(&part(module))
            || has_handlers(module)
            || module == "metrics";
        assert!(serves || !names("axum"), "{module} must not name axum");
        let has_sql =
            is_store(module) || ["connection", "error", "idempotency"].contains(&part(module));
        assert!(has_sql || !names("sqlx"), "{module} must not name sqlx");
        assert!(
            !is_store(module) || !names("redis"),
            "{module}: no store knows Redis"
        );
    }
}
