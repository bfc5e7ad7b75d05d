//! The clean-up queue: background work that has to be finished although no caller waits for it, such
//! as the release of a dropped guard, the rest of an operation whose future was dropped, or the
//! reconciliation after an unknown outcome.
//!
//! Queueing neither blocks nor needs a runtime. One task runs the jobs, and is awaited at shutdown.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The sending side of the queue.
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

    /// Run `job` to its end in the background.
    pub(crate) fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        if self.jobs.send(Box::pin(job)).is_err() {
            tracing::warn!("lock clean-up after shutdown left to the lease");
        }
    }

    /// Await `work`; if the future is dropped half-way, the work is finished in the background and
    /// its output dropped.
    pub(crate) fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> DetachOnDrop<T> {
        DetachOnDrop { work: Some(Box::pin(work)), started: false, cleanup: self.clone() }
    }
}

/// A future whose work goes on in the background when it is dropped half-way.
pub(crate) struct DetachOnDrop<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    /// Work that was never polled has done nothing, and is dropped.
    started: bool,
    cleanup: CleanupQueue,
}

impl<T: Send + 'static> Future for DetachOnDrop<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.started = true;
        let Some(work) = self.work.as_mut() else {
            return Poll::Pending;
        };
        let output = std::task::ready!(work.as_mut().poll(cx));
        self.work = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for DetachOnDrop<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take().filter(|_| self.started) {
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
        tracing::warn!(left = running.len(), "lock clean-ups unfinished; left to their leases");
    }
    jobs.close();
}

fn report(end: Result<(), tokio::task::JoinError>) {
    if let Err(error) = end {
        tracing::error!(%error, "a lock clean-up ended early");
    }
}
