//! Reads the Prometheus text format, version 0.0.4, and panics on what the format forbids.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::api::get;

type Labels = BTreeMap<String, String>;

/// Its bounds with how many were not above them; its sum and its count.
type Histogram<'a> = (Vec<(f64, f64)>, BTreeMap<&'a str, f64>);

/// All samples of one name.
#[derive(Debug, Default)]
pub struct Family {
    kind: String,
    samples: Vec<(String, Labels, f64)>,
}

/// A page, by the names of its families.
pub struct Page(BTreeMap<String, Family>);

impl Page {
    pub async fn of(base: &str) -> Self {
        Self::parse(&get(base, "/metrics").text().await)
    }

    fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'), "the last line ends");
        let mut families: BTreeMap<String, Family> = BTreeMap::new();
        let (mut current, mut series) = (String::new(), BTreeSet::new());
        for line in text.lines() {
            match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
                ["#", "HELP", name, _] => {
                    let known = families.insert(name.to_owned(), Family::default());
                    assert!(known.is_none() && is_name(name), "twice, or no name: {line}");
                    current = name.to_owned();
                }
                ["#", "TYPE", name, kind @ ("counter" | "gauge" | "histogram")] => {
                    let family = families.get_mut(name).expect("its HELP is before");
                    let is_next = family.kind.is_empty() && name == current;
                    assert!(is_next && family.samples.is_empty(), "HELP, TYPE, samples: {line}");
                    family.kind = kind.to_owned();
                }
                _ => {
                    let (name, labels, value) = sample(line);
                    let family = families.get_mut(&current).expect("a family before samples");
                    let suffixes: &[&str] = match family.kind.as_str() {
                        "histogram" => &["_bucket", "_sum", "_count"],
                        "" => panic!("no TYPE before {line}"),
                        _ => &[""],
                    };
                    let suffix = name.strip_prefix(current.as_str()).unwrap_or("none");
                    assert!(suffixes.contains(&suffix), "{line} among {current}");
                    assert!(series.insert((name.clone(), labels.clone())), "twice: {line}");
                    assert!(family.kind == "gauge" || value >= 0.0, "{line}");
                    family.samples.push((name, labels, value));
                }
            }
        }
        for (name, family) in families.iter().filter(|(_, family)| family.kind == "histogram") {
            family.check_histograms(name);
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
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.samples.iter().flat_map(|(_, labels, _)| labels.keys().map(String::as_str))
    }

    fn check_histograms(&self, name: &str) {
        let mut all: BTreeMap<Labels, Histogram> = BTreeMap::new();
        for (sample, labels, value) in &self.samples {
            let mut labels = labels.clone();
            let bound = labels.remove("le").map(|bound| bound.parse::<f64>().expect("a bound"));
            let (buckets, others) = all.entry(labels).or_default();
            match bound {
                Some(bound) => buckets.push((bound, *value)),
                None => {
                    others.insert(&sample[name.len()..], *value);
                }
            }
        }
        for (labels, (buckets, others)) in all {
            let what = format!("{name} {labels:?}: {buckets:?} {others:?}");
            assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "cumulative: {what}");
            let (last, count) = *buckets.last().expect("buckets");
            assert!(last.is_infinite() && others["_count"] == count, "{what}");
            assert!(count > 0.0 || others["_sum"] == 0.0, "{what}");
        }
    }
}

fn is_name(text: &str) -> bool {
    let is_legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(is_legal)
}

/// `name{label="value",…} number`, and nothing else.
fn sample(line: &str) -> (String, Labels, f64) {
    let parts = line.rsplit_once(' ').and_then(|(series, value)| {
        let (name, labels) = match series.split_once('{') {
            None => (series, ""),
            Some((name, rest)) => (name, rest.strip_suffix('}')?),
        };
        let labels = labels.split(',').filter(|label| !label.is_empty()).map(|label| {
            let (name, value) = label.split_once('=')?;
            let value = value.strip_prefix('"')?.strip_suffix('"')?;
            let is_legal = is_name(name) && !value.contains(['"', '\\']);
            is_legal.then(|| (name.to_owned(), value.to_owned()))
        });
        let labels: Vec<_> = labels.collect::<Option<_>>()?;
        let (count, labels) = (labels.len(), Labels::from_iter(labels));
        let value: f64 = value.parse().ok().filter(|value: &f64| value.is_finite())?;
        (is_name(name) && labels.len() == count).then(|| (name.to_owned(), labels, value))
    });
    parts.unwrap_or_else(|| panic!("no sample: {line}"))
}
