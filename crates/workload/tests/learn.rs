//! The model behind the page `/learn` (`web/learn-*.js`), run by Node.js: a violation can be reached in it exactly where
//! the table of strategies says that it can happen; what the lab recorded is one of its interleavings; and docs/LAB-AND-LEARN.md
//! shows its figures. The READMEs show the present table. `UPDATE=1` writes what is generated.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use serde_json::{Value, json};
use workload::{
    ladder::{Guarantee, Strategy},
    markdown,
};

const LADDER_FILE: &str = "web/learn-ladder.js";

/// What the model says; see `learn/model.js`.
static MODEL: LazyLock<Value> = LazyLock::new(|| {
    let (file, wanted) = (root().join(LADDER_FILE), ladder_file());
    let kept = fs::read_to_string(&file).unwrap_or_default();
    present(LADDER_FILE, &kept, &wanted, || fs::write(&file, &wanted).expect("written"));
    let strategies = Strategy::ALL.map(|strategy| {
        let on_condition =
            |nodes| matches!(strategy.second_order_on(nodes), Guarantee::NeverWhile(_));
        json!({
            "name": strategy.name(), "unsafe": strategy.is_unsafe(),
            "condition": on_condition(1) || on_condition(2),
        })
    });
    let run = Command::new("node")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/learn/model.js"))
        .arg(Value::from(strategies.to_vec()).to_string())
        .output()
        .expect("Node.js, which runs the model (Debian: nodejs)");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_slice(&run.stdout).expect("JSON")
});

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What is kept is what is wanted, or is written.
fn present(what: &str, kept: &str, wanted: &str, write: impl FnOnce()) {
    if env::var_os("UPDATE").is_some() && kept != wanted {
        return write();
    }
    let differs = wanted.lines().zip(kept.lines()).find(|(now, kept)| now != kept);
    assert!(
        kept == wanted,
        "{what} is not the present one; first difference: {differs:?}\n\
         Write it with `UPDATE=1 cargo test -p seckill-workload`."
    );
}

/// The text between the marks `<!-- name:begin -->` and `<!-- name:end -->` of a page is `wanted`.
fn page_shows(page: &str, name: &str, wanted: &str) {
    let file = root().join(page);
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{page}: {error}"));
    let kept = markdown::section(&text, name);
    let kept = kept.unwrap_or_else(|| panic!("{page} has no comments {name}:begin"));
    present(page, kept, wanted, || markdown::write(&file, name, wanted).expect("written"));
}

#[test]
fn the_readmes_show_the_present_table() {
    let bold = "**Bold**: `./dev demo` must show it.";
    let titles =
        ["strategy", "the idea", "oversell", "second order, one node", "second order, two nodes"];
    let words = ["never", "possible", " (default)"];
    let table = ladder_table(0, titles, words, |condition| format!("never while {condition}"));
    page_shows("README.md", "ladder", &format!("{table}\n{bold}\n"));
    let bold = "**加粗**：`./dev demo` 必须演示出来。";
    let titles = ["策略", "思路", "超卖", "单节点一人多单", "双节点一人多单"];
    let words = ["不会", "可能", "（默认）"];
    let table = ladder_table(1, titles, words, |condition| format!("{condition}时不会"));
    page_shows("README.zh-CN.md", "ladder", &format!("{table}\n{bold}\n"));
}

/// The strategies and their guarantees, in a language of the READMEs. What the demonstration shows is bold.
fn ladder_table(
    language: usize,
    titles: [&str; 5],
    [never, possible, default]: [&str; 3],
    never_while: fn(&str) -> String,
) -> String {
    let cell = |guarantee| match guarantee {
        Guarantee::Never => never.to_owned(),
        Guarantee::NeverWhile(condition) => never_while(condition[language]),
        Guarantee::Possible => possible.to_owned(),
        Guarantee::Shown => format!("**{possible}**"),
    };
    let rows = Strategy::ALL.map(|strategy| {
        let row = strategy.row();
        let default = if strategy == Strategy::default() { default } else { "" };
        let cells = [row.oversell, row.second_order_on_one_node, row.second_order_on_two_nodes];
        let name = [format!("`{strategy}`{default}"), row.idea[language].to_owned()];
        name.into_iter().chain(cells.map(cell)).collect()
    });
    markdown::table(&titles, &rows)
}

/// The table's texts for the page, which must work without a server.
fn ladder_file() -> String {
    let mut text = "'use strict';\n// The table of strategies; written by `UPDATE=1 cargo test \
                    -p seckill-workload` from crates/workload/src/ladder.\nconst Ladder = {\n"
        .to_owned();
    for strategy in Strategy::ALL {
        let row = strategy.row();
        let row = json!({
            "idea": row.idea, "why": row.why, "unsafe": strategy.is_unsafe(),
        });
        text += &format!("  '{strategy}': {row},\n");
    }
    text + "};\n"
}

