//! Which request a task works for, so that every log line can name it. A span would say the same, but the
//! logging library writes a span's fields out when it begins: a sixth of what a refused purchase costs,
//! for lines that nearly no request logs. This is written out when a line is.

use std::fmt;
use std::sync::Arc;

use axum::http::{HeaderValue, Method, Uri};

use super::trace::Trace;

tokio::task_local! {
    static CONTEXT: Context;
}

/// The request. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// Its id.
    pub id: HeaderValue,
    /// Its method.
    pub method: Method,
    /// Its address, of which the path alone is ever shown.
    pub uri: Uri,
    /// Its steps, where its client asked for them.
    pub trace: Option<Arc<Trace>>,
}

impl Context {
    /// Runs `work` for this request.
    pub async fn scope<T>(self, work: impl Future<Output = T>) -> T {
        CONTEXT.scope(self, work).await
    }

    /// Calls `look` with the request that the current task works for, if any.
    pub fn look<T>(look: impl FnOnce(&Context) -> T) -> Option<T> {
        CONTEXT.try_with(look).ok()
    }
}

/// Makes a task that is spawned work for the same request as its parent.
pub fn in_current_context<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let context = CONTEXT.try_with(Context::clone).ok();
    async move {
        match context {
            Some(context) => context.scope(work).await,
            None => work.await,
        }
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id.to_str().unwrap_or_default();
        write!(f, "request{{id={id} method={} path={}}}", self.method, self.uri.path())
    }
}
