//! The steps of one attempt, as the service tells them in the header `x-lab-trace` on a server with `--lab`:
//! `node=n1 at=<µs since 1970> looked@120+840:stock=7,order=no …`, where `@start+duration` are µs since `at`.
//!
//! Steps are optional: a node that tells none (a Java node, a server without `--lab`) is judged all the same.

use serde::Serialize;
use serde_json::{Map, Value};

/// What the service did for one attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The node's name.
    pub node: String,
    /// When the request arrived there, by its clock; µs since 1970.
    pub at_us: u64,
    /// In the order in which they ended.
    pub steps: Vec<Step>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// Its name, such as `looked`.
    pub step: String,
    /// When it began, in ms after the request arrived; in a story, after the story's first request was sent.
    pub at: f64,
    /// How long it took, ms.
    pub took: f64,
    /// What was seen, such as `stock` = 7 or `order` = false.
    #[serde(flatten)]
    pub saw: Map<String, Value>,
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

    /// The id of the order whose lock this attempt deleted, which was another's.
    pub fn foreign_delete(&self) -> Option<i64> {
        let owner = self.step("unlocked")?.saw.get("owner")?;
        owner.as_str()?.parse().ok()
    }

    /// The first step of that name.
    pub fn step(&self, name: &str) -> Option<&Step> {
        self.steps.iter().find(|step| step.step == name)
    }

    /// How many orders were committed together with this attempt's; `None` where commits are not shared, or this one failed.
    pub fn batch(&self) -> Option<u64> {
        let committed = &self.step("batch-committed")?.saw;
        let orders = committed.get("orders")?.as_u64()?;
        // Only a commit that failed has an outcome.
        let has_failed = committed.contains_key("outcome");
        if orders == 0 || has_failed {
            return None;
        }
        Some(orders)
    }
}

impl Step {
    fn read(word: &str) -> Option<Self> {
        let (name, details) = word.split_once('@')?;
        let (times, pairs) = details.split_once(':').unwrap_or((details, ""));
        let (begin, took) = times.split_once('+')?;
        let ms = |us: &str| us.parse().ok().map(|us: u32| f64::from(us) / 1e3);
        let mut saw = Map::new();
        for pair in pairs.split(',').filter(|pair| !pair.is_empty()) {
            let (key, text) = pair.split_once('=')?;
            saw.insert(key.to_owned(), value(text));
        }
        Some(Self {
            step: name.to_owned(),
            at: ms(begin)?,
            took: ms(took)?,
            saw,
        })
    }
}

fn value(text: &str) -> Value {
    match text {
        "yes" => true.into(),
        "no" => false.into(),
        // An order's id stays text, since it passes 2^53.
        _ => text.parse::<i32>().map_or_else(|_| text.into(), Into::into),
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
        assert_eq!(
            (trace.node.as_str(), trace.at_us),
            ("127.0.0.1:8081", 1_763_722_800_123_456)
        );
        let looked = trace.step("looked").unwrap();
        assert_eq!((looked.at, looked.took), (0.12, 0.84));
        assert_eq!(looked.saw["stock"], 7);
        assert_eq!(looked.saw["order"], false);
        assert!(trace.step("committed").unwrap().saw.is_empty());
        let batch =
            |saw: &str| Trace::read(&format!("node=a at=1 batch-committed@1+2:{saw}"))?.batch();
        assert_eq!(
            (batch("orders=3"), batch("outcome=failed,orders=3")),
            (Some(3), None)
        );
        let owner =
            |saw: &str| Trace::read(&format!("node=a at=1 unlocked@1+2:{saw}"))?.foreign_delete();
        assert_eq!(
            (
                owner("place=redis"),
                owner("place=redis,outcome=foreign,owner=663194752102963525")
            ),
            (None, Some(663_194_752_102_963_525))
        );
        for bad in [
            "",
            "node=a",
            "node=a at=x",
            "node=a at=1 looked",
            "node=a at=1 looked@1+2:x",
        ] {
            assert_eq!(Trace::read(bad), None, "{bad}");
        }
    }
}
