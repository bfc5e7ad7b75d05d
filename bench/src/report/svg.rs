//! Plots as SVG, by hand: axes, lines and bars are all that is needed, and the report has to be one file.

use std::fmt::Write;

use crate::ratios::figure;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 64.0;

/// Colours that people with any colour vision tell apart (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// A named line of (x, y).
#[derive(Debug, Clone)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its points, by x.
    pub points: Vec<(f64, f64)>,
}

/// A scale that marks round numbers.
struct Axis {
    top: f64,
    step: f64,
}

impl Axis {
    /// From 0 to at least `largest`, in about five steps of 1, 2 or 5 times a power of ten.
    fn up_to(largest: f64) -> Self {
        let rough = (largest.max(1e-9)) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * power).find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        Self { top: (largest / step).ceil().max(1.0) * step, step }
    }

    fn marks(&self) -> impl Iterator<Item = f64> {
        let count = (self.top / self.step).round() as usize;
        let step = self.step;
        (0..=count).map(move |at| at as f64 * step)
    }
}

fn y_at(value: f64, axis: &Axis) -> f64 {
    HEIGHT - BOTTOM - value / axis.top * (HEIGHT - TOP - BOTTOM)
}

fn begin(label: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escape(label)
    )
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, what: &str) {
    // Writing into a String cannot fail.
    writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
        escape(what)
    )
    .ok();
}

fn rule(out: &mut String, from: (f64, f64), to: (f64, f64)) {
    writeln!(
        out,
        "<line class=\"grid\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
        from.0, from.1, to.0, to.1
    )
    .ok();
}

fn vertical(out: &mut String, axis: &Axis, unit: &str) {
    for mark in axis.marks() {
        let y = y_at(mark, axis);
        rule(out, (LEFT, y), (WIDTH - RIGHT, y));
        text(out, LEFT - 8.0, y + 4.0, "end", &short(mark));
    }
    let middle = (HEIGHT - BOTTOM + TOP) / 2.0;
    writeln!(
        out,
        "<text x=\"16\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {middle})\">{}</text>",
        escape(unit)
    )
    .ok();
}

/// Bars of (name, value).
pub fn bars(label: &str, unit: &str, values: &[(String, f64)]) -> String {
    let axis = Axis::up_to(values.iter().map(|(_, value)| *value).fold(0.0, f64::max) * 1.08);
    let mut out = begin(label);
    vertical(&mut out, &axis, unit);
    let slot = (WIDTH - LEFT - RIGHT) / values.len().max(1) as f64;
    for (at, (name, value)) in values.iter().enumerate() {
        let (x, y) = (LEFT + slot * (at as f64 + 0.15), y_at(*value, &axis));
        writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
            slot * 0.7,
            HEIGHT - BOTTOM - y,
            COLOURS[0]
        )
        .ok();
        let middle = x + slot * 0.35;
        text(&mut out, middle, y - 4.0, "middle", &figure(*value));
        // Two lines where a name is long.
        let (first, second) = match name.split_once(", ") {
            Some((first, second)) => (first, second),
            None => (name.as_str(), ""),
        };
        text(&mut out, middle, HEIGHT - BOTTOM + 18.0, "middle", first);
        text(&mut out, middle, HEIGHT - BOTTOM + 34.0, "middle", second);
    }
    out + "</svg>\n"
}

/// Lines over a horizontal axis that begins at 0.
pub fn lines(label: &str, x_unit: &str, y_unit: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points);
    let across = Axis::up_to(points().map(|point| point.0).fold(0.0, f64::max));
    // To the last point, not to the next round number.
    let right = points().map(|point| point.0).fold(1e-9, f64::max);
    let up = Axis::up_to(points().map(|point| point.1).fold(0.0, f64::max));
    let mut out = begin(label);
    vertical(&mut out, &up, y_unit);
    let x_at = |x: f64| LEFT + x / right * (WIDTH - LEFT - RIGHT);
    for mark in across.marks().filter(|mark| *mark <= right) {
        text(&mut out, x_at(mark), HEIGHT - BOTTOM + 18.0, "middle", &short(mark));
    }
    finish(out, x_unit, lines, x_at, |y| y_at(y, &up))
}

