//! Work that has to be finished although nobody waits for it: the release of a dropped guard, the
//! rest of an operation whose caller went away, the clean-up after an unknown outcome.
//!
//! Handing work over neither blocks nor needs a runtime. The janitor does not know what the work
//! is about; it only sees that it ends, and is itself awaited at shutdown.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where work is handed over.
#[derive(Clone)]
pub(super) struct Janitor {
    jobs: UnboundedSender<Job>,
}

/// The janitor's end of the queue; kept outside its task, so that a restarted task goes on.
pub(super) struct Queue(Mutex<Option<UnboundedReceiver<Job>>>);

impl Janitor {
    pub(super) fn new() -> (Self, Arc<Queue>) {
        let (jobs, queue) = unbounded_channel();
        (Self { jobs }, Arc::new(Queue(Mutex::new(Some(queue)))))
    }

    /// See `job` through to its end.
    pub(super) fn run(&self, job: impl Future<Output = ()> + Send + 'static) {
        if self.jobs.send(Box::pin(job)).is_err() {
            // After shutdown nothing is left to do it; the lease ends what the work would have.
            tracing::warn!("lock clean-up after shutdown left to the lease");
        }
    }

    /// Await `work`; if the caller goes away first, the janitor finishes it and drops its output.
    pub(super) fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Finish<T> {
        Finish { work: Some(Box::pin(work)), started: false, janitor: self.clone() }
    }
}

/// A future that is carried on elsewhere when it is dropped half-way.
pub(super) struct Finish<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    /// Work that was never polled has done nothing, and is not begun on its own.
    started: bool,
    janitor: Janitor,
}

impl<T: Send + 'static> Future for Finish<T> {
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

impl<T: Send + 'static> Drop for Finish<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take().filter(|_| self.started) {
            self.janitor.run(async move { drop(work.await) });
        }
    }
}

/// Do the queue's work until `stop`, then what is queued and under way, for at most `patience`.
pub(super) async fn run(queue: Arc<Queue>, stop: CancellationToken, patience: Duration) {
    let Some(mut taken) = Taken::new(&queue) else { return };
    let jobs = &mut taken.jobs;
    let mut working = JoinSet::new();
    loop {
        tokio::select! {
            job = jobs.recv() => match job {
                Some(job) => { working.spawn(job); }
                None => break,
            },
            Some(end) = working.join_next(), if !working.is_empty() => report(end),
            () = stop.cancelled() => break,
        }
    }
    let drained = tokio::time::timeout(patience, async {
        loop {
            while let Ok(job) = jobs.try_recv() {
                working.spawn(job);
            }
            match working.join_next().await {
                Some(end) => report(end),
                None => return,
            }
        }
    });
    if drained.await.is_err() {
        tracing::warn!(left = working.len(), "lock clean-ups unfinished; left to their leases");
    }
    jobs.close();
}

/// The queue's receiver, put back when the task ends, even by a panic.
struct Taken<'a> {
    queue: &'a Queue,
    jobs: UnboundedReceiver<Job>,
}

impl<'a> Taken<'a> {
    fn new(queue: &'a Queue) -> Option<Self> {
        let jobs = queue.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Self { queue, jobs })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let (_, closed) = unbounded_channel();
        let jobs = std::mem::replace(&mut self.jobs, closed);
        *self.queue.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(jobs);
    }
}

fn report(end: Result<(), tokio::task::JoinError>) {
    if let Err(error) = end {
        tracing::error!(fault = %error, "a lock clean-up ended early");
    }
}
