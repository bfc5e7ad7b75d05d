//! A strict parser of the Prometheus text format, version 0.0.4: it panics on whatever the format forbids.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::api::get;

pub type Labels = BTreeMap<String, String>;

/// All samples of one name.
#[derive(Debug, Default)]
pub struct Family {
    pub kind: String,
    pub help: String,
    samples: Vec<(String, Labels, f64)>,
}

/// A parsed page.
pub struct Page(pub BTreeMap<String, Family>);

impl Page {
    pub async fn of(base: &str) -> Self {
        Self::parse(&get(base, "/metrics").text().await)
    }

    pub fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'), "the last line ends");
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        let mut current = String::new();
        let mut series = BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
                assert!(is_name(name), "{line}");
                assert!(help.ends_with('.') && help.is_ascii(), "a sentence: {line}");
                let new = Family { help: help.to_owned(), ..Family::default() };
                assert!(families.insert(name.to_owned(), new).is_none(), "twice: {line}");
                current = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
                assert_eq!(name, current, "HELP, then TYPE, then samples");
                let family = families.get_mut(name).unwrap();
                assert!(family.kind.is_empty() && family.samples.is_empty(), "{line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                family.kind = kind.to_owned();
            } else {
                let (name, labels, value) = sample(line);
                let family =
                    families.get_mut(&current).unwrap_or_else(|| panic!("no TYPE: {line}"));
                let suffixes: &[&str] = match family.kind.as_str() {
                    "histogram" => &["_bucket", "_sum", "_count"],
                    "" => panic!("no TYPE before {line}"),
                    _ => &[""],
                };
                let suffix = name.strip_prefix(current.as_str()).unwrap_or("none");
                assert!(suffixes.contains(&suffix), "{line} among {current}");
                assert!(series.insert(format!("{name} {labels:?}")), "twice: {line}");
                assert!(family.kind == "gauge" || value >= 0.0, "{line}");
                family.samples.push((name, labels, value));
            }
        }
        for (name, family) in &families {
            family.check(name);
        }
        Page(families)
    }

    /// One sample, with these labels exactly.
    pub fn get(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let wanted: Labels =
            labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut samples = self.0.values().flat_map(|family| &family.samples);
        let found = samples.find(|(found, labels, _)| found == name && *labels == wanted);
        found.unwrap_or_else(|| panic!("no {name} {labels:?}")).2
    }

    /// The family of a series' name, as a query spells it.
    pub fn family(&self, series: &str) -> Option<&Family> {
        self.0.get(series).filter(|family| family.kind != "histogram").or_else(|| {
            let stems = ["_bucket", "_sum", "_count"].map(|suffix| series.strip_suffix(suffix));
            let found = stems.into_iter().flatten().find_map(|stem| self.0.get(stem));
            found.filter(|family| family.kind == "histogram")
        })
    }
}

impl Family {
    /// The names of its labels.
    pub fn labels(&self) -> BTreeSet<&str> {
        let names = self.samples.iter().flat_map(|(_, labels, _)| labels.keys());
        names.map(String::as_str).filter(|name| *name != "le").collect()
    }

    fn check(&self, name: &str) {
        assert_eq!(
            self.kind == "counter",
            name.ends_with("_total"),
            "{name}: counters, and only they"
        );
        for bad in ["_ms", "_us", "_millis", "_kb", "_minutes"] {
            assert!(!name.contains(bad), "{name}: base units");
        }
        if self.kind == "histogram" {
            assert!(name.ends_with("_seconds") || name.ends_with("_orders"), "{name}: its unit");
            let mut series: BTreeMap<Labels, Histogram> = BTreeMap::new();
            for (sample, labels, value) in &self.samples {
                let mut labels = labels.clone();
                let bound = labels.remove("le");
                series.entry(labels).or_default().add(sample, bound.as_deref(), *value);
            }
            for (labels, histogram) in series {
                histogram.check(&format!("{name} {labels:?}"));
            }
        }
    }
}

/// One histogram's samples.
#[derive(Default)]
struct Histogram {
    /// Bounds, and how many were not above them.
    buckets: Vec<(f64, f64)>,
    sums: Vec<f64>,
    counts: Vec<f64>,
}

impl Histogram {
    fn add(&mut self, sample: &str, bound: Option<&str>, value: f64) {
        match bound {
            Some("+Inf") => self.buckets.push((f64::INFINITY, value)),
            Some(bound) => self.buckets.push((bound.parse().unwrap(), value)),
            None if sample.ends_with("_sum") => self.sums.push(value),
            None => self.counts.push(value),
        }
    }

    fn check(&self, what: &str) {
        let in_turn = |holds: fn(&[(f64, f64)]) -> bool| self.buckets.windows(2).all(holds);
        assert!(in_turn(|two| two[0].0 < two[1].0), "{what}: bounds rise");
        assert!(in_turn(|two| two[0].1 <= two[1].1), "{what}: cumulative");
        let (last, all) = self.buckets.last().copied().unwrap();
        assert!(last.is_infinite(), "{what}: +Inf");
        assert_eq!(self.counts, [all], "{what}: one count, and it is all");
        assert_eq!(self.sums.len(), 1, "{what}: one sum");
        assert!(self.sums[0] >= 0.0 && (all > 0.0 || self.sums[0] == 0.0), "{what}");
    }
}

fn is_name(text: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(is_legal)
}

/// `name{label="value",…} number`, and nothing else.
fn sample(line: &str) -> (String, Labels, f64) {
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
    let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
    assert!(value.is_finite(), "{line}");
    let (name, labels) = match series.split_once('{') {
        None => (series, ""),
        Some((name, rest)) => (name, rest.strip_suffix('}').unwrap_or_else(|| panic!("{line}"))),
    };
    assert!(is_name(name), "{line}");
    let labels: Vec<_> = labels
        .split(',')
        .filter(|label| !label.is_empty())
        .map(|label| {
            let (name, value) = label.split_once('=').unwrap_or_else(|| panic!("{line}"));
            let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            let value = value.unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(name) && !value.contains(['"', '\\']), "{line}");
            (name.to_owned(), value.to_owned())
        })
        .collect();
    let count = labels.len();
    let labels: Labels = labels.into_iter().collect();
    assert_eq!(labels.len(), count, "a label twice: {line}");
    (name.to_owned(), labels, value)
}
