//! Load generator: very many purchases at once.
//!
//! Connections are opened first and wait at a barrier; when it opens, each takes the next attempt
//! of its target's queue until none is left. The attempts of one buyer are neighbours in the
//! queues and go to the targets in turn, so they truly overlap, on one instance and across them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use hyper::header::HeaderValue;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::sleep_until,
};

use crate::{
    Error, Target,
    buyers::Buyer,
    checker::ObservedReply,
    descriptors,
    http::{Call, Connection, TRACE},
    live::Live,
    reply::Reply,
};

/// The load to generate.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Base URLs; attempts go to them in turn.
    pub targets: Vec<Target>,
    /// The voucher to buy.
    pub voucher_id: u64,
    /// The buyers.
    pub buyers: Arc<[Buyer]>,
    /// Attempts of each buyer.
    pub tries: u32,
    /// Keep-alive connections over all targets; at least one per target is used.
    pub connections: usize,
    /// Time limit of one attempt, from its first byte to the last of its answer.
    pub timeout: Duration,
    /// When the buyers arrive.
    pub arrivals: Arrivals,
    /// Whether each attempt asks the service for its steps; a server without `--lab` sends none.
    pub traced: bool,
}

/// When the buyers arrive. All attempts of one buyer are made at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// All at once.
    AtOnce,
    /// One after the other, at random moments of this span, drawn from the seed.
    Spread {
        /// From the first to the last.
        over: Duration,
        /// What the moments and the order of the buyers are drawn from.
        seed: u64,
    },
}

impl Arrivals {
    /// The buyers by index, in the order in which they arrive, each with its time.
    fn draw(self, buyers: usize) -> Vec<(usize, Duration)> {
        let mut order: Vec<usize> = (0..buyers).collect();
        let mut due = vec![Duration::ZERO; buyers];
        if let Self::Spread { over, seed } = self {
            let mut dice = StdRng::seed_from_u64(seed);
            order.shuffle(&mut dice);
            due.fill_with(|| over.mul_f64(dice.random()));
            due.sort_unstable();
        }
        order.into_iter().zip(due).collect()
    }
}

/// One finished attempt.
#[derive(Debug, Clone)]
pub struct Record {
    /// The buyer and the reply, for the checker.
    pub observed: ObservedReply,
    /// Index of the target asked.
    pub target: usize,
    /// When it was sent, from the opening of the barrier.
    pub sent: Duration,
    /// From sending to the last byte of the answer, or to giving up.
    pub latency: Duration,
    /// The steps that the service took for it, as its header has them.
    pub trace: Option<Box<str>>,
}

/// One target's queue of attempts, as (index of the buyer, which try, when).
struct Queue {
    attempts: Vec<(usize, u32, Duration)>,
    next: AtomicUsize,
}

fn queues(arriving: &[(usize, Duration)], tries: u32, targets: usize) -> Vec<Arc<Queue>> {
    let mut attempts = vec![Vec::new(); targets];
    for &(buyer, due) in arriving {
        for attempt in 0..tries {
            attempts[(buyer + attempt as usize) % targets].push((buyer, attempt, due));
        }
    }
    let queue = |attempts| Arc::new(Queue { attempts, next: AtomicUsize::new(0) });
    attempts.into_iter().map(queue).collect()
}

/// Generates the load, and returns a record of every attempt.
///
/// # Errors
/// An [`Error`] only before the barrier opens; after it, every failure is part of a record.
pub async fn generate(plan: &Plan, live: &Arc<Live>) -> Result<Vec<Record>, Error> {
    let targets = plan.targets.len();
    if targets == 0 {
        return Err(Error::Usage("at least one target is needed".to_owned()));
    }
    let total = plan.buyers.len() * plan.tries as usize;
    let connections = plan.connections.clamp(1, total.max(1)).max(targets);
    descriptors::reserve(connections)?;

    let arriving = plan.arrivals.draw(plan.buyers.len());
    let queues = queues(&arriving, plan.tries, targets);
    let (ready, mut waiting) = mpsc::channel(connections);
    let (open, barrier) = watch::channel(None::<Instant>);
    let mut workers = JoinSet::new();
    let mut call = Call::post(format!("/voucher-order/seckill/{}", plan.voucher_id));
    if plan.traced {
        call = call.header(TRACE, HeaderValue::from_static("1"));
    }
    for worker in 0..connections {
        let target = worker % targets;
        let worker = Worker {
            connection: Connection::new(plan.targets[target].clone(), plan.timeout),
            url: plan.targets[target].to_string(),
            target,
            queue: queues[target].clone(),
            buyers: plan.buyers.clone(),
            call: call.clone(),
            live: live.clone(),
        };
        workers.spawn(worker.run(ready.clone(), barrier.clone()));
    }
    drop(ready);
    for _ in 0..connections {
        if let Some(Err(error)) = waiting.recv().await {
            return Err(error);
        }
    }
    live.open();
    open.send_replace(Some(Instant::now()));
    let mut records = Vec::with_capacity(total);
    while let Some(joined) = workers.join_next().await {
        records.extend(joined?);
    }
    Ok(records)
}

/// One connection and the queue it works on.
struct Worker {
    connection: Connection,
    url: String,
    target: usize,
    queue: Arc<Queue>,
    buyers: Arc<[Buyer]>,
    call: Call,
    live: Arc<Live>,
}

impl Worker {
    async fn run(
        mut self,
        ready: mpsc::Sender<Result<(), Error>>,
        mut barrier: watch::Receiver<Option<Instant>>,
    ) -> Vec<Record> {
        let opened = self.connection.open().await.map_err(|error| Error::Unreachable {
            url: self.url.clone(),
            what: "a connection",
            reason: error.to_string(),
        });
        let mut records = Vec::new();
        // The receiver is gone once another connection has failed: the run is over.
        if ready.send(opened).await.is_err() {
            return records;
        }
        let Ok(begin) = barrier.wait_for(Option::is_some).await.map(|opened| *opened) else {
            return records;
        };
        let begin = begin.unwrap_or_else(Instant::now);
        loop {
            let next = self.queue.next.fetch_add(1, Ordering::Relaxed);
            let Some(&(buyer, attempt, due)) = self.queue.attempts.get(next) else { break };
            if !self.is_due(begin + due).await {
                break;
            }
            self.live.may_send().await;
            let buyer = &self.buyers[buyer];
            self.call.set_token(&buyer.token);
            let sent = Instant::now();
            let answer = self.connection.send(&self.call).await;
            let reply = Reply::of(&answer);
            let latency = sent.elapsed();
            let trace = answer.ok().and_then(|answer| answer.trace().map(Box::from));
            self.live.attempt(reply.label(), reply.is_success(), latency);
            records.push(Record {
                observed: ObservedReply { user_id: buyer.user_id, attempt, reply },
                target: self.target,
                sent: sent.saturating_duration_since(begin),
                latency,
                trace,
            });
        }
        records
    }

    /// Waits for `moment`; `false` where the run was stopped meanwhile.
    async fn is_due(&self, moment: Instant) -> bool {
        if moment > Instant::now() {
            tokio::select! {
                () = sleep_until(moment.into()) => {}
                () = self.live.stopped() => {}
            }
        }
        !self.live.is_stopped()
    }
}

#[cfg(test)]
mod tests;
