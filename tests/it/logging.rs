//! Compares the fields of all log lines with the list of fields, in both directions: what one reads or alerts by has one name.

use std::collections::BTreeMap;
use std::path::Path;

/// All fields. A duration's name ends in its unit; a number of things has none.
#[rustfmt::skip]
const FIELDS: [&str; 44] = [
    "error", "detail", "voucher_id", "order_id", "shop_id", "type_id", "strategy", "entry",
    "entries", "key", "keys", "items", "channel", "operation", "lock", "owner", "reason",
    "semaphore", "policy", "task", "tasks", "address", "unix_socket", "node", "status",
    "elapsed_us", "stock", "added", "count", "orders", "cancelled", "shops", "tries", "pending",
    "left", "requests", "index", "stored", "signal", "lab", "run", "fault", "phone", "code",
];

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
fn log_lines_use_the_fields_of_the_list_and_no_others() {
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
    for folder in ["src", "crates/lock/src", "crates/cache/src"] {
        collect(&root.join(folder), &mut used);
    }
    for (field, file) in &used {
        assert!(FIELDS.contains(&field.as_str()), "{file}: `{field}` is not in the list of fields");
    }
    for name in FIELDS {
        assert!(used.contains_key(name), "no line has the field `{name}`");
    }
}
