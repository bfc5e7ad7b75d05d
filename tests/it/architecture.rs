//! The rules for imports, checked by reading the sources: no files and no folders of a crate import each other, and each part
//! of the service names only the parts that it may.
//!
//! The reader knows words and `::`, not Rust. A path stands for its deepest module. If that module imports the item itself, the
//! path stands for the module that the item comes from. Test code is not read; globs and names made by macros are not followed.

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

/// The modules of a crate by name, such as `order::store`, each with the paths in it; the root's name is empty.
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
        let mut to_read = vec![root.clone()];
        while let Some(path) = to_read.pop() {
            if path.is_dir() {
                to_read.extend(
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

    /// The deepest module that `path` names in `from`. If that module imports the item itself, the module that the item comes
    /// from, over at most `follows` imports.
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

    /// For each module, the modules that it names, or whose items it names.
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

/// The paths in a source, also those of a `use` with nested braces.
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
    // What the paths in each open brace begin with.
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

/// The modules that import each other in a circle. Removes, again and again, the modules that import none of the remaining
/// ones, or that none of these imports.
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

/// The file or folder directly in `parent` that is `module` or contains it; the root's name is empty.
fn child_of<'a>(parent: &str, module: &'a str) -> Option<&'a str> {
    let below_parent = match parent {
        "" => module,
        _ => module.strip_prefix(parent)?.strip_prefix("::")?,
    };
    (!below_parent.is_empty()).then(|| part(below_parent))
}

#[test]
fn each_part_of_the_service_imports_only_lower_layers_and_what_it_may() {
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
            let is_of_another_part = is_feature(from) && part(from) != part(imported);
            assert!(
                !is_of_another_part || !is_store(imported),
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
        let may_name_axum = ["app", "router", "openapi", "health", "http"].contains(&part(module))
            || has_handlers(module)
            || module == "metrics";
        assert!(
            may_name_axum || !names("axum"),
            "{module} must not name axum"
        );
        let may_name_sqlx =
            is_store(module) || ["connection", "error", "idempotency"].contains(&part(module));
        assert!(
            may_name_sqlx || !names("sqlx"),
            "{module} must not name sqlx"
        );
        assert!(
            !is_store(module) || !names("redis"),
            "{module}: no store knows Redis"
        );
    }
}
