//! Load generator: very many purchases at once.
//!
//! The attempts of one buyer are neighbours in the targets' queues and go to the targets in turn, so they truly overlap,
//! on one instance and across them.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use hyper::header::HeaderValue;

use crate::{
    Error,
    burst::options::BurstOptions,
    buyers::Buyer,
    checker::ObservedReply,
    driver::{Connections, Done, Job, Source},
    http::{Call, TRACE},
    live::Live,
    reply::Reply,
};

/// One finished attempt. Times count from the opening of the sale, and are cut off before it.
#[derive(Debug, Clone)]
pub struct Record {
    /// The buyer and the reply, for the checker.
    pub observed: ObservedReply,
    /// Index of the target asked.
    pub target: usize,
    /// When it was due.
    pub due: Duration,
    /// When it was sent: as soon as it was due and a connection was free.
    pub sent: Duration,
    /// When the last byte of the answer was there, or it was given up.
    pub answered: Duration,
    /// The steps that the service took for it, as its header has them.
    pub trace: Option<Box<str>>,
}

impl Record {
    /// The attempt number `attempt` of a user, made in a sale that was opened at `begin`.
    pub fn of<T>(user_id: u64, attempt: u32, begin: Instant, done: &Done<T>) -> Self {
        let since = |time: Instant| time.saturating_duration_since(begin);
        let trace = done.answer.as_ref().ok().and_then(|answer| answer.trace().map(Box::from));
        Self {
            observed: ObservedReply { user_id, attempt, reply: Reply::of(&done.answer) },
            target: done.target,
            due: since(done.due),
            sent: since(done.sent),
            answered: since(done.ended),
            trace,
        }
    }

    /// From when it was due to its answer: the wait for a free connection counts.
    pub fn latency(&self) -> Duration {
        self.answered.saturating_sub(self.due)
    }
}

/// An attempt in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Attempt {
    /// Index of the buyer.
    buyer: usize,
    /// Which of the buyer's attempts.
    attempt: u32,
    /// When, from the opening.
    due: Duration,
}

/// One target's queue of attempts.
struct Queue {
    attempts: Vec<Attempt>,
    next: AtomicUsize,
}

fn queues(arriving: &[(usize, Duration)], tries: u32, targets: usize) -> Vec<Queue> {
    let mut attempts = vec![Vec::new(); targets];
    for &(buyer, due) in arriving {
        for attempt in 0..tries {
            let target = (buyer + attempt as usize) % targets;
            attempts[target].push(Attempt { buyer, attempt, due });
        }
    }
    attempts.into_iter().map(|attempts| Queue { attempts, next: AtomicUsize::new(0) }).collect()
}

/// Generates the load, and returns a record of every attempt. All connections are open before the first is made.
///
/// # Errors
/// An [`Error`] only before that; later, every failure is part of a record.
pub async fn generate(
    options: &BurstOptions,
    voucher_id: u64,
    buyers: &Arc<[Buyer]>,
) -> Result<Vec<Record>, Error> {
    let BurstOptions { targets, tries, live, .. } = options;
    let total = buyers.len() * *tries as usize;
    let count = options.connections_for(total);
    let mut connections = Connections::new(targets, count, options.timeout)?;
    connections.open().await?;
    let arriving = options.arrivals.draw(buyers.len());
    let mut call = Call::post(format!("/voucher-order/seckill/{voucher_id}"));
    if options.traced {
        call = call.header(TRACE, HeaderValue::from_static("1"));
    }
    let buying = Arc::new(Buying {
        queues: queues(&arriving, *tries, targets.len()),
        buyers: buyers.clone(),
        call,
        live: live.clone(),
        begin: Instant::now(),
        records: Mutex::new(Vec::with_capacity(total)),
    });
    live.open();
    connections.drive(&buying, live).await?;
    let mut records = buying.records.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut records))
}

/// The attempts of a burst.
struct Buying {
    queues: Vec<Queue>,
    buyers: Arc<[Buyer]>,
    call: Call,
    live: Arc<Live>,
    begin: Instant,
    records: Mutex<Vec<Record>>,
}

impl Source for Buying {
    type What = Attempt;

    fn next(&self, target: usize) -> Option<Job<Attempt>> {
        let queue = &self.queues[target];
        let attempt = *queue.attempts.get(queue.next.fetch_add(1, Ordering::Relaxed))?;
        let call = self.call.clone().token(&self.buyers[attempt.buyer].token);
        Some(Job { call, due: Some(self.begin + attempt.due), what: attempt })
    }

    fn ended(&self, done: Done<Attempt>) {
        let Attempt { buyer, attempt, .. } = done.what;
        let record = Record::of(self.buyers[buyer].user_id, attempt, self.begin, &done);
        let reply = &record.observed.reply;
        self.live.attempt(reply.label(), reply.is_success(), record.latency());
        self.records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
    }
}

#[cfg(test)]
mod tests;
