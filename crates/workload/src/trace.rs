//! The steps of one attempt, as the service tells them in the header `x-lab-trace` on a server with `--lab`:
//! `node=n1 at=<µs since 1970> looked@120+840:stock=7,order=no …`, where `@start+duration` are µs since `at`.
//!
//! Steps are optional: a node that tells none (a Java node, a server without `--lab`) is judged all the same.

use std::collections::BTreeMap;

/// What the service did for one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The node's name.
    pub node: String,
    /// When the request arrived there, by its clock; µs since 1970.
    pub at_us: u64,
    /// In the order in which they ended.
    pub steps: Vec<Step>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its name, such as `looked`.
    pub name: String,
    /// Its begin, µs since the arrival.
    pub at_us: u64,
    /// How long it took, µs.
    pub took_us: u64,
    /// What was seen, such as `stock` = `7`.
    pub saw: BTreeMap<String, String>,
}

impl Trace {
    /// Reads the header; `None` where it is not of that form.
    pub fn read(header: &str) -> Option<Self> {
        let mut words = header.split(' ');
        let node = words.next()?.strip_prefix("node=")?.to_owned();
        let at_us = words.next()?.strip_prefix("at=")?.parse().ok()?;
        let steps = words.map(Step::read).collect::<Option<_>>()?;
        Some(Self { node, at_us, steps })
    }

    /// The first step of that name.
    pub fn step(&self, name: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.name == name)
    }
}

impl Step {
    fn read(word: &str) -> Option<Self> {
        let (name, rest) = word.split_once('@')?;
        let (times, saw) = rest.split_once(':').unwrap_or((rest, ""));
        let (at, took) = times.split_once('+')?;
        let saw = saw.split(',').filter(|pair| !pair.is_empty());
        let saw = saw.map(|pair| pair.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())));
        Some(Self {
            name: name.to_owned(),
            at_us: at.parse().ok()?,
            took_us: took.parse().ok()?,
            saw: saw.collect::<Option<_>>()?,
        })
    }

    /// A number that was seen.
    pub fn number(&self, key: &str) -> Option<i64> {
        self.saw.get(key)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_and_nonsense_is_not() {
        let header = "node=127.0.0.1:8081 at=1763722800123456 arrived@3+0 \
                      looked@120+840:stock=7,order=no committed@2260+1900";
        let trace = Trace::read(header).unwrap();
        assert_eq!((trace.node.as_str(), trace.at_us), ("127.0.0.1:8081", 1_763_722_800_123_456));
        let looked = trace.step("looked").unwrap();
        assert_eq!((looked.at_us, looked.took_us, looked.number("stock")), (120, 840, Some(7)));
        assert_eq!(looked.saw["order"], "no");
        assert!(trace.step("committed").unwrap().saw.is_empty());
        for bad in ["", "node=a", "node=a at=x", "node=a at=1 looked", "node=a at=1 looked@1+2:x"] {
            assert_eq!(Trace::read(bad), None, "{bad}");
        }
    }
}
