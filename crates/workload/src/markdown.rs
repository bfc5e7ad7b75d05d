//! Markdown that programs write: figures, tables, and their places in documents, between the comments
//! `<!-- NAME:begin -->` and `<!-- NAME:end -->`.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

use crate::Error;

/// A file of this checkout, `docs/NAME`.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name)
}

/// What the document has between the comments of `name`; `None` where they are missing.
pub fn section<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, after_begin) = text.split_once(&format!("<!-- {name}:begin -->\n"))?;
    Some(after_begin.split_once(&format!("<!-- {name}:end -->"))?.0)
}

/// Writes `table` between the comments of `name`.
pub fn write(path: &Path, name: &str, table: &str) -> Result<(), Error> {
    let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
    let Some(old) = section(&text, name) else {
        return Err(Error::Usage(format!(
            "{} has no comments {name}:begin",
            path.display()
        )));
    };
    let begin = old.as_ptr().addr() - text.as_ptr().addr();
    let end = begin + old.len();
    let text = format!("{}{table}{}", &text[..begin], &text[end..]);
    std::fs::write(path, text).map_err(Error::file(path))
}

/// A Markdown table. Columns whose title begins with `>` are aligned right.
pub fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let mut out = String::new();
    let names: Vec<&str> = titles
        .iter()
        .map(|title| title.trim_start_matches('>'))
        .collect();
    let rule = titles.iter().map(|title| {
        if title.starts_with('>') {
            "---:"
        } else {
            "---"
        }
    });
    // Writing into a String cannot fail.
    writeln!(
        out,
        "| {} |\n|{}|",
        names.join(" | "),
        rule.collect::<Vec<_>>().join("|")
    )
    .ok();
    for row in rows {
        writeln!(out, "| {} |", row.join(" | ")).ok();
    }
    out
}

/// A figure with three significant digits, thousands separated by commas.
pub fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let digits = 2.0 - value.abs().max(1e-9).log10().floor();
    let places = digits.clamp(0.0, 3.0) as usize;
    let unit = 10_f64.powi(digits as i32);
    let rounded = if value.abs() >= 100.0 {
        (value * unit).round() / unit
    } else {
        value
    };
    let text = format!("{rounded:.places$}");
    match text.split_once('.') {
        Some((whole, decimals)) => format!("{}.{decimals}", with_commas(whole)),
        None => with_commas(&text),
    }
}

/// A whole number, thousands separated by commas.
pub fn count(value: u64) -> String {
    with_commas(&value.to_string())
}

/// A time with its unit.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{} ms", figure(s * 1e3)),
        s if s < 600.0 => format!("{} s", figure(s)),
        s if s < 36_000.0 => format!("{} min", figure(s / 60.0)),
        s => format!("{} h", figure(s / 3_600.0)),
    }
}

/// A size with its unit.
pub fn bytes(count: f64) -> String {
    match count {
        c if c < 1e3 => format!("{} B", figure(c)),
        c if c < 1e6 => format!("{} KB", figure(c / 1e3)),
        c if c < 1e9 => format!("{} MB", figure(c / 1e6)),
        c => format!("{} GB", figure(c / 1e9)),
    }
}

fn with_commas(digits: &str) -> String {
    let groups = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}
