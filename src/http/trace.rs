//! The steps of one purchase: which node did what, when, and what it saw. In the lab a client asks for them
//! with the header `x-lab-trace`, and gets them in a header of the same name with the answer: so the records
//! of a run hold both sides of every attempt, however many nodes there are, and no node has to keep anything.
//!
//! The header's value is the node's name, the instant of the request's arrival (µs since 1970), and the steps, each
//! as `name@start+duration` in µs since the arrival, with what was seen:
//! `node=127.0.0.1:8081 at=1763722800123456 looked@120+840:stock=7,order=no locked@960:place=memory`.
//!
//! A request that is not traced pays for none of this but a look at its task's context.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderName, HeaderValue};
use futures_util::FutureExt;

use super::context::Context;

/// The header that asks for the steps, and that brings them.
pub const TRACE: HeaderName = HeaderName::from_static("x-lab-trace");

/// What one request did so far.
pub struct Trace {
    node: Arc<str>,
    arrived: (SystemTime, Instant),
    steps: Mutex<Vec<Done>>,
}

/// A step that was done.
struct Done {
    step: Step,
    at: Duration,
    took: Duration,
}

/// A step by its name, and what it saw, as `key=value` pairs between commas.
pub struct Step(pub &'static str, pub String);

impl Step {
    /// A step that saw nothing worth telling.
    pub fn plain(name: &'static str) -> Self {
        Step(name, String::new())
    }
}

impl Trace {
    /// Begins now, on this node.
    pub fn begin(node: Arc<str>) -> Self {
        let arrived = (SystemTime::now(), Instant::now());
        Trace { node, arrived, steps: Mutex::default() }
    }

    fn add(&self, step: Step, since: Instant) {
        let took = since.elapsed();
        let at = since.saturating_duration_since(self.arrived.1);
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.push(Done { step, at, took });
    }

    /// The steps so far, when each began and what it took.
    #[cfg(feature = "otlp")]
    pub fn steps(&self) -> Vec<(Step, SystemTime, Duration)> {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let told = |Done { step: Step(name, saw), at, took }: &Done| {
            (Step(name, saw.clone()), self.arrived.0 + *at, *took)
        };
        steps.iter().map(told).collect()
    }

    /// The steps so far, as the header's value.
    pub fn header(&self) -> HeaderValue {
        let at = self.arrived.0.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let mut text = format!("node={} at={at}", self.node);
        for Done { step: Step(name, saw), at, took } in
            self.steps.lock().unwrap_or_else(PoisonError::into_inner).iter()
        {
            // Writing to a String cannot fail.
            write!(text, " {name}@{}+{}", at.as_micros(), took.as_micros()).ok();
            if !saw.is_empty() {
                write!(text, ":{saw}").ok();
            }
        }
        // Names and values are ours, and plain ASCII; a node's name is checked at start.
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
    }
}

/// Does `work`, and notes it as the step that `name` makes of its outcome; to be awaited at once. Not an `async fn`:
/// that would hold `work` twice, and each purchase would be moved about twice as large.
pub fn step<T>(
    work: impl Future<Output = T>,
    name: impl FnOnce(&T) -> Step,
) -> impl Future<Output = T> {
    let trace = Context::look(|context| context.trace.clone()).flatten();
    let begun = trace.map(|trace| (trace, Instant::now()));
    work.inspect(move |outcome| {
        if let Some((trace, since)) = begun {
            trace.add(name(outcome), since);
        }
    })
}

/// Notes a step that takes no time.
pub fn mark(name: &'static str, saw: &str) {
    let trace = Context::look(|context| context.trace.clone()).flatten();
    if let Some(trace) = trace {
        trace.add(Step(name, saw.to_owned()), Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{Method, Uri};

    use super::*;

    #[tokio::test]
    async fn steps_are_told_in_order_with_what_they_saw() {
        let trace = Arc::new(Trace::begin("n1".into()));
        let context = Context {
            id: HeaderValue::from_static("1"),
            method: Method::POST,
            uri: Uri::from_static("/"),
            trace: Some(trace.clone()),
        };
        context
            .scope(async {
                let seen =
                    step(async { 7 }, |stock| Step("looked", format!("stock={stock}"))).await;
                assert_eq!(seen, 7);
                mark("committed", "");
            })
            .await;
        let header = trace.header();
        let words: Vec<&str> = header.to_str().unwrap().split(' ').collect();
        assert_eq!(words[0], "node=n1");
        assert!(words[1].starts_with("at="), "{words:?}");
        assert!(words[2].starts_with("looked@") && words[2].ends_with(":stock=7"), "{words:?}");
        assert!(words[3].starts_with("committed@"), "{words:?}");
    }

    #[tokio::test]
    async fn nothing_is_noted_where_nobody_asked() {
        assert_eq!(step(async { 1 }, |_| panic!("named")).await, 1);
        mark("committed", "");
    }
}
