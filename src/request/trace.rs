//! Records steps of the current request in its [`StepTrace`](super::step_trace::StepTrace). A request that is not
//! traced pays one look at its task's context for each step.

use std::time::Instant;

use futures_util::FutureExt;

use super::context::RequestContext;
pub use super::step_trace::Step;

/// Runs `work` and records it as a step, which `step_of` makes of the outcome. The step begins with this call, so await the
/// future at once. Not an `async fn`: its future would have room for `work` twice, as an argument and as what is awaited,
/// and double the size of each purchase's future.
pub fn step<T>(
    work: impl Future<Output = T>,
    step_of: impl FnOnce(&T) -> Step,
) -> impl Future<Output = T> {
    let trace = RequestContext::with_current(|context| context.trace.clone()).flatten();
    let begun = trace.map(|trace| (trace, Instant::now()));
    work.inspect(move |outcome| {
        if let Some((trace, since)) = begun {
            trace.add(step_of(outcome), since);
        }
    })
}

/// Records a step without a duration.
pub fn mark(name: &'static str, saw: &str) {
    if let Some(trace) = RequestContext::with_current(|context| context.trace.clone()).flatten() {
        trace.add(Step(name, saw.to_owned()), Instant::now());
    }
}
