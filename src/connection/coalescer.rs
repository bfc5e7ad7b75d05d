//! Coalesces concurrent requests into one round trip: what arrives while one batch is under way goes together in the
//! next. Under load a command for each request would cost the server and this process more than the rest of the
//! request. Nothing waits for a timer: a single request is sent alone, at once.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A request that waits for the next batch, and where its reply goes.
type Waiting<Q, A> = (Q, oneshot::Sender<A>);

/// The queue of requests and the task that sends it in batches. Cheap to clone.
#[derive(Clone)]
pub struct Coalescer<Q, A> {
    /// Without a bound of its own: the number of requests in flight bounds it, but for those whose callers have gone.
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
        let (queue, queued) = mpsc::unbounded_channel();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let waiting = Arc::new(AtomicUsize::new(0));
        let run = run(queued, waiting.clone(), max_batch, send);
        tasks.spawn(stop.clone().run_until_cancelled_owned(run));
        tasks.close();
        Coalescer {
            queue,
            waiting,
            tasks,
            stop,
        }
    }

    /// The reply to `request`; `None` where there is none, because of a shutdown or a failed batch. Dropping the future
    /// does not take the request back.
    pub async fn request(&self, request: Q) -> Option<A> {
        let (reply, received) = oneshot::channel();
        self.waiting.fetch_add(1, Relaxed);
        self.queue.send((request, reply)).ok()?;
        received.await.ok()
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
    queued: Arc<AtomicUsize>,
    max_batch: usize,
    send: F,
) where
    F: Fn(Vec<Q>) -> T,
    T: Future<Output = Vec<A>>,
{
    let mut waiting = Vec::with_capacity(max_batch);
    while queue.recv_many(&mut waiting, max_batch).await > 0 {
        queued.fetch_sub(waiting.len(), Relaxed);
        let (requests, receivers): (Vec<Q>, Vec<_>) = waiting.drain(..).unzip();
        // A panic costs this batch its replies, and not the batches to come.
        let replies = AssertUnwindSafe(send(requests))
            .catch_unwind()
            .await
            .unwrap_or_else(|_| {
                tracing::error!(
                    requests = receivers.len(),
                    "a coalesced round trip panicked"
                );
                Vec::new()
            });
        for (receiver, reply) in receivers.into_iter().zip(replies) {
            // Fails where the caller has gone, which is no error.
            receiver.send(reply).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures_util::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn requests_that_arrive_during_a_round_trip_share_the_next() {
        let (sizes, permits) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(Semaphore::new(0)),
        );
        let coalescer = {
            let (sizes, permits) = (sizes.clone(), permits.clone());
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
        // Who asks and goes is in the queue all the same.
        assert!(coalescer.request(9).now_or_never().is_none());
        assert_eq!(coalescer.waiting(), 1);
        permits.add_permits(9);
        let answers = join_all((1..=6).map(|request| coalescer.request(request))).await;
        assert_eq!(
            answers,
            (1..=6)
                .map(|request| Some(request * 10))
                .collect::<Vec<_>>()
        );
        assert_eq!((first.await.unwrap(), coalescer.waiting()), (Some(0), 0));
        assert_eq!(*sizes.lock().unwrap(), [1, 4, 3]);
        coalescer.shutdown().await;
        assert_eq!(coalescer.request(7).await, None);
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
        coalescer.shutdown().await;
    }
}