fn flag(value: &Value, path: &str) -> bool {
    value.pointer(path).and_then(Value::as_bool).unwrap_or_else(|| panic!("{path} in {value}"))
}

fn number(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path} in {value}"))
}

#[test]
fn a_violation_can_be_reached_exactly_where_the_table_says_that_it_can_happen() {
    for strategy in Strategy::ALL {
        let reached = &MODEL["reached"][strategy.name()];
        assert!(reached.is_object(), "the model has no program for {strategy}");
        let oversold = flag(reached, "/one/oversold") || flag(reached, "/two/oversold");
        assert_eq!(oversold, strategy.row().oversell.can_break(), "{strategy}: oversell");
        for (instances, path) in [(1, "/one/secondOrder"), (2, "/two/secondOrder")] {
            let says = strategy.second_order_on(instances);
            assert_eq!(
                flag(reached, path),
                says.can_break(),
                "{strategy}, second order, {instances} nodes"
            );
            // On a condition: the strategy alone keeps the promise, and without the condition and the index it does not.
            if let Guarantee::NeverWhile(condition) = says {
                let says = format!("{strategy}: {}", condition[0]);
                assert!(!flag(reached, "/alone/secondOrder"), "{says}");
                assert!(flag(reached, "/bare/secondOrder"), "{says}");
            }
        }
        for nodes in ["one", "two", "alone"] {
            assert_eq!(number(reached, &format!("/{nodes}/stuck")), 0, "{strategy}: a deadlock");
        }
    }
    let programs = MODEL["programs"].as_array().expect("names");
    let names: Vec<_> = programs.iter().filter_map(Value::as_str).collect();
    assert_eq!(names, Strategy::ALL.map(Strategy::name), "in the table's order");
}

#[test]
fn one_wrong_step_is_noticed() {
    for (name, reached) in MODEL["wrong"].as_object().expect("wrong models") {
        assert!(flag(reached, "/secondOrder"), "{name} breaks nothing");
    }
    for guarded in ["row-lock", "setnx-lock", "reentrant-lock"] {
        assert!(!flag(&MODEL["reached"][guarded], "/alone/secondOrder"), "{guarded}, as it is");
    }
}

#[test]
fn what_the_lab_recorded_is_an_interleaving_of_the_model() {
    let records = MODEL["records"].as_array().expect("records");
    for record in records {
        let name = format!("{} {}", record["strategy"], record["kind"]);
        assert!(record["moves"].is_array(), "{name}: the model cannot do what was recorded");
        let broken = record["violations"].as_array().expect("violations");
        let wanted: &[&str] = match record["kind"].as_str() {
            Some("oversold") => &["oversold"],
            Some("two-orders") => &["second-order"],
            _ => &[],
        };
        assert!(wanted.iter().all(|one| broken.contains(&json!(one))), "{name}: {broken:?}");
        assert_eq!(wanted.is_empty(), broken.is_empty(), "{name}: {broken:?}");
    }
    assert!(records.len() > 5, "{} records", records.len());
}

#[test]
fn the_levels_are_the_ladder_and_their_figures_are_documented() {
    let levels = MODEL["levels"].as_array().expect("levels");
    let mut strategies: Vec<_> =
        levels.iter().filter_map(|level| level["strategy"].as_str()).collect();
    strategies.dedup();
    assert_eq!(strategies, Strategy::ALL.map(Strategy::name), "a level for each, in this order");

    let half_cure = levels.iter().find(|level| level["id"] == "setnx-unowned-compare");
    let half_cure = half_cure.expect("a level with a lock that is compared before its deletion");
    assert!(number(half_cure, "/broken") > 0, "compare, then delete, in two commands: no cure");

    page_shows("docs/LAB-AND-LEARN.md", "levels", &levels_table(levels));
}

fn levels_table(levels: &[Value]) -> String {
    let titles = ["level", "requests", "may happen once", "interleavings", "of these break it"];
    let row = |level: &Value| {
        let requests = level["requests"].as_array().expect("requests").iter();
        let requests =
            requests.map(|request| format!("{}→{}", text(&request[0]), number(request, "/1")));
        let events = level["events"].as_object().expect("events").keys();
        vec![
            format!("`{}`", text(&level["id"])),
            requests.collect::<Vec<_>>().join(" "),
            dash(events.cloned().collect::<Vec<_>>().join(", ")),
            markdown::count(number(level, "/interleavings")),
            markdown::count(number(level, "/broken")),
        ]
    };
    markdown::table(&titles, &levels.iter().map(row).collect::<Vec<_>>())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

fn dash(text: String) -> String {
    if text.is_empty() { "–".to_owned() } else { text }
}
