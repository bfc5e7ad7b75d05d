//! The report as one self-contained HTML file. Tables are written here; the web pages' code (`web/plots.js`) draws
//! the plots from numbers in the file.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::bench::ratios::RatioStatus;
use crate::bench::report::{RUN_COLUMNS, Report};
use crate::bench::runs::{QUANTILES, Run};

/// Style and scripts of the web pages.
const PAGES_STYLE: &str = include_str!("../../../web/look.css");
const SCRIPTS: [&str; 2] =
    [include_str!("../../../web/words.js"), include_str!("../../../web/plots.js")];

/// The style of tables.
const STYLE: &str = "\
main{max-width:66rem;padding-block:2rem}h2{margin-top:2.2rem}main p,main table{margin-top:.6rem}
table{border-collapse:collapse;width:100%;font-size:13.5px}.wide{overflow-x:auto}
th,td{padding:.3rem .5rem;border-bottom:1px solid var(--line);text-align:left}
.right{text-align:right;font-variant-numeric:tabular-nums}
tr.below{background:var(--bad-wash)}tr.aim{background:var(--good-wash)}tr.missing,.small{color:var(--soft)}
.small{font-size:.9rem}ul.small{list-style:disc;padding-left:1.2rem}figure{margin-top:.8rem}";

/// Draws every figure in its width, and again when the window changes.
const DRAW: &str = "\
const plots = JSON.parse(document.getElementById('plots').textContent);
const drawAll = () => document.querySelectorAll('[data-plot]').forEach((figure) => {
  const { shape, ...numbers } = plots[figure.dataset.plot];
  figure.replaceChildren(Plots[shape]({ width: Math.max(280, figure.clientWidth), ...numbers }));
});
addEventListener('resize', drawAll);
drawAll();";

/// The classes of the lines' colours.
const KINDS: [&str; 6] = ["one", "two", "three", "four", "five", "six"];

/// A named line of (x, y), by x.
type Line = (String, Vec<(f64, f64)>);

/// The page.
pub fn page(report: &Report) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><title>Flash sale: ratios</title>\
         <style>{PAGES_STYLE}{STYLE}</style></head><body><main>\n<h1>Flash sale: ratios</h1>\n<p class=\"small\">{}</p>\n",
        escape(&report.conditions.text())
    );
    let classes = report.ratios.iter().map(|measured| match measured.status {
        RatioStatus::Aim => "aim",
        RatioStatus::Below => "below",
        RatioStatus::NotAvailable => "missing",
        RatioStatus::Floor | RatioStatus::Reported => "",
    });
    let columns = report.ratio_columns();
    let columns: Vec<_> = columns.iter().map(String::as_str).collect();
    table(&mut out, &columns, &report.ratio_rows(), classes);
    // Writing into a String cannot fail.
    writeln!(
        out,
        "<p class=\"small\">Medians of interleaved rounds. Every run ended with an audit of all replies \
         against all rows; a run that fails it ends the benchmark. All {} runs passed.</p>",
        report.runs.len()
    )
    .ok();
    for remark in report.remarks() {
        writeln!(out, "<p class=\"small\">{}</p>", escape(&remark)).ok();
    }
    let limits = report.limits();
    if !limits.is_empty() {
        out += "<h2>The next limit, by profile, where an aim is not reached</h2><ul class=\"small\">\n";
        for (number, limit) in limits {
            writeln!(out, "<li>{number}: {}</li>", escape(limit)).ok();
        }
        out += "</ul>\n";
    }
    let plots = plots(&mut out, report);
    out += "<h2>Absolute figures</h2><p class=\"small\">Medians on this machine at that time: \
            context for the ratios. Latency of orders; of refusals where nothing is on sale. µs: processor time \
            of one answer.</p>\n";
    table(&mut out, &RUN_COLUMNS, &report.run_rows(), std::iter::repeat(""));
    out += "<h2>Baselines</h2><p>The <em>bare route</em> is an axum route that sends the \
            same body without any work for it. <em>One transaction per order</em> inserts the order, takes \
            one from the stock where there is some, and commits, in three round trips with prepared \
            statements; it has no session check, no check of the sale's window and no limits. redis-benchmark has 64 \
            clients and does not pipeline.</p>\n</main>\n";
    finish(out, &plots)
}

/// Adds the plots' numbers and the scripts that draw them.
fn finish(mut out: String, plots: &[Value]) -> String {
    // A `</script>` inside the numbers would end them.
    let numbers = Value::from(plots).to_string().replace('<', "\\u003c");
    writeln!(out, "<script type=\"application/json\" id=\"plots\">{numbers}</script>").ok();
    for script in SCRIPTS.iter().chain([&DRAW]) {
        writeln!(out, "<script>\n{script}\n</script>").ok();
    }
    out + "</body></html>\n"
}

