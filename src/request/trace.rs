//! Records steps of the current request in its [`StepTrace`](super::step_trace::StepTrace). A request that is not
//! traced pays one look at its task's context for each step.

use std::time::Instant;

use futures_util::FutureExt;

use super::context::RequestContext;
pub use super::step_trace::Step;

/// Runs `work` and records it as the step that `name` makes of its outcome; to be awaited at once. Not an `async fn`:
/// that would hold `work` twice, and double the size of each purchase's future.
pub fn step<T>(
    work: impl Future<Output = T>,
    name: impl FnOnce(&T) -> Step,
) -> impl Future<Output = T> {
    let trace = RequestContext::with_current(|context| context.trace.clone()).flatten();
    let begun = trace.map(|trace| (trace, Instant::now()));
    work.inspect(move |outcome| {
        if let Some((trace, since)) = begun {
            trace.add(name(outcome), since);
        }
    })
}

/// Records a step without a duration.
pub fn mark(name: &'static str, saw: &str) {
    if let Some(trace) = RequestContext::with_current(|context| context.trace.clone()).flatten() {
        trace.add(Step(name, saw.to_owned()), Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{HeaderValue, Method, Uri};

    use super::*;
    use crate::request::step_trace::StepTrace;

    #[tokio::test]
    async fn steps_are_recorded_in_order_with_what_they_saw() {
        let trace = Arc::new(StepTrace::begin("n1".into()));
        let context = RequestContext {
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
    async fn nothing_is_recorded_for_a_request_that_is_not_traced() {
        assert_eq!(step(async { 1 }, |_| panic!("named")).await, 1);
        mark("committed", "");
    }
}
