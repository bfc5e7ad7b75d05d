//! The workload of a chaos round: buyers in waves, some of whom pay or cancel their order; every attempt is recorded.
//!
//! In waves, because a fault breaks only what is in flight: with a steady trickle each purchase would be done before
//! the next begins.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rand::{Rng, seq::IndexedRandom};
use tokio::{task::JoinSet, time::Instant};

use super::changes::{Change, Owner, TIMEOUT, What};
use workload::{
    Error, Target,
    buyers::Buyer,
    driver::Connections,
    generator::{self, Purchases, Record},
    reply::Reply,
};

/// One attempt to buy, and what is asked of the instances, all at once, for the order that comes of it.
pub type Attempt = generator::Attempt<&'static [What]>;

/// What buyers do with an order, and how many of them out of a hundred.
const THEN: [(u32, &[What]); 4] = [
    (85, &[]),
    (6, &[What::Cancel, What::Cancel]),
    (6, &[What::Pay, What::Pay]),
    (3, &[What::Pay, What::Cancel]),
];

/// Every request of the buyers, with its reply.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Every attempt to buy.
    pub records: Vec<Record>,
    /// Every payment and cancellation.
    pub changes: Vec<Change>,
    /// Every order, after its buyer, whose look-up said a definite no.
    pub noes: BTreeSet<(u64, i64)>,
}

impl Outcome {
    /// Takes in what others were told.
    pub fn extend(&mut self, others: Self) {
        self.records.extend(others.records);
        self.changes.extend(others.changes);
        self.noes.extend(others.noes);
    }

    /// Notes a look-up's definite no.
    pub fn note(&mut self, user_id: u64, looked_up: &Reply) {
        if let Reply::Withdrawn { id, .. } = looked_up {
            self.noes.insert((user_id, *id));
        }
    }
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
    /// Connections to each target.
    pub connections: usize,
}

impl Workload {
    /// The owner of an order, who bought it at this time.
    pub fn owner(&self, buyer: &Buyer, order_id: i64, bought: Instant) -> Owner {
        Owner { targets: self.targets.clone(), buyer: buyer.clone(), order_id, bought }
    }
}

/// A buyer's attempt without delay and without anything after it.
pub fn attempt_now(buyer: usize, attempt: u32) -> Attempt {
    Attempt { due: Some(Duration::ZERO), buyer, attempt, then: &[] }
}

/// How many waves there are in a sale.
pub fn waves(sale: Duration, wave: Duration) -> u32 {
    let waves = sale.as_millis() / wave.as_millis().max(1);
    u32::try_from(waves).unwrap_or(u32::MAX).max(1)
}

/// Draws the attempts of `buyers` on a sale: each buyer asks in one wave, with a second attempt at the same
/// moment (on another target: attempts take turns) and a third one some time later.
pub fn draw(rng: &mut impl Rng, buyers: usize, (sale, wave): (Duration, Duration)) -> Vec<Attempt> {
    let waves = waves(sale, wave);
    let mut attempts = Vec::with_capacity(buyers * 3);
    for buyer in 0..buyers {
        let first = rng.random_range(0..waves);
        let third = rng.random_range(first..waves);
        for (attempt, wave_number) in (0..).zip([first, first, third]) {
            let (due, then) = (Some(wave * wave_number), THEN.choose_weighted(rng, |then| then.0));
            attempts.push(Attempt { due, buyer, attempt, then: then.map_or(&[], |then| then.1) });
        }
    }
    attempts.sort_by_key(|attempt| attempt.due);
    attempts
}

/// Buyers who do something with their order; what came of it, the buyer, and the purchase's reply.
type Changing = JoinSet<(Option<Change>, u64, Reply)>;

/// Makes `attempts`, each at its time after `begin`, and records every answer.
///
/// # Errors
/// Too few file descriptors; whatever the service does is a record.
pub async fn run(
    workload: &Workload,
    begin: Instant,
    attempts: &[Attempt],
) -> Result<Outcome, Error> {
    let count = workload.connections.min(attempts.len()) * workload.targets.len();
    let mut connections = Connections::new(&workload.targets, count, TIMEOUT)?;
    let purchases = Purchases {
        voucher_id: workload.voucher_id,
        buyers: workload.buyers.clone(),
        attempts: attempts.to_vec(),
        begin: begin.into_std(),
        traced: false,
    };
    let changing: Arc<Mutex<Changing>> = Arc::default();
    let (all, all_changing) = (workload.clone(), changing.clone());
    let ended = move |attempt: &Attempt, record: &Record| {
        let (Reply::Ordered(order_id) | Reply::Pending(order_id)) = record.observed.reply else {
            return;
        };
        if attempt.then.is_empty() {
            return;
        }
        let owner = all.owner(&all.buyers[attempt.buyer], order_id, begin + record.sent);
        let (then, mut reply) = (attempt.then, record.observed.reply.clone());
        lock(&all_changing).spawn(async move {
            if let Reply::Pending(_) = reply {
                reply = owner.wait().await;
            }
            let ordered = matches!(reply, Reply::Ordered(_));
            let change = if ordered { Some(owner.ask(then).await) } else { None };
            (change, owner.buyer.user_id, reply)
        });
    };
    let records = purchases.make(&mut connections, &Arc::default(), ended).await?;
    let mut outcome = Outcome { records, ..Outcome::default() };
    let changing = std::mem::take(&mut *lock(&changing));
    for (change, user_id, reply) in changing.join_all().await {
        outcome.changes.extend(change);
        outcome.note(user_id, &reply);
    }
    Ok(outcome)
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn the_first_two_attempts_overlap_and_the_third_comes_within_the_sale() {
        let (sale, wave) = (Duration::from_millis(1_000), Duration::from_millis(50));
        let rng = &mut StdRng::seed_from_u64(1);
        let attempts = draw(rng, 100, (sale, wave));
        assert_eq!(attempts.len(), 300);
        for buyer in 0..100 {
            let of = |number| {
                *attempts.iter().find(|a| a.buyer == buyer && a.attempt == number).unwrap()
            };
            assert_eq!(of(0).due, of(1).due);
            assert!(of(2).due >= of(0).due && of(2).due < Some(sale));
        }
    }
}