/// Latency by percentile: the further right, the rarer (1 in 10, 1 in 100, …); both axes logarithmic.
pub fn percentiles(label: &str, lines: &[Line]) -> String {
    let values = || lines.iter().flat_map(|line| &line.points).map(|point| point.1.max(0.01));
    let low = values().fold(1.0, f64::min).log10().floor();
    let high = values().fold(0.1, f64::max).log10().ceil().max(low + 1.0);
    let up = move |ms: f64| {
        let share = (ms.max(0.01).log10() - low) / (high - low);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    };
    let rarity = |quantile: f64| -(1.0 - quantile).max(1e-9).log10();
    let rarest =
        lines.iter().flat_map(|line| &line.points).map(|point| rarity(point.0)).fold(1.0, f64::max);
    let x_at = |quantile: f64| LEFT + rarity(quantile) / rarest * (WIDTH - LEFT - RIGHT);
    let mut out = begin(label);
    let mut power = low;
    while power <= high + 0.01 {
        let ms = 10_f64.powf(power);
        rule(&mut out, (LEFT, up(ms)), (WIDTH - RIGHT, up(ms)));
        text(&mut out, LEFT - 8.0, up(ms) + 4.0, "end", &format!("{} ms", short(ms)));
        power += 1.0;
    }
    for (quantile, name) in
        [(0.0, "0"), (0.5, "50"), (0.9, "90"), (0.99, "99"), (0.999, "99.9"), (0.9999, "99.99")]
    {
        if rarity(quantile) <= rarest + 0.01 {
            text(&mut out, x_at(quantile), HEIGHT - BOTTOM + 18.0, "middle", name);
        }
    }
    finish(out, "percentile", lines, x_at, up)
}

fn finish(
    mut out: String,
    x_unit: &str,
    lines: &[Line],
    x_at: impl Fn(f64) -> f64,
    y_at: impl Fn(f64) -> f64,
) -> String {
    text(&mut out, (WIDTH + LEFT) / 2.0, HEIGHT - BOTTOM + 36.0, "middle", x_unit);
    let mut legend = LEFT;
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let points: Vec<_> =
            line.points.iter().map(|(x, y)| format!("{:.1},{:.1}", x_at(*x), y_at(*y))).collect();
        let points = points.join(" ");
        writeln!(out, "<polyline class=\"line\" stroke=\"{colour}\" points=\"{points}\"/>").ok();
        let y = HEIGHT - 10.0;
        writeln!(
            out,
            "<rect x=\"{legend:.1}\" y=\"{:.1}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>",
            y - 6.0
        )
        .ok();
        text(&mut out, legend + 19.0, y, "start", &line.name);
        legend += 30.0 + 6.1 * line.name.chars().count() as f64;
    }
    out + "</svg>\n"
}

fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", trim(v / 1e6)),
        v if v >= 1e3 => format!("{}k", trim(v / 1e3)),
        v => trim(v),
    }
}

fn trim(value: f64) -> String {
    format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_round_marks_and_room_for_the_largest() {
        for (largest, top, step) in
            [(7.0, 8.0, 2.0), (143_000.0, 150_000.0, 50_000.0), (0.0, 1e-9, 0.0)]
        {
            let axis = Axis::up_to(largest);
            assert!(axis.top >= largest);
            if step > 0.0 {
                assert_eq!((axis.top, axis.step), (top, step));
            }
        }
    }

    #[test]
    fn a_plot_is_closed_and_escaped_even_without_points() {
        let nothing = [Line { name: "a<b".into(), points: Vec::new() }];
        for svg in [lines("x", "s", "n", &nothing), percentiles("x", &nothing), bars("x", "n", &[])]
        {
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("a<b"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
