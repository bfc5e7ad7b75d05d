//! A timer that a connection keeps for its time limits, one request after the other.
//!
//! A limit is set for each request and hardly ever reached, but each new tokio timer that is polled is put into the
//! runtime's timer wheel and taken out again, under its lock. Here the tokio timer of the first request stays in the
//! wheel until it fires, and is only then set to the limit of the request that is under way: twice a minute instead of
//! at every request.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use parking_lot::Mutex;

/// One limit after the other; each must not be earlier than the one before. Clones share the timer.
#[derive(Clone)]
pub struct ConnectionTimer(Arc<Mutex<Pin<Box<tokio::time::Sleep>>>>);

impl ConnectionTimer {
    /// To be called within a tokio runtime, whose timers it uses.
    pub fn on_this_runtime() -> Self {
        ConnectionTimer(Arc::new(Mutex::new(Box::pin(tokio::time::sleep(Duration::ZERO)))))
    }

    /// The output of `work`; `None` where it is not there at `deadline`.
    pub fn limit<T>(
        &self,
        deadline: Instant,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> impl Future<Output = Option<T>> {
        poll_fn(move |cx| match work.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => self.poll_until(deadline, cx).map(|()| None),
        })
    }

    /// Whether `deadline` has come.
    fn poll_until(&self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let mut sleep = self.0.lock();
        loop {
            ready!(sleep.as_mut().poll(cx));
            let deadline = tokio::time::Instant::from_std(deadline);
            if tokio::time::Instant::now() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}

/// For the HTTP library, which limits the time for a request's head by it.
impl Timer for ConnectionTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Until { timer: self.clone(), deadline })
    }
}

struct Until {
    timer: ConnectionTimer,
    deadline: Instant,
}

impl Sleep for Until {}

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.timer.poll_until(self.deadline, cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn each_limit_counts_from_its_own_beginning() {
        let timer = ConnectionTimer::on_this_runtime();
        let now = || tokio::time::Instant::now().into_std();
        assert_eq!(timer.limit(now() + LIMIT, pin!(async { 1 })).await, Some(1));
        let wait = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        assert_eq!(timer.limit(now() + LIMIT, pin!(wait(20))).await, Some(()));
        assert_eq!(timer.limit(now() + LIMIT, pin!(wait(29))).await, Some(()));
        let begun = now();
        assert_eq!(timer.limit(now() + LIMIT, pin!(pending::<()>())).await, None);
        assert_eq!((now() - begun).as_secs(), 30);
    }
}
