//! The documents that show the ladder's table show the present one. `UPDATE=1` writes it into them.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use workload::ladder::markdown::{Language, markdown_table};

const BEGIN: &str = "<!-- ladder:begin -->\n";
const END: &str = "<!-- ladder:end -->\n";

/// README and its translation, and each page of `docs/` that has the marks.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md"), root.join("README.zh-CN.md")];
    let pages = fs::read_dir(root.join("docs")).expect("docs/");
    let pages = pages.map(|entry| entry.expect("a page").path());
    let shows = |page: &PathBuf| {
        page.extension().is_some_and(|kind| kind == "md")
            && fs::read_to_string(page).expect("a page").contains(BEGIN)
    };
    files.extend(pages.filter(shows));
    files
}

#[test]
fn the_documents_show_the_present_table() {
    for file in documents() {
        let name = file.display();
        let chinese = file.to_string_lossy().ends_with(".zh-CN.md");
        let table = markdown_table(if chinese { Language::Chinese } else { Language::English });
        let text = fs::read_to_string(&file).unwrap();
        let parts = text.split_once(BEGIN).and_then(|(before, rest)| {
            let (shown, after) = rest.split_once(END)?;
            Some((before, shown, after))
        });
        let (before, shown, after) =
            parts.unwrap_or_else(|| panic!("{name} has no lines {BEGIN:?} and {END:?}"));
        if env::var_os("UPDATE").is_some() && shown != table {
            fs::write(&file, [before, BEGIN, &table, END, after].concat()).unwrap();
            continue;
        }
        let differs = table.lines().zip(shown.lines()).find(|(now, shown)| now != shown);
        assert!(
            shown == table,
            "{name} does not show the ladder's present table; first difference: {differs:?}\n\
             Write it with `UPDATE=1 cargo test -p seckill-workload`."
        );
    }
}
