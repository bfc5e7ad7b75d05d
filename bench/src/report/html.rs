//! The report as one HTML file: no script, no font, nothing fetched from anywhere.

use std::fmt::Write;

use seckill_loadtest::table::Align;

use super::svg::{self, Line, escape};
use super::{RATIO_COLUMNS, RUN_COLUMNS, Report};
use crate::runs::{CURVE, Run};

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th,td{padding:.3rem .5rem;border-bottom:1px solid #ddd;text-align:left}
.right{text-align:right;font-variant-numeric:tabular-nums}
tr.below{background:#fde8e4}tr.aim{background:#e6f4ea}tr.missing{color:#888}
svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:#333}
.grid{stroke:#ddd}.line{fill:none;stroke-width:2}p.small{color:#555;font-size:13px}";

/// The page.
pub fn page(report: &Report) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Flash sale: ratios</title>\
         <style>{STYLE}</style></head><body>\n<h1>Flash sale: ratios</h1>\n<p class=\"small\">{}</p>\n",
        escape(&report.facts.text())
    );
    let classes = report.ratios.iter().map(|measured| match measured.standing {
        crate::ratios::Standing::Aim => "aim",
        crate::ratios::Standing::Below => "below",
        crate::ratios::Standing::NotAvailable => "missing",
        crate::ratios::Standing::Floor => "",
    });
    table(&mut out, &RATIO_COLUMNS, &report.rows(), classes);
    // Writing into a String cannot fail.
    writeln!(
        out,
        "<p class=\"small\">Medians of interleaved rounds. Every run ended with an audit of all replies \
         against all rows; a run that breaks a law ends the benchmark. All {} runs are clean.</p>",
        report.runs.len()
    )
    .ok();
    if let Some((lock, single)) = report.cpu_ratios() {
        let (lock, single) = (crate::ratios::figure(lock), crate::ratios::figure(single));
        writeln!(
            out,
            "<p class=\"small\">By processor time of all servers an order, which other load hardly \
             changes, ratio 1 is {lock} and ratio 2 is {single}.</p>"
        )
        .ok();
    }
    for measured in &report.ratios {
        if let Some(note) = &measured.ratio.note {
            let text = format!("{}: {note}.", measured.ratio.number);
            writeln!(out, "<p class=\"small\">{}</p>", escape(&text)).ok();
        }
    }
    let limits: Vec<_> = report.limits().collect();
    if !limits.is_empty() {
        out += "<h2>Aims not reached: what the profile shows as the next limit</h2><ul class=\"small\">\n";
        for (number, limit) in limits {
            writeln!(out, "<li>{number}: {}</li>", escape(limit)).ok();
        }
        out += "</ul>\n";
    }
    plots(&mut out, report);
    out += "<h2>Absolute figures</h2><p class=\"small\">Medians, on this machine at that hour: a \
            footnote to the ratios. Latency of orders; of refusals where nothing is on sale. µs: processor time \
            of one answer.</p>\n";
    table(&mut out, &RUN_COLUMNS, &report.footnotes(), std::iter::repeat(""));
    out += "<h2>What they are held against</h2><p>The <em>bare route</em> is an axum route that sends the \
            same body and does nothing for it. <em>One transaction per order</em> inserts the order, takes \
            one from the stock where there is some, and commits, in three round trips with prepared \
            statements; it has no session check, no window check and no limits. redis-benchmark has 64 \
            clients and does not pipeline.</p>\n</body></html>\n";
    out
}

fn plots(out: &mut String, report: &Report) {
    let scenes = &report.scenes;
    let mut bars = scenes.rungs.clone();
    let single = "one transaction per order";
    let of = |run: &&Run| run.name == single;
    let rates: Vec<f64> = report.runs.iter().filter(of).map(|run| run.orders_per_s).collect();
    if let Some(rate) = crate::ratios::median(&rates) {
        bars.push(("baseline: one, transaction per order".to_owned(), rate));
    }
    *out += "<h2>Orders a second, by strategy</h2>\n<p class=\"small\">256 clients (stream: 64), one \
             instance, one sale; committed orders only, except stream, which counts places.</p>\n";
    *out += &svg::bars("Orders a second by strategy", "orders/s", &bars);
    *out += "<h2>How long a buyer waits</h2>\n";
    *out += &svg::percentiles("Latency by percentile", &curves(&report.runs));
    let sale = &scenes.sale;
    let line =
        |name: &str, points: &[(f64, f64)]| Line { name: name.into(), points: points.into() };
    *out += "<h2>A sale that sells out</h2>\n<p class=\"small\">The stock is the database's own, looked at \
             every 10 ms; it never passes zero.</p>\n";
    *out += &svg::lines(
        "Orders and stock against time",
        "seconds",
        "count",
        &[
            line("orders", &sale.orders),
            line("stock left", &sale.left),
            line("told: sold out", &sale.refused),
        ],
    );
    let sizes: Vec<_> = scenes
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
    *out += &svg::bars("Batch sizes", "batches", &sizes);
}

/// The round in the middle, of each kind of run worth comparing.
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
        let points = CURVE.iter().copied().zip(run.curve_ms.iter().copied()).collect();
        let clients = if name.contains(',') { "" } else { ", 256" };
        Some(Line { name: format!("{name}{clients}"), points })
    };
    names.iter().filter_map(of).collect()
}

fn table<'a>(
    out: &mut String,
    columns: &[(&str, Align)],
    rows: &[Vec<String>],
    classes: impl Iterator<Item = &'a str>,
) {
    let class = |align: &Align| if *align == Align::Right { " class=\"right\"" } else { "" };
    *out += "<table><tr>";
    for (name, align) in columns {
        write!(out, "<th{}>{}</th>", class(align), escape(name)).ok();
    }
    *out += "</tr>\n";
    for (row, row_class) in rows.iter().zip(classes) {
        write!(out, "<tr class=\"{row_class}\">").ok();
        for (cell, (_, align)) in row.iter().zip(columns) {
            write!(out, "<td{}>{}</td>", class(align), escape(cell)).ok();
        }
        *out += "</tr>\n";
    }
    *out += "</table>\n";
}
