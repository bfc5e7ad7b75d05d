//! The workload of a chaos round: buyers in waves, some of whom cancel their order; every attempt is recorded.
//!
//! In waves, because a fault breaks only what is in flight: with a steady trickle each purchase would be done before
//! the next begins.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper::header::HeaderValue;
use rand::Rng;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use workload::{
    Error, Target,
    buyers::Buyer,
    checker::ObservedReply,
    generator::Record,
    http::{Call, Connection, Failure},
    reply::Reply,
};

/// One attempt to buy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// When, from the beginning of the sale; later where no connection is free.
    pub due: Duration,
    /// Index of the buyer.
    pub buyer: usize,
    /// Which of this buyer's attempts, from 0.
    pub attempt: u32,
    /// Index of the target.
    pub target: usize,
    /// Whether the order, if one comes of it, is cancelled at once.
    pub cancels: bool,
}

/// A cancellation and its answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cancelled {
    /// The buyer.
    pub user_id: u64,
    /// The order.
    pub order_id: i64,
    /// The answers of both instances, which were asked at once.
    pub answers: Vec<CancelAnswer>,
}

/// An answer to a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelAnswer {
    /// Cancelled.
    Done,
    /// It was not cancelled by this.
    Refused,
    /// The outcome is unknown.
    Unknown,
}

/// Every request of the buyers, with its reply.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Every attempt to buy.
    pub records: Vec<Record>,
    /// Every cancellation.
    pub cancelled: Vec<Cancelled>,
}

/// The buyers and their targets.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Base URLs.
    pub targets: Vec<Target>,
    /// The voucher to buy.
    pub voucher_id: u64,
    /// The buyers.
    pub buyers: Arc<[Buyer]>,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// Connections to each target.
    pub connections: usize,
}

/// Draws the attempts of `buyers` on a sale: each buyer asks in one wave, with a second attempt at the same
/// moment on another target and a third one some time later.
pub fn draw(
    rng: &mut impl Rng,
    buyers: usize,
    targets: usize,
    (sale, wave): (Duration, Duration),
    cancel_share: f64,
) -> Vec<Attempt> {
    let waves = (sale.as_millis() / wave.as_millis().max(1)).max(1);
    let waves = u32::try_from(waves).unwrap_or(u32::MAX);
    let mut attempts = Vec::with_capacity(buyers * 3);
    for buyer in 0..buyers {
        let first = rng.random_range(0..waves);
        let third = rng.random_range(first..waves);
        for (attempt, wave_number) in (0..).zip([first, first, third]) {
            let target = (buyer + attempt as usize) % targets.max(1);
            let cancels = rng.random_bool(cancel_share);
            attempts.push(Attempt { due: wave * wave_number, buyer, attempt, target, cancels });
        }
    }
    attempts.sort_by_key(|attempt| attempt.due);
    attempts
}

/// Makes `attempts`, each at its time after `begin`, and records every answer.
///
/// # Errors
/// [`Error::Task`]; whatever the service does is a record.
pub async fn run(
    workload: &Workload,
    begin: Instant,
    attempts: &[Attempt],
) -> Result<Outcome, Error> {
    let mut workers = JoinSet::new();
    for target in 0..workload.targets.len() {
        let queue: Arc<[Attempt]> =
            attempts.iter().filter(|attempt| attempt.target == target).copied().collect();
        let next = Arc::new(AtomicUsize::new(0));
        for _ in 0..workload.connections.min(queue.len()) {
            let (workload, queue, next) = (workload.clone(), queue.clone(), next.clone());
            workers.spawn(work(workload, target, begin, queue, next));
        }
    }
    let mut outcome = Outcome::default();
    while let Some(joined) = workers.join_next().await {
        let part = joined?;
        outcome.records.extend(part.records);
        outcome.cancelled.extend(part.cancelled);
    }
    Ok(outcome)
}

/// One connection, which takes the next attempt of its target's queue.
async fn work(
    workload: Workload,
    target: usize,
    begin: Instant,
    queue: Arc<[Attempt]>,
    next: Arc<AtomicUsize>,
) -> Outcome {
    let mut connection = Connection::new(workload.targets[target].clone(), workload.timeout);
    let mut call = Call::post(format!("/voucher-order/seckill/{}", workload.voucher_id));
    let mut outcome = Outcome::default();
    while let Some(attempt) = queue.get(next.fetch_add(1, Ordering::Relaxed)) {
        let Some(buyer) = workload.buyers.get(attempt.buyer) else { continue };
        sleep_until(begin + attempt.due).await;
        call.set_token(&buyer.token);
        let sent = Instant::now();
        let reply = send(&mut connection, &call).await;
        let latency = sent.elapsed();
        let ordered = match reply {
            Reply::Ordered(id) if attempt.cancels => Some(id),
            _ => None,
        };
        outcome.records.push(Record {
            trace: None,
            observed: ObservedReply { user_id: buyer.user_id, attempt: attempt.attempt, reply },
            target,
            sent: sent.saturating_duration_since(begin),
            latency,
        });
        if let Some(order_id) = ordered {
            let answers = cancel(&workload, &buyer.token, order_id).await;
            outcome.cancelled.push(Cancelled { user_id: buyer.user_id, order_id, answers });
        }
    }
    outcome
}

/// Sends one attempt to buy, and reads the answer.
pub async fn send(connection: &mut Connection, call: &Call) -> Reply {
    Reply::of(&connection.send(call).await)
}

/// Asks every target at once to cancel an order: it must happen once.
async fn cancel(workload: &Workload, token: &HeaderValue, order_id: i64) -> Vec<CancelAnswer> {
    let mut asking = JoinSet::new();
    for target in &workload.targets {
        let mut connection = Connection::new(target.clone(), workload.timeout);
        let call = Call::post(format!("/voucher-order/{order_id}/cancel")).token(token);
        asking.spawn(async move {
            match connection.send(&call).await {
                Ok(answer) => match Reply::read(answer.status, &answer.body) {
                    // The reply holds the order itself, which the reader of purchases cannot use.
                    Reply::Ordered(_) | Reply::Malformed => CancelAnswer::Done,
                    Reply::Refused(_) | Reply::AlreadyOrdered(_) => CancelAnswer::Refused,
                    _ => CancelAnswer::Unknown,
                },
                Err(Failure::NotSent(_)) => CancelAnswer::Refused,
                Err(Failure::Lost(_) | Failure::TimedOut) => CancelAnswer::Unknown,
            }
        });
    }
    asking.join_all().await
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn the_first_two_attempts_overlap_on_two_targets() {
        let (sale, wave) = (Duration::from_millis(1_000), Duration::from_millis(50));
        let rng = &mut StdRng::seed_from_u64(1);
        let attempts = draw(rng, 100, 2, (sale, wave), 0.0);
        assert_eq!(attempts.len(), 300);
        for buyer in 0..100 {
            let of = |number| {
                *attempts.iter().find(|a| a.buyer == buyer && a.attempt == number).unwrap()
            };
            assert_eq!(of(0).due, of(1).due);
            assert_ne!(of(0).target, of(1).target);
            assert!(of(2).due >= of(0).due && of(2).due < sale);
        }
    }
}
