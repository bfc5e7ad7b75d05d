//! Compares the fields of all log lines with the table in `docs/LOGGING.md`, in both directions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The fields of each log line in `text`: the arguments before its message.
fn fields(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for level in ["error", "warn", "info", "debug", "trace"] {
        for (at, call) in text.match_indices(&format!("tracing::{level}!(")) {
            let rest = &text[at + call.len()..];
            let before = &rest[..rest.find('"').unwrap_or(0)];
            let (mut depth, mut field) = (0_i32, String::new());
            for c in before.chars() {
                match c {
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth -= 1,
                    ',' if depth == 0 => {
                        found.push(std::mem::take(&mut field));
                        continue;
                    }
                    _ => {}
                }
                field.push(c);
            }
        }
    }
    let name = |field: String| {
        let name = field.split('=').next().unwrap_or_default();
        name.trim().trim_start_matches(['%', '?', '&']).to_owned()
    };
    found.into_iter().map(name).collect()
}

#[test]
fn the_reader_finds_fields_in_every_spelling() {
    let text = "tracing::warn!(%error, orders = list.len(), \"a, b\"); tracing::info!(\"x = y\");\
                tracing::debug!(status, ?keys, of = f(a, b), \"z\");";
    assert_eq!(fields(text), ["error", "orders", "status", "keys", "of"]);
}

#[test]
fn log_lines_use_the_fields_of_the_guide_and_no_others() {
    fn collect(folder: &Path, used: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, used);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                for field in fields(&std::fs::read_to_string(&path).unwrap()) {
                    used.insert(field, path.display().to_string());
                }
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut used = BTreeMap::new();
    for folder in ["src", "lock/src", "cache/src"] {
        collect(&root.join(folder), &mut used);
    }
    let guide = std::fs::read_to_string(root.join("docs/LOGGING.md")).unwrap();
    let table = guide.split("## Fields").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let names = rows.filter_map(|row| row.split('|').nth(1));
    let named: BTreeSet<&str> = names.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    for (field, file) in &used {
        assert!(named.contains(field.as_str()), "{file}: `{field}` is not in docs/LOGGING.md");
    }
    for name in named {
        assert!(used.contains_key(name), "docs/LOGGING.md names `{name}`, which no line has");
    }
}
