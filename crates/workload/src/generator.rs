//! Load generator: purchases on one sale, of a burst very many at once.
//!
//! The attempts of one buyer go to the targets in turn. In a burst they are neighbours in the targets' queues as well, so
//! they truly overlap, on one instance and across them.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use hyper::header::HeaderValue;

use crate::{
    Error,
    burst::options::BurstOptions,
    buyers::Buyer,
    checker::ObservedReply,
    driver::{Connections, Done, Job},
    http::{Call, TRACE},
    live::{Live, lock},
    reply::Reply,
};

/// One finished attempt. Times count from the opening of the sale, and are cut off before it.
#[derive(Debug, Clone)]
pub struct Record {
    /// The buyer and the reply, for the checker.
    pub observed: ObservedReply,
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
    /// An attempt of this buyer, made in a sale that was opened at `begin`.
    fn of<T>(buyer: &Buyer, begin: Instant, done: &Done<Attempt<T>>) -> Self {
        let since = |time: Instant| time.saturating_duration_since(begin);
        let trace = done.answer.as_ref().ok().and_then(|answer| answer.trace().map(Box::from));
        Self {
            observed: ObservedReply {
                user_id: buyer.user_id,
                attempt: done.what.attempt,
                reply: Reply::of(&done.answer),
            },
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

/// An attempt to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt<T = ()> {
    /// Index of the buyer.
    pub buyer: usize,
    /// Which of the buyer's attempts, from 0.
    pub attempt: u32,
    /// When, from the opening of the sale; `None`: as soon as a connection is free.
    pub due: Option<Duration>,
    /// What its end is to lead to, for the caller.
    pub then: T,
}

/// Attempts on one sale.
#[derive(Debug)]
pub struct Purchases<T = ()> {
    /// The voucher to buy.
    pub voucher_id: u64,
    /// The buyers.
    pub buyers: Arc<[Buyer]>,
    /// In the order in which they are made.
    pub attempts: Vec<Attempt<T>>,
    /// When the sale opens.
    pub begin: Instant,
    /// Whether the service is asked for the steps of each.
    pub traced: bool,
}

impl<T: Copy + Send + Sync + 'static> Purchases<T> {
    /// Makes them until `live` is stopped, and returns a record of every attempt; `ended` is told of each at once.
    ///
    /// # Errors
    /// [`Error::Task`]; whatever a server does is a record.
    pub async fn make(
        self,
        connections: &mut Connections,
        live: &Arc<Live>,
        ended: impl Fn(&Attempt<T>, &Record) + Send + Sync + 'static,
    ) -> Result<Vec<Record>, Error> {
        let Self { voucher_id, buyers, attempts, begin, traced } = self;
        let mut call = Call::post(format!("/voucher-order/seckill/{voucher_id}"));
        if traced {
            call = call.header(TRACE, HeaderValue::from_static("1"));
        }
        let records = Arc::new(Mutex::new(Vec::with_capacity(attempts.len())));
        let queues = queues(&attempts, connections.targets()).into_iter();
        let queues: Vec<_> = queues.map(|queue| Mutex::new(queue.into_iter())).collect();
        let (asking, made) = (buyers.clone(), records.clone());
        let next = move |target: usize| {
            let what: Attempt<T> = lock(&queues[target]).next()?;
            let call = call.clone().token(&asking[what.buyer].token);
            Some(Job { call, due: what.due.map(|due| begin + due), what })
        };
        let ended = move |done: Done<Attempt<T>>| {
            let record = Record::of(&buyers[done.what.buyer], begin, &done);
            ended(&done.what, &record);
            lock(&made).push(record);
        };
        connections.drive(live, next, ended).await?;
        let records = std::mem::take(&mut *lock(&records));
        Ok(records)
    }
}

/// Each target's attempts: those of one buyer go to the targets in turn.
fn queues<T: Copy>(all: &[Attempt<T>], targets: usize) -> Vec<Vec<Attempt<T>>> {
    let mut queues = vec![Vec::new(); targets];
    for one in all {
        queues[(one.buyer + one.attempt as usize) % targets].push(*one);
    }
    queues
}

/// The attempts of a burst: all of one buyer at the same moment.
fn attempts(options: &BurstOptions, buyers: usize) -> Vec<Attempt> {
    let of = |(buyer, due)| {
        (0..options.tries).map(move |attempt| Attempt { buyer, attempt, due: Some(due), then: () })
    };
    options.arrivals(buyers).into_iter().flat_map(of).collect()
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
    let attempts = attempts(options, buyers.len());
    let count = options.connections_for(attempts.len());
    let mut connections = Connections::new(&options.environment.targets, count, options.timeout)?;
    connections.open().await?;
    let (begin, buyers, traced) = (Instant::now(), buyers.clone(), options.traced);
    let purchases = Purchases { voucher_id, buyers, attempts, begin, traced };
    options.live.opened.cancel();
    let live = options.live.clone();
    let count = move |_: &Attempt, record: &Record| {
        live.attempt(&record.observed.reply, record.latency());
    };
    purchases.make(&mut connections, &options.live, count).await
}

#[cfg(test)]
mod tests;
