//! The model behind the page `/learn` (`web/learn-*.js`), run by Node.js: a violation can be reached in it exactly where
//! the table of strategies says that it can happen; what the lab recorded is one of its interleavings; and docs/LAB-AND-LEARN.md
//! shows its figures. The READMEs show the present table. `UPDATE=1` writes what is generated.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use strategies::{Guarantee, Strategy};
use workload::markdown;

const LADDER_FILE: &str = "web/learn-ladder.js";

/// `learn/model.js` compares the model to the table, and prints the levels' figures.
#[test]
fn the_model_agrees_with_the_table_and_its_figures_are_documented() {
    let file = root().join(LADDER_FILE);
    let wanted = ladder_file();
    let kept = fs::read_to_string(&file).unwrap_or_default();
    check_or_write(LADDER_FILE, &kept, &wanted, || {
        fs::write(&file, &wanted).expect("written")
    });
    let strategies = Strategy::ALL.map(|strategy| {
        let second = strategy.row().second_order;
        json!({
            "name": strategy.name(), "unguarded": strategy.is_unguarded(),
            "lost": strategy.can_lose(),
            "oversell": strategy.row().oversell.can_break(),
            "second": second.map(Guarantee::can_break),
            "condition": second.iter().any(|says| matches!(says, Guarantee::NeverWhile(_))),
        })
    });
    let run = Command::new("node")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/learn/model.js"))
        .arg(Value::from(strategies.to_vec()).to_string())
        .output()
        .expect("Node.js, which runs the model (Debian: nodejs)");
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    page_shows(
        "docs/LAB-AND-LEARN.md",
        "levels",
        &String::from_utf8_lossy(&run.stdout),
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Fails if `kept` is not `wanted`; with `UPDATE=1`, writes it instead.
fn check_or_write(what: &str, kept: &str, wanted: &str, write: impl FnOnce()) {
    if env::var_os("UPDATE").is_some() && kept != wanted {
        return write();
    }
    let differs = wanted
        .lines()
        .zip(kept.lines())
        .find(|(now, kept)| now != kept);
    assert!(
        kept == wanted,
        "{what} is not the present one; first difference: {differs:?}\n\
         Write it with `UPDATE=1 cargo test -p seckill-workload`."
    );
}

/// Checks that the text between the marks `<!-- name:begin -->` and `<!-- name:end -->` of a page is `wanted`, or writes it.
fn page_shows(page: &str, name: &str, wanted: &str) {
    let file = root().join(page);
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{page}: {error}"));
    let kept = markdown::section(&text, name);
    let kept = kept.unwrap_or_else(|| panic!("{page} has no comments {name}:begin"));
    check_or_write(page, kept, wanted, || {
        markdown::write(&file, name, wanted).expect("written")
    });
}

#[test]
fn the_readmes_show_the_present_table() {
    let bold = "**Bold**: `./dev demo` must show it.";
    let titles = [
        "strategy",
        "the idea",
        "oversell",
        "second order, one node",
        "second order, two nodes",
        "lost when a node is killed",
    ];
    let words = ["never", "possible", " (default)"];
    let table = ladder_table(0, titles, words, |condition| {
        format!("never while {condition}")
    });
    page_shows("README.md", "ladder", &format!("{table}\n{bold}\n"));
    let bold = "**加粗**：`./dev demo` 必须演示出来。";
    let titles = [
        "策略",
        "思路",
        "超卖",
        "单节点一人多单",
        "双节点一人多单",
        "终止节点会丢单",
    ];
    let words = ["不会", "可能", "（默认）"];
    let table = ladder_table(1, titles, words, |condition| format!("{condition}时不会"));
    page_shows("README.zh-CN.md", "ladder", &format!("{table}\n{bold}\n"));
}

/// The strategies and their guarantees, in a language of the READMEs. What the demonstration shows is bold.
fn ladder_table(
    language: usize,
    titles: [&str; 6],
    [never, possible, default]: [&str; 3],
    never_while: fn(&str) -> String,
) -> String {
    let rows = Strategy::ALL.map(|strategy| {
        let row = strategy.row();
        let default = if strategy == Strategy::default() {
            default
        } else {
            ""
        };
        let [one_node, two_nodes] = row.second_order;
        let guarantees =
            [row.oversell, one_node, two_nodes, row.lost].map(|guarantee| match guarantee {
                Guarantee::Never => never.to_owned(),
                Guarantee::NeverWhile(condition) => never_while(condition[language]),
                Guarantee::Possible => possible.to_owned(),
                Guarantee::Shown => format!("**{possible}**"),
            });
        let name = [
            format!("`{strategy}`{default}"),
            row.idea[language].to_owned(),
        ];
        name.into_iter().chain(guarantees).collect()
    });
    markdown::table(&titles, &rows)
}

/// The table's texts for the page, which must work without a server.
fn ladder_file() -> String {
    let mut text = "'use strict';\n// The table of strategies; written by `UPDATE=1 cargo test \
                    -p seckill-workload` from crates/strategies/.\nconst Ladder = {\n"
        .to_owned();
    for strategy in Strategy::ALL {
        let row = strategy.row();
        let row = json!({
            "idea": row.idea, "why": row.why, "unguarded": strategy.is_unguarded(),
        });
        text += &format!("  '{strategy}': {row},\n");
    }
    text + "};\n"
}
