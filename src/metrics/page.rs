//! The text format of Prometheus, version 0.0.4: families of samples, each with what it is. Text only; what is
//! measured is in the parent.

use std::fmt::{Display, Write};

/// A page being written.
#[derive(Default)]
pub(super) struct Page(String);

/// A family being written: samples of one name.
pub(super) struct Family<'a> {
    text: &'a mut String,
    name: &'a str,
}

/// A sample's labels. Values are the service's own words, of which none needs to be escaped.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    /// A family of counters: they only rise. The name ends in `_total`.
    pub(super) fn counter<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        self.family("counter", name, help)
    }

    /// A family of gauges.
    pub(super) fn gauge<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        self.family("gauge", name, help)
    }

    /// A family of histograms.
    pub(super) fn histogram<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        self.family("histogram", name, help)
    }

    /// The page so far.
    pub(super) fn text(self) -> String {
        self.0
    }

    fn family<'a>(&'a mut self, kind: &str, name: &'a str, help: &str) -> Family<'a> {
        let text = &mut self.0;
        line(text, format_args!("# HELP {name} {help}"));
        line(text, format_args!("# TYPE {name} {kind}"));
        Family { text, name }
    }
}

impl Family<'_> {
    /// One sample.
    pub(super) fn sample(&mut self, labels: Labels<'_>, value: impl Display) -> &mut Self {
        self.write("", labels, None, value)
    }

    /// One histogram: each bound with how many were not above it, how many there were, and their sum.
    pub(super) fn buckets<B: Display>(
        &mut self,
        labels: Labels<'_>,
        up_to: impl IntoIterator<Item = (B, u64)>,
        count: u64,
        sum: impl Display,
    ) {
        for (bound, below) in up_to {
            self.write("_bucket", labels, Some(&bound), below);
        }
        self.write("_bucket", labels, Some(&"+Inf"), count);
        self.write("_sum", labels, None, sum);
        self.write("_count", labels, None, count);
    }

    fn write(
        &mut self,
        suffix: &str,
        labels: Labels<'_>,
        bound: Option<&dyn Display>,
        value: impl Display,
    ) -> &mut Self {
        let mut told: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        told.extend(bound.map(|bound| format!("le=\"{bound}\"")));
        let told = if told.is_empty() { String::new() } else { format!("{{{}}}", told.join(",")) };
        line(self.text, format_args!("{}{suffix}{told} {value}", self.name));
        self
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    writeln!(text, "{line}").ok();
}
