//! [`to_its_end`]: work that does not stop half-way because its client hung up.

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::{FutureExt, TryFutureExt};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::context::in_current_context;
use crate::error::Error;

/// What became of work that panicked: the panic's message.
#[derive(Debug)]
pub struct Panic(String);

impl From<Box<dyn Any + Send>> for Panic {
    fn from(panic: Box<dyn Any + Send>) -> Self {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Panic(text.unwrap_or_else(|| "without a message".to_owned()))
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "panic: {}", self.0)
    }
}

impl From<Panic> for Error {
    fn from(panic: Panic) -> Self {
        Error::Internal(panic.to_string())
    }
}

/// Runs `work`, which `tasks` counts until it has ended. Dropped before, it goes on as a task of its own: one task for each
/// request from the beginning would be woken beside that of its connection.
pub fn to_its_end<T: Send + 'static>(
    tasks: &TaskTracker,
    work: impl Future<Output = T> + Send + 'static,
) -> ToItsEnd<T> {
    let work = AssertUnwindSafe(work).catch_unwind().map_err(Panic::from);
    ToItsEnd(Some(Box::pin(tasks.track_future(work))))
}

/// The future of [`to_its_end`].
pub struct ToItsEnd<T: Send + 'static>(Option<Work<T>>);

type Work<T> = Pin<Box<dyn Future<Output = Result<T, Panic>> + Send>>;

impl<T: Send + 'static> Future for ToItsEnd<T> {
    type Output = Result<T, Panic>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = &mut self.0 else {
            return Poll::Pending;
        };
        let ended = ready!(work.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(ended)
    }
}

impl<T: Send + 'static> Drop for ToItsEnd<T> {
    fn drop(&mut self) {
        // Without a runtime nothing goes on: the process ends.
        if let (Some(work), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(in_current_context(work));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_goes_on_when_its_caller_goes_away() {
        let (tasks, (go_on, wait), (done, ended)) = (
            TaskTracker::new(),
            oneshot::channel::<()>(),
            oneshot::channel(),
        );
        let mut work = Box::pin(to_its_end(&tasks, async move {
            wait.await.expect("the test goes on");
            done.send(()).expect("the test listens");
        }));
        assert!(poll!(&mut work).is_pending());
        drop(work);
        go_on.send(()).expect("the work is still there");
        tasks.close();
        tasks.wait().await;
        ended.await.expect("it came to its end");
    }

    #[tokio::test]
    async fn a_panic_is_told_to_the_caller() {
        let ended = to_its_end(&TaskTracker::new(), async { panic!("on purpose") }).await;
        let error: Result<(), Error> = ended.map_err(Error::from);
        assert!(matches!(error, Err(Error::Internal(text)) if text == "panic: on purpose"));
    }
}
