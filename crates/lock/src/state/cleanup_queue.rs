//! The clean-up queue: background work that has to be finished although no caller waits for it, such
//! as the release of a dropped guard, the rest of an operation whose future was dropped, or the
//! reconciliation after an unknown outcome.
//!
//! Queueing neither blocks nor needs a runtime. One task runs the jobs, and is awaited at shutdown.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Job = Work<()>;

#[derive(Clone)]
pub(crate) struct CleanupQueue {
    jobs: UnboundedSender<Job>,
}

/// The receiving side; kept outside the task, so that a restarted task goes on with it.
pub(crate) type CleanupJobs = Mutex<UnboundedReceiver<Job>>;

impl CleanupQueue {
    pub(crate) fn new() -> (Self, Arc<CleanupJobs>) {
        let (jobs, receiver) = unbounded_channel();
        (Self { jobs }, Arc::new(Mutex::new(receiver)))
    }

    pub(crate) fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        if self.jobs.send(Box::pin(job)).is_err() {
            tracing::warn!("lock clean-up after shutdown left to the lease");
        }
    }

    /// Await `work`; if the future is dropped half-way, the work is finished in the background and
    /// its output dropped. Work that was never polled is dropped.
    pub(crate) fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = T> + Send {
        // Boxed before the first poll: callers' futures stay small.
        let work: Work<T> = Box::pin(work);
        async move {
            let mut unfinished = Unfinished {
                work: Some(work),
                cleanup: self,
            };
            let output = std::future::poll_fn(|cx| match unfinished.work.as_mut() {
                Some(work) => work.as_mut().poll(cx),
                None => Poll::Pending,
            });
            let output = output.await;
            unfinished.work = None;
            output
        }
    }
}

struct Unfinished<'a, T: Send + 'static> {
    work: Option<Work<T>>,
    cleanup: &'a CleanupQueue,
}

impl<T: Send + 'static> Drop for Unfinished<'_, T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.cleanup.spawn(async move { drop(work.await) });
        }
    }
}

/// Run queued jobs until `stop`, then finish what is queued and under way for at most `timeout`.
pub(crate) async fn run(queue: Arc<CleanupJobs>, stop: CancellationToken, timeout: Duration) {
    let mut jobs = queue.lock().await;
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            job = jobs.recv() => match job {
                Some(job) => { running.spawn(job); }
                None => break,
            },
            Some(end) = running.join_next(), if !running.is_empty() => report(end),
            () = stop.cancelled() => break,
        }
    }
    let drained = tokio::time::timeout(timeout, async {
        loop {
            while let Ok(job) = jobs.try_recv() {
                running.spawn(job);
            }
            match running.join_next().await {
                Some(end) => report(end),
                None => return,
            }
        }
    });
    if drained.await.is_err() {
        tracing::warn!(
            left = running.len(),
            "lock clean-ups unfinished; left to their leases"
        );
    }
    jobs.close();
}

fn report(end: Result<(), tokio::task::JoinError>) {
    if let Err(error) = end {
        tracing::error!(%error, "a lock clean-up ended early");
    }
}
