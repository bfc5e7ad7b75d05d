//! The table as Markdown, for the documents that show it.

use std::fmt::Write;

use super::{Guarantee, Strategy, Text};

/// A language of the documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// English.
    English,
    /// Simplified Chinese.
    Chinese,
}

impl Language {
    const fn of(self, text: Text) -> &'static str {
        match self {
            Self::English => text.en,
            Self::Chinese => text.zh,
        }
    }

    fn guarantee(self, guarantee: Guarantee) -> String {
        match (self, guarantee) {
            (Self::English, Guarantee::Never) => "never".to_owned(),
            (Self::English, Guarantee::NeverWhile(condition)) => {
                format!("never while {}", condition.en)
            }
            (Self::English, Guarantee::Possible) => "possible".to_owned(),
            (Self::English, Guarantee::Shown) => "**possible**".to_owned(),
            (Self::Chinese, Guarantee::Never) => "不会".to_owned(),
            (Self::Chinese, Guarantee::NeverWhile(condition)) => format!("{}时不会", condition.zh),
            (Self::Chinese, Guarantee::Possible) => "可能".to_owned(),
            (Self::Chinese, Guarantee::Shown) => "**可能**".to_owned(),
        }
    }
}

/// The strategies and their guarantees, as a Markdown table with a line that explains its bold cells.
pub fn markdown_table(language: Language) -> String {
    let (head, default, note) = match language {
        Language::English => (
            "| strategy | the idea | oversell | second order, one node | second order, two nodes |",
            " (default)",
            "**Bold**: `./dev demo` shows it.",
        ),
        Language::Chinese => (
            "| 策略 | 思路 | 超卖 | 单节点一人多单 | 双节点一人多单 |",
            "（默认）",
            "**加粗**：`./dev demo` 会当场演示。",
        ),
    };
    let mut table = format!("{head}\n|---|---|---|---|---|\n");
    for strategy in Strategy::ALL {
        let row = strategy.row();
        let cells = [row.oversell, row.second_order_on_one_node, row.second_order_on_two_nodes];
        let cells = cells.map(|cell| language.guarantee(cell)).join(" | ");
        let default = if strategy == Strategy::default() { default } else { "" };
        // Writing to a String cannot fail.
        writeln!(table, "| `{}`{default} | {} | {cells} |", row.name, language.of(row.idea)).ok();
    }
    table + "\n" + note + "\n"
}
