//! Load generator: purchases on one sale; in a burst, very many at once.
//!
//! The attempts of one buyer go to the targets in turn. In a burst they are neighbours in the targets' queues as well, so
//! they truly overlap, on one instance and across them.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use hyper::header::HeaderValue;

use crate::{
    Error,
    burst_options::BurstOptions,
    buyers::Buyer,
    checker::ObservedReply,
    driver::{Connections, Done, Job},
    http::{Call, TRACE},
    live::{Live, lock},
    reply::Reply,
};

/// One finished attempt. Times count from the opening of the sale; a time before it is 0.
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
    /// From when it was due to its answer: the wait for a free connection counts.
    pub fn latency(&self) -> Duration {
        self.answered.saturating_sub(self.due)
    }
}

/// An attempt to make.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<T = ()> {
    /// Index of the buyer.
    pub buyer: usize,
    /// Which of the buyer's attempts, from 0.
    pub attempt: u32,
    /// When, from the opening of the sale; `None`: as soon as a connection is free.
    pub due: Option<Duration>,
    /// The caller's own: what follows when the attempt has ended.
    pub then: T,
}

/// Attempts on one sale.
#[derive(Debug)]
pub struct Purchases<T = ()> {
    /// The voucher to buy.
    pub voucher_id: u64,
    /// The voucher of each buyer's first attempt, where that is another one.
    pub other_voucher_id: Option<u64>,
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
    /// Makes the attempts until `live` is stopped, and returns a record of each one made. Calls `ended` as soon as one has
    /// ended.
    ///
    /// # Errors
    /// [`Error::Task`]; whatever a server does is a record.
    pub async fn make(
        self,
        connections: &mut Connections,
        live: &Arc<Live>,
        ended: impl Fn(&Attempt<T>, &Record) + Send + Sync + 'static,
    ) -> Result<Vec<Record>, Error> {
        let Self {
            voucher_id,
            other_voucher_id,
            buyers,
            attempts,
            begin,
            traced,
        } = self;
        let call_for = |voucher_id| {
            let call = Call::post(format!("/voucher-order/seckill/{voucher_id}"));
            if traced {
                return call.header(TRACE, HeaderValue::from_static("1"));
            }
            call
        };
        let call = call_for(voucher_id);
        let other_call = other_voucher_id.map(call_for);
        let records = Arc::new(Mutex::new(Vec::with_capacity(attempts.len())));
        let targets = connections.targets();
        let mut queues = vec![VecDeque::new(); targets];
        for attempt in attempts {
            let target = (attempt.buyer + attempt.attempt as usize) % targets;
            queues[target].push_back(attempt);
        }
        let queues: Vec<_> = queues.into_iter().map(Mutex::new).collect();
        let tokens = buyers.clone();
        let made = records.clone();
        let next_job = move |target: usize| {
            let attempt: Attempt<T> = lock(&queues[target]).pop_front()?;
            let call = match &other_call {
                Some(other_call) if attempt.attempt == 0 => other_call,
                _ => &call,
            };
            Some(Job {
                call: call.clone().token(&tokens[attempt.buyer].token),
                due: attempt.due.map(|due| begin + due),
                what: attempt,
            })
        };
        let record_end = move |done: Done<Attempt<T>>| {
            let Done {
                what: attempt,
                due,
                sent,
                ended: answered,
                answer,
                ..
            } = done;
            let since = |time: Instant| time.saturating_duration_since(begin);
            let user_id = buyers[attempt.buyer].user_id;
            let reply = Reply::from_answer(&answer);
            let record = Record {
                observed: ObservedReply {
                    user_id,
                    attempt: attempt.attempt,
                    reply,
                },
                due: since(due),
                sent: since(sent),
                answered: since(answered),
                trace: answer.ok().and_then(|answer| answer.trace().map(Box::from)),
            };
            ended(&attempt, &record);
            lock(&made).push(record);
        };
        connections.drive(live, next_job, record_end).await?;
        let records = std::mem::take(&mut *lock(&records));
        Ok(records)
    }
}

/// How long after one attempt of a buyer the next one is due, where the first is for another voucher.
const CLICKS_EVERY: Duration = Duration::from_millis(2);

/// Generates the load, and returns a record of each attempt. All attempts of one buyer are due at the same moment; or, where
/// the first is for another voucher, one soon after the other. All connections are open before the first is made.
///
/// # Errors
/// An [`Error`] only before that; later, every failure is part of a record.
pub async fn generate(
    options: &BurstOptions,
    voucher_id: u64,
    buyers: &Arc<[Buyer]>,
) -> Result<Vec<Record>, Error> {
    let between = match options.other_voucher_id {
        Some(_) => CLICKS_EVERY,
        None => Duration::ZERO,
    };
    let mut attempts: Vec<_> = options
        .arrivals(buyers.len())
        .into_iter()
        .flat_map(|(buyer, arrival)| {
            (0..options.tries).map(move |attempt| Attempt {
                buyer,
                attempt,
                due: Some(arrival + attempt * between),
                then: (),
            })
        })
        .collect();
    attempts.sort_by_key(|attempt| attempt.due);
    let count = options.connections_for(attempts.len());
    let mut connections = Connections::new(&options.environment.targets, count, options.timeout)?;
    connections.open().await?;
    let purchases = Purchases {
        voucher_id,
        other_voucher_id: options.other_voucher_id,
        buyers: buyers.clone(),
        attempts,
        begin: Instant::now(),
        traced: options.traced,
    };
    options.live.opened.cancel();
    let watched = options.clone();
    let orders = Mutex::default();
    purchases
        .make(&mut connections, &options.live, move |attempt, record| {
            if watched.is_elsewhere(attempt.attempt) {
                return;
            }
            let ObservedReply { user_id, reply, .. } = &record.observed;
            watched.live.attempt(reply, record.latency());
            if let Reply::Ordered(id) = reply
                && is_one_too_many(&mut lock(&orders), *user_id, *id, watched.stock)
            {
                watched.live.violation();
            }
        })
        .await
}

/// Adds an order to those that were told, by buyer and id. Whether it is the buyer's second, or there are more than
/// vouchers.
fn is_one_too_many(
    orders: &mut BTreeSet<(u64, i64)>,
    user_id: u64,
    order_id: i64,
    stock: u32,
) -> bool {
    let is_new = orders.insert((user_id, order_id));
    let of_buyer = orders.range((user_id, i64::MIN)..=(user_id, i64::MAX));
    is_new && (of_buyer.count() > 1 || orders.len() > stock as usize)
}

#[cfg(test)]
mod tests;