/// Writes a place for each plot; returns their numbers.
fn plots(out: &mut String, report: &Report) -> Vec<Value> {
    let mut plots = Vec::new();
    let mut place = |out: &mut String, plot: Value| {
        writeln!(out, "<figure data-plot=\"{}\"></figure>", plots.len()).ok();
        plots.push(plot);
    };
    let scenarios = &report.scenarios;
    let mut bars = scenarios.strategies.clone();
    let single = "one transaction per order";
    if let Some(rate) = report.median_of(single, |run| run.orders_per_s) {
        bars.push((single.to_owned(), rate));
    }
    *out += "<h2>Orders per second by strategy</h2>\n<p class=\"small\">256 clients, one \
             instance, one sale; committed orders only, except stream, which counts admissions.</p>\n";
    place(out, bar_plot("Orders per second by strategy", "orders/s", &bars));
    *out += "<h2>Latency of orders</h2>\n";
    let latency = json!({
        "shape": "percentiles", "name": "Latency by percentile", "unit": "percentile",
        "series": series(&curves(&report.runs)),
    });
    place(out, latency);
    let sale = &scenarios.sale;
    *out += "<h2>A sale that sells out</h2>\n<p class=\"small\">The stock in the database, sampled \
             every 10 ms; it never falls below zero.</p>\n";
    let lines = [
        ("orders".to_owned(), sale.orders.clone()),
        ("stock left".to_owned(), sale.left.clone()),
        ("replies: sold out".to_owned(), sale.refused.clone()),
    ];
    let sells_out = json!({
        "shape": "lines", "name": "Orders and stock against time", "unit": "seconds", "height": 320,
        "series": series(&lines),
    });
    place(out, sells_out);
    let sizes: Vec<_> = scenarios
        .batches
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(bound, count)| {
            let from = bound / 2 + 1;
            let name = if from >= *bound { bound.to_string() } else { format!("{from}–{bound}") };
            (name, *count as f64)
        })
        .collect();
    *out += "<h2>Orders that shared a commit</h2>\n<p class=\"small\">Batches of group-commit in all \
             rounds with 16, 256 and 1,024 clients.</p>\n";
    place(out, bar_plot("Batch sizes", "batches", &sizes));
    plots
}

fn bar_plot(name: &str, unit: &str, bars: &[(String, f64)]) -> Value {
    json!({ "shape": "bars", "name": name, "unit": unit, "bars": bars })
}

/// The lines, each in its own colour.
fn series(lines: &[Line]) -> Value {
    let one = |((name, points), kind): (&Line, &&str)| json!({ "name": name, "kind": kind, "points": points });
    lines.iter().zip(KINDS.iter().cycle()).map(one).collect()
}

/// The latency curves of some runs: the round with the median p99 of each.
fn curves(runs: &[Run]) -> Vec<Line> {
    let names = [
        "group-commit, 16",
        "group-commit",
        "group-commit, 1,024",
        "group-commit, open loop at 70 %",
        "reentrant-lock",
    ];
    let of = |name: &&str| {
        let mut found: Vec<&Run> = runs.iter().filter(|run| run.name == *name).collect();
        found.sort_by(|a, b| a.latency.p99_ms.total_cmp(&b.latency.p99_ms));
        let run = found.get(found.len() / 2)?;
        let points = QUANTILES.iter().copied().zip(run.curve_ms.iter().copied()).collect();
        let clients = if name.contains(',') { "" } else { ", 256" };
        Some((format!("{name}{clients}"), points))
    };
    names.iter().filter_map(of).collect()
}

fn table<'a>(
    out: &mut String,
    columns: &[&str],
    rows: &[Vec<String>],
    classes: impl Iterator<Item = &'a str>,
) {
    let class = |column: &str| if column.starts_with('>') { " class=\"right\"" } else { "" };
    *out += "<div class=\"wide\"><table><tr>";
    for column in columns {
        let name = column.trim_start_matches('>');
        write!(out, "<th{}>{}</th>", class(column), escape(name)).ok();
    }
    *out += "</tr>\n";
    for (row, row_class) in rows.iter().zip(classes) {
        write!(out, "<tr class=\"{row_class}\">").ok();
        for (cell, column) in row.iter().zip(columns) {
            write!(out, "<td{}>{}</td>", class(column), escape(cell)).ok();
        }
        *out += "</tr>\n";
    }
    *out += "</table></div>\n";
}

/// Escapes text for HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_cannot_end_their_script_and_the_page_loads_nothing() {
        let plot = bar_plot("</script><b>", "n", &[("a<b".to_owned(), 1.0)]);
        let page = finish(String::new(), &[plot]);
        assert_eq!(page.matches("</script>").count(), 2 + SCRIPTS.len(), "{page}");
        assert!(!page.contains("<b>") && page.contains("\\u003cb>"), "{page}");
        assert!(!page.contains(" src="), "{page}");
    }
}
