//! Steady purchases, each buyer once, until told to stop: as many as are answered, or so many a second, in waves. After a
//! wave most connections idle until the next, and so does what a balancer keeps open to the instances.

use std::{
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use workload::{
    Error, Target,
    buyers::Buyer,
    driver::Connections,
    generator::{Attempt, Purchases, Record},
    live::Live,
};

/// Purchases due at the same moment.
const WAVE: usize = 32;
/// Time limit of one purchase.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Buys on `connections` until `during` ends: `rate` times a second, or each as soon as it has its last answer. Returns
/// the value of `during` and every attempt, timed from the begin.
pub async fn run<T>(
    target: &Target,
    (voucher_id, buyers): (u64, Arc<[Buyer]>),
    connections: usize,
    rate: Option<f64>,
    during: impl Future<Output = T>,
) -> Result<(T, Vec<Record>), Error> {
    let mut connections = Connections::new(slice::from_ref(target), connections, TIMEOUT)?;
    let due = |buyer| {
        let wave = buyer / WAVE * WAVE;
        rate.map(|rate| Duration::from_secs_f64(wave as f64 / rate.max(1e-3)))
    };
    let attempts = (0..buyers.len())
        .map(|buyer| Attempt { buyer, attempt: 0, due: due(buyer), then: () })
        .collect();
    let begin = Instant::now();
    let purchases = Purchases { voucher_id, buyers, attempts, begin, traced: false };
    let live = Arc::new(Live::default());
    let until = async {
        let value = during.await;
        live.stop();
        value
    };
    let (made, value) = tokio::join!(purchases.make(&mut connections, &live, |_, _| ()), until);
    Ok((value, made?))
}
