//! Round trips that are shared: questions that come while one travels go together in the next. In a rush a
//! command for each would cost the server and this process more than the rest of the request. Nothing
//! waits for a timer: who comes alone travels alone.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A question that waits, and where its answer goes.
struct Asked<Q, A> {
    question: Q,
    answer: oneshot::Sender<A>,
}

/// The queue and what works it off. Cheap to clone.
pub struct SharedTrip<Q, A> {
    /// Without a bound of its own: each place in it is a request that is in flight.
    queue: mpsc::UnboundedSender<Asked<Q, A>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl<Q, A> Clone for SharedTrip<Q, A> {
    fn clone(&self) -> Self {
        let SharedTrip { queue, tasks, stop } = self;
        SharedTrip { queue: queue.clone(), tasks: tasks.clone(), stop: stop.clone() }
    }
}

impl<Q: Send + Sync + 'static, A: Send + 'static> SharedTrip<Q, A> {
    /// Calls `trip` with what waits, at most `together` questions, one call after the other, until
    /// [`SharedTrip::shutdown`]. It answers them in their order.
    pub fn start<F, T>(together: usize, trip: F) -> Self
    where
        F: Fn(Vec<Q>) -> T + Send + Sync + 'static,
        T: Future<Output = Vec<A>> + Send + 'static,
    {
        let (queue, waiting) = mpsc::unbounded_channel();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        tasks.spawn(stop.clone().run_until_cancelled_owned(travel(waiting, together, trip)));
        tasks.close();
        SharedTrip { queue, tasks, stop }
    }

    /// Asks; `None` where there is no answer, because the trips have ended or one broke off.
    pub async fn ask(&self, question: Q) -> Option<A> {
        let (answer, answered) = oneshot::channel();
        self.queue.send(Asked { question, answer }).ok()?;
        answered.await.ok()
    }

    /// Ends the trips; what waits is not answered.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}

/// One trip after another.
async fn travel<Q, A, F, T>(
    mut queue: mpsc::UnboundedReceiver<Asked<Q, A>>,
    together: usize,
    trip: F,
) where
    F: Fn(Vec<Q>) -> T,
    T: Future<Output = Vec<A>>,
{
    let mut waiting = Vec::with_capacity(together);
    while queue.recv_many(&mut waiting, together).await > 0 {
        let (questions, answers): (Vec<Q>, Vec<_>) =
            waiting.drain(..).map(|Asked { question, answer }| (question, answer)).unzip();
        // A trip that panics takes its own questions along, and not the ones to come.
        let said = AssertUnwindSafe(trip(questions)).catch_unwind().await.unwrap_or_else(|_| {
            tracing::error!(questions = answers.len(), "a shared trip panicked");
            Vec::new()
        });
        for (answer, said) in answers.into_iter().zip(said) {
            // Whoever hung up is not told, which is why a failed send is no failure.
            answer.send(said).ok();
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
    async fn what_comes_while_one_travels_goes_together() {
        let (sizes, gate) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Semaphore::new(0)));
        let trips = {
            let (sizes, gate) = (sizes.clone(), gate.clone());
            SharedTrip::start(4, move |questions: Vec<u32>| {
                sizes.lock().unwrap().push(questions.len());
                let gate = gate.clone();
                async move {
                    gate.acquire().await.unwrap().forget();
                    questions.into_iter().map(|question| question * 10).collect()
                }
            })
        };
        let first = tokio::spawn({
            let trips = trips.clone();
            async move { trips.ask(0).await }
        });
        while sizes.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        gate.add_permits(9);
        let answers = join_all((1..=6).map(|question| trips.ask(question))).await;
        assert_eq!(answers, (1..=6).map(|question| Some(question * 10)).collect::<Vec<_>>());
        assert_eq!(first.await.unwrap(), Some(0));
        assert_eq!(*sizes.lock().unwrap(), [1, 4, 2]);
        trips.shutdown().await;
        assert_eq!(trips.ask(7).await, None);
    }

    #[tokio::test]
    async fn a_trip_that_panics_or_says_too_little_leaves_nobody_waiting() {
        let trips = SharedTrip::start(4, |questions: Vec<u32>| async move {
            assert_ne!(questions, [2], "panics");
            Vec::<u32>::new()
        });
        for question in [1, 2, 3] {
            assert_eq!(trips.ask(question).await, None);
        }
        trips.shutdown().await;
    }
}
