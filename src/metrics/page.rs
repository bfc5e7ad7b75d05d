//! Writer of the Prometheus text format, version 0.0.4: families of samples, each with its help text and type.

use std::fmt::{Display, Write};

use lock::DurationHistogram;

#[derive(Default)]
pub(super) struct Page(String);

/// A family being written: samples of one name.
pub(super) struct Family<'a> {
    text: &'a mut String,
    name: String,
}

/// The prefix of the names of the service's families.
const PREFIX: &str = "seckill_";

/// The prefix of the names that all of Prometheus' client libraries use, so that dashboards of processes work.
const OF_THE_PROCESS: &str = "process_";

/// A sample's labels. Their values are words of the service, none of which needs escaping.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    /// A family of counters. The name ends in `_total`; like all names here it is given without the prefix.
    pub(super) fn counter(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family("counter", name, help)
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family("gauge", name, help)
    }

    pub(super) fn histogram(&mut self, name: &str, help: &str) -> Family<'_> {
        self.family("histogram", name, help)
    }

    pub(super) fn text(self) -> String {
        self.0
    }

    fn family(&mut self, kind: &str, name: &str, help: &str) -> Family<'_> {
        let text = &mut self.0;
        let prefix = if name.starts_with(OF_THE_PROCESS) {
            ""
        } else {
            PREFIX
        };
        let name = format!("{prefix}{name}");
        line(text, format_args!("# HELP {name} {help}"));
        line(text, format_args!("# TYPE {name} {kind}"));
        Family { text, name }
    }
}

impl Family<'_> {
    pub(super) fn sample(&mut self, labels: Labels<'_>, value: impl Display) -> &mut Self {
        self.write("", labels, None, value)
    }

    pub(super) fn counted(&mut self, labels: Labels<'_>, counted: &DurationHistogram) {
        for (bound, below) in &counted.buckets {
            self.write("_bucket", labels, Some(bound), below);
        }
        self.write("_bucket", labels, Some(&"+Inf"), counted.count);
        self.write("_sum", labels, None, counted.seconds);
        self.write("_count", labels, None, counted.count);
    }

    fn write(
        &mut self,
        suffix: &str,
        labels: Labels<'_>,
        bound: Option<&dyn Display>,
        value: impl Display,
    ) -> &mut Self {
        let mut labels: Vec<String> = labels
            .iter()
            .map(|(label, value)| format!("{label}=\"{value}\""))
            .collect();
        labels.extend(bound.map(|bound| format!("le=\"{bound}\"")));
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", labels.join(","))
        };
        line(
            self.text,
            format_args!("{}{suffix}{labels} {value}", self.name),
        );
        self
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    writeln!(text, "{line}").ok();
}
