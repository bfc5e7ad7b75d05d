//! CONTRIBUTING.md names every file that a new strategy has to be in, and every strategy is in each of them.

use std::fs;
use std::path::{Path, PathBuf};

use strategies::Strategy;

use crate::support::read;

/// Where strategies are named, beside the READMEs.
const FOLDERS: [&str; 7] = [
    "crates",
    "docs",
    "loadtest",
    "migrations",
    "src",
    "tests",
    "web",
];

/// A file that names all strategies but one has forgotten that one.
#[test]
fn the_recipe_for_a_strategy_names_every_file_and_each_has_all_strategies() {
    let contributing = read("CONTRIBUTING.md");
    let recipe = contributing
        .split("\n## ")
        .find(|section| section.starts_with("Add a strategy"))
        .expect("the recipe");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::from(["README.md", "README.zh-CN.md"].map(|name| root.join(name)));
    for folder in FOLDERS {
        collect_files(&root.join(folder), &mut files);
    }
    let mut mistakes = Vec::new();
    for file in files {
        // Images are no text.
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        let missing: Vec<&str> = Strategy::ALL
            .into_iter()
            .filter(|strategy| !has_name_of(&text, *strategy))
            .map(Strategy::name)
            .collect();
        if missing.len() > 1 {
            continue;
        }
        let path = file.strip_prefix(root).expect("below the root");
        let path = path.display().to_string();
        if !recipe.contains(&format!("`{path}`")) {
            mistakes.push(format!(
                "{path} has every strategy, and the recipe does not name it"
            ));
        }
        for name in missing {
            mistakes.push(format!(
                "{path} lacks the strategy {name}: see \"Add a strategy\" in CONTRIBUTING.md"
            ));
        }
    }
    assert!(mistakes.is_empty(), "{mistakes:#?}");
}

/// Whether the strategy's name, or that of its variant, is a word of the text.
fn has_name_of(text: &str, strategy: Strategy) -> bool {
    let variant = format!("{strategy:?}");
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .any(|word| word == strategy.name() || word == variant)
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect_files(&path, files);
        } else {
            files.push(path);
        }
    }
}
