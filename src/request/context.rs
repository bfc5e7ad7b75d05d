//! The context of the request that a task works for, so that every log line can name it. A `tracing` span would do the
//! same, but the logging library formats a span's fields when it begins: a sixth of what a refused purchase costs, for
//! lines that nearly no request logs. This context is formatted only when a line is written.

use std::fmt;
use std::sync::Arc;

use http::{HeaderValue, Method, Uri};

use super::step_trace::StepTrace;

tokio::task_local! {
    // Boxed, because it is moved into the task-local at each poll.
    static CURRENT: Box<RequestContext>;
}

/// The request that a task works for.
#[allow(missing_docs)] // the parts under their names
pub struct RequestContext {
    pub id: HeaderValue,
    pub method: Method,
    /// Only its path is ever logged.
    pub uri: Uri,
    /// Its steps, where they are recorded.
    pub trace: Option<Arc<StepTrace>>,
}

impl RequestContext {
    /// Runs `work` in this context. Not an `async fn`, which would hold `work` twice.
    pub fn scope<T>(self, work: impl Future<Output = T>) -> impl Future<Output = T> {
        CURRENT.scope(Box::new(self), work)
    }

    /// Calls `read` with the context of the current task, if it has one.
    pub fn with_current<T>(read: impl FnOnce(&RequestContext) -> T) -> Option<T> {
        CURRENT.try_with(|context| read(context)).ok()
    }
}

impl fmt::Display for RequestContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id.to_str().unwrap_or_default();
        write!(
            f,
            "request{{id={id} method={} path={}}}",
            self.method,
            self.uri.path()
        )
    }
}
