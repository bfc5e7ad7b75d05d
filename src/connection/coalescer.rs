//! Coalesces concurrent requests into one round trip: what arrives while one batch is under way goes together in the
//! next. Under load a command for each request would cost the server and this process more than the rest of the
//! request. Nothing waits for a timer: a single request is sent alone, at once.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A request that waits for the next batch. When a batch takes it, its caller either is handed the receiver of the reply, or is
/// gone by then, and the batch leaves the request out.
type Waiting<Q, A> = (Q, oneshot::Sender<oneshot::Receiver<A>>);

/// Why a request has no reply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NoReply {
    /// It was in no batch, and will be in none.
    NotSent,
    /// Its batch ended without it.
    Lost,
}

/// The queue of requests and the task that sends it in batches. Cheap to clone.
#[derive(Clone)]
pub struct Coalescer<Q, A> {
    /// Without a bound of its own. The number of requests in flight bounds it, except for requests whose callers have gone.
    queue: mpsc::UnboundedSender<Waiting<Q, A>>,
    waiting: Arc<AtomicUsize>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl<Q: Send + Sync + 'static, A: Send + 'static> Coalescer<Q, A> {
    /// Calls `send` with at most `max_batch` waiting requests, one call after the other, until
    /// [`Coalescer::shutdown`]. It returns their replies in the same order. To be called within a tokio runtime.
    pub fn start<F, T>(max_batch: usize, send: F) -> Self
    where
        F: Fn(Vec<Q>) -> T + Send + Sync + 'static,
        T: Future<Output = Vec<A>> + Send + 'static,
    {
        let (queue, receiver) = mpsc::unbounded_channel();
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        let waiting = Arc::new(AtomicUsize::new(0));
        let run = run(receiver, waiting.clone(), max_batch, send);
        tasks.spawn(stop.clone().run_until_cancelled_owned(run));
        tasks.close();
        Coalescer {
            queue,
            waiting,
            tasks,
            stop,
        }
    }

    /// The reply to `request`; `None` where there is none, because of a shutdown or a failed batch.
    ///
    /// # Cancellation
    /// A request that is in no batch yet is taken back.
    pub async fn request(&self, request: Q) -> Option<A> {
        let taken = self.enqueue(request)?;
        taken.await.ok()?.await.ok()
    }

    /// As [`Coalescer::request`]; a request that is in no batch at `deadline` is taken back.
    ///
    /// # Errors
    /// See [`NoReply`].
    pub async fn request_until(&self, request: Q, deadline: Instant) -> Result<A, NoReply> {
        let mut taken = self.enqueue(request).ok_or(NoReply::NotSent)?;
        let reply = match timeout_at(deadline, &mut taken).await {
            Ok(reply) => reply.map_err(|_| NoReply::NotSent)?,
            Err(_) => {
                taken.close();
                // A batch may have taken it at the last moment.
                taken.try_recv().map_err(|_| NoReply::NotSent)?
            }
        };
        reply.await.map_err(|_| NoReply::Lost)
    }

    fn enqueue(&self, request: Q) -> Option<oneshot::Receiver<oneshot::Receiver<A>>> {
        let (taken, when_taken) = oneshot::channel();
        self.waiting.fetch_add(1, Relaxed);
        self.queue.send((request, taken)).ok()?;
        Some(when_taken)
    }

    /// How many requests are in no batch yet.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Stops; waiting requests get no reply.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}

/// Sends one batch after the other.
async fn run<Q, A, F, T>(
    mut queue: mpsc::UnboundedReceiver<Waiting<Q, A>>,
    waiting: Arc<AtomicUsize>,
    max_batch: usize,
    send: F,
) where
    F: Fn(Vec<Q>) -> T,
    T: Future<Output = Vec<A>>,
{
    let mut batch = Vec::with_capacity(max_batch);
    while queue.recv_many(&mut batch, max_batch).await > 0 {
        waiting.fetch_sub(batch.len(), Relaxed);
        let mut requests = Vec::with_capacity(batch.len());
        let mut callers = Vec::with_capacity(batch.len());
        for (request, taken) in batch.drain(..) {
            let (reply, received) = oneshot::channel();
            if taken.send(received).is_ok() {
                requests.push(request);
                callers.push(reply);
            }
        }
        if requests.is_empty() {
            continue;
        }
        // A panic costs this batch its replies, and not the batches to come.
        let replies = AssertUnwindSafe(send(requests))
            .catch_unwind()
            .await
            .unwrap_or_else(|_| {
                tracing::error!(requests = callers.len(), "a coalesced round trip panicked");
                Vec::new()
            });
        for (caller, reply) in callers.into_iter().zip(replies) {
            // Fails where the caller has gone, which is no error.
            caller.send(reply).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use futures_util::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn requests_that_arrive_during_a_round_trip_share_the_next() {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let permits = Arc::new(Semaphore::new(0));
        let coalescer = {
            let sizes = sizes.clone();
            let permits = permits.clone();
            Coalescer::start(4, move |requests: Vec<u32>| {
                sizes.lock().unwrap().push(requests.len());
                let permits = permits.clone();
                async move {
                    permits.acquire().await.unwrap().forget();
                    requests.into_iter().map(|request| request * 10).collect()
                }
            })
        };
        let first = tokio::spawn({
            let coalescer = coalescer.clone();
            async move { coalescer.request(0).await }
        });
        while sizes.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        // The callers of these two are gone when the next batch is taken.
        assert!(coalescer.request(8).now_or_never().is_none());
        let late = coalescer.request_until(9, Instant::now()).await;
        assert_eq!((late, coalescer.waiting()), (Err(NoReply::NotSent), 2));
        permits.add_permits(9);
        let answers = join_all((1..=6).map(|request| coalescer.request(request))).await;
        assert_eq!(
            answers,
            (1..=6)
                .map(|request| Some(request * 10))
                .collect::<Vec<_>>()
        );
        assert_eq!((first.await.unwrap(), coalescer.waiting()), (Some(0), 0));
        // In the second batch, two of the four places were theirs.
        assert_eq!(*sizes.lock().unwrap(), [1, 2, 4]);
        coalescer.shutdown().await;
        assert_eq!(coalescer.request(7).await, None);
        let late = coalescer.request_until(7, Instant::now()).await;
        assert_eq!(late, Err(NoReply::NotSent));
    }

    #[tokio::test]
    async fn a_batch_that_panics_or_replies_too_little_leaves_no_caller_waiting() {
        let coalescer = Coalescer::start(4, |requests: Vec<u32>| async move {
            assert_ne!(requests, [2], "panics");
            Vec::<u32>::new()
        });
        for request in [1, 2, 3] {
            assert_eq!(coalescer.request(request).await, None);
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        let lost = coalescer.request_until(4, deadline).await;
        assert_eq!(lost, Err(NoReply::Lost));
        coalescer.shutdown().await;
    }
}
