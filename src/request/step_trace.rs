//! The recorded steps of one request: what was done when, how long it took, and what it saw. In the lab a client asks
//! for them with the header `x-lab-trace` and gets them in the reply's header of the same name, so that the records of
//! a run hold both sides of every attempt, and no node keeps anything.
//!
//! The header's value is the node's name, the time of the request's arrival (µs since 1970), and the steps, each as
//! `name@start+duration` in µs since the arrival, with what was seen:
//! `node=127.0.0.1:8081 at=1763722800123456 looked@120+840:stock=7,order=no locked@960:place=memory`.

use std::fmt::Write;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;

/// The header that asks for the steps, and that returns them.
pub const TRACE_HEADER: HeaderName = HeaderName::from_static("x-lab-trace");

/// The steps of one request so far.
pub struct StepTrace {
    node: Arc<str>,
    arrived_at: SystemTime,
    arrived: Instant,
    steps: Mutex<Vec<Recorded>>,
    /// The route that the request has come to, for its span.
    pub route: OnceLock<String>,
}

struct Recorded {
    step: Step,
    offset: Duration,
    took: Duration,
}

/// A step: its name, and what it saw as `key=value` pairs between commas.
pub struct Step(pub &'static str, pub String);

impl StepTrace {
    /// Begins now, on this node.
    pub fn begin(node: Arc<str>) -> Self {
        StepTrace {
            node,
            arrived_at: SystemTime::now(),
            arrived: Instant::now(),
            steps: Mutex::default(),
            route: OnceLock::new(),
        }
    }

    /// Records a step that began at `since` and ends now.
    pub(super) fn add(&self, step: Step, since: Instant) {
        let took = since.elapsed();
        let offset = since.saturating_duration_since(self.arrived);
        self.steps.lock().push(Recorded { step, offset, took });
    }

    /// The steps so far, when each began and how long it took.
    pub fn steps(&self) -> Vec<(Step, SystemTime, Duration)> {
        let steps = self.steps.lock();
        let timed = steps.iter().map(|Recorded { step, offset, took }| {
            let Step(name, saw) = step;
            (Step(name, saw.clone()), self.arrived_at + *offset, *took)
        });
        timed.collect()
    }

    /// The steps so far, as the header's value.
    pub fn header(&self) -> HeaderValue {
        let arrived_us = self
            .arrived_at
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_micros();
        let mut text = format!("node={} at={arrived_us}", self.node);
        for Recorded {
            step: Step(name, saw),
            offset,
            took,
        } in self.steps.lock().iter()
        {
            // Writing to a String cannot fail.
            write!(text, " {name}@{}+{}", offset.as_micros(), took.as_micros()).ok();
            if !saw.is_empty() {
                write!(text, ":{saw}").ok();
            }
        }
        // Names and values are plain ASCII of this crate; a node's name is checked at start.
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
    }
}
