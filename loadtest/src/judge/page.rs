//! The verdict as one HTML file, to keep: nothing in it comes from elsewhere, and no script runs.

use std::fmt::Write;

use super::{
    flaws::{Finding, Row},
    options::Language,
};
use crate::report::Checked;

/// The style of all pages.
const LOOK: &str = include_str!("../../../web/look.css");

/// The page.
pub fn html(
    findings: &[Finding],
    untried: &[String],
    report: &Checked,
    language: Language,
) -> String {
    let title = match language {
        Language::En => "Judge my node",
        Language::Zh => "评判我的节点",
    };
    let mut page = format!(
        "<!doctype html>\n<html lang=\"{}\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"content-security-policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{LOOK}\n\
         main > * {{ margin-block: 1rem }} pre {{ white-space: pre-wrap }} table {{ border-collapse: collapse }}\n\
         td, th {{ padding: .2rem .6rem; text-align: left; border-bottom: 1px solid var(--line) }}\n</style>\n\
         <main>\n<h1>{title}</h1>\n<p>{}</p>\n",
        language.pick(["en", "zh-CN"]),
        escaped(&report.heading)
    );
    for finding in findings {
        page += &section(finding, language);
    }
    if findings.is_empty() {
        page += &paragraph(&report.notes);
    } else {
        page.extend(untried.iter().map(|sentence| paragraph(sentence)));
    }
    let checks = report.checks.iter().map(|check| {
        vec![
            check.what.as_str(),
            &check.measured,
            &check.allowed,
            check.result.text(),
        ]
    });
    page += &table(&["check", "measured", "allowed", "result"], checks);
    for figures in &report.figures {
        let rows = figures.rows.iter();
        page += &table(
            &figures.columns,
            rows.map(|row| row.iter().map(String::as_str).collect()),
        );
    }
    page + "</main>\n"
}

fn section(finding: &Finding, language: Language) -> String {
    let Row { chapter, idea, .. } = finding.row();
    format!(
        "<section class=\"card\">\n<h2>✗ {}</h2>\n<pre>{}</pre>\n<p><strong>{}</strong></p>\n{}</section>\n",
        escaped(&finding.summary(language)),
        escaped(&finding.example.join("\n")),
        escaped(chapter),
        paragraph(language.pick(*idea))
    )
}

fn paragraph(text: &str) -> String {
    format!("<p>{}</p>\n", escaped(text))
}

fn table<'a>(titles: &[&str], rows: impl Iterator<Item = Vec<&'a str>>) -> String {
    let mut table = "<table class=\"card\">\n<tr>".to_owned();
    for title in titles {
        // Writing into a String cannot fail.
        write!(table, "<th>{}</th>", escaped(title.trim_start_matches('>'))).ok();
    }
    for row in rows {
        table += "</tr>\n<tr>";
        for cell in row {
            write!(table, "<td>{}</td>", escaped(cell)).ok();
        }
    }
    table + "</tr>\n</table>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
