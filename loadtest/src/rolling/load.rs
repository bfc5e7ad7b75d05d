//! Steady purchases, each buyer once, until told to stop: as many as are answered, or so many a second, in waves. After a
//! wave most connections idle until the next, and so does what a balancer keeps open to the instances.

use std::{
    slice,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use workload::{
    Error, Target,
    buyers::Buyer,
    driver::{Connections, Done, Job, Source},
    generator::Record,
    http::Call,
    live::Live,
};

/// Purchases due at the same moment.
const WAVE: usize = 32;
/// Time limit of one purchase.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Who buys what, and where.
#[derive(Debug)]
pub struct Load {
    /// The address of the balancer.
    pub target: Target,
    /// The voucher to buy.
    pub voucher_id: u64,
    /// Each buys once.
    pub buyers: Arc<[Buyer]>,
    used: AtomicUsize,
}

/// One run of a load.
struct Run {
    load: Arc<Load>,
    begin: Instant,
    rate: Option<f64>,
    made: AtomicUsize,
    records: Mutex<Vec<Record>>,
}

impl Load {
    /// A load of which nothing has been made.
    pub fn new(target: Target, voucher_id: u64, buyers: Arc<[Buyer]>) -> Arc<Self> {
        Arc::new(Self { target, voucher_id, buyers, used: AtomicUsize::new(0) })
    }

    /// Whether every buyer has been used: from then on nothing is bought.
    pub fn is_used_up(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.buyers.len()
    }

    /// Buys on `connections` until `during` ends: `rate` times a second, or each as soon as it has its last answer.
    /// Returns the value of `during` and every attempt, timed from the begin.
    ///
    /// # Errors
    /// Too few file descriptors; whatever the service does is a record.
    pub async fn run<T>(
        self: &Arc<Self>,
        connections: usize,
        rate: Option<f64>,
        during: impl Future<Output = T>,
    ) -> Result<(T, Vec<Record>), Error> {
        let targets = slice::from_ref(&self.target);
        let mut connections = Connections::new(targets, connections, TIMEOUT)?;
        let run = Arc::new(Run {
            load: self.clone(),
            begin: Instant::now(),
            rate,
            made: AtomicUsize::new(0),
            records: Mutex::default(),
        });
        let live = Arc::new(Live::default());
        let until = async {
            let value = during.await;
            live.stop();
            value
        };
        let (driven, value) = tokio::join!(connections.drive(&run, &live), until);
        driven?;
        let mut records = run.records.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((value, std::mem::take(&mut records)))
    }
}

impl Source for Run {
    /// The buyer's id.
    type What = u64;

    fn next(&self, _target: usize) -> Option<Job<u64>> {
        let due = self.rate.map(|rate| {
            let wave = self.made.fetch_add(1, Ordering::Relaxed) / WAVE * WAVE;
            self.begin + Duration::from_secs_f64(wave as f64 / rate.max(1e-3))
        });
        let buyer = self.load.buyers.get(self.load.used.fetch_add(1, Ordering::Relaxed))?;
        let call = Call::post(format!("/voucher-order/seckill/{}", self.load.voucher_id));
        Some(Job { call: call.token(&buyer.token), due, what: buyer.user_id })
    }

    fn ended(&self, done: Done<u64>) {
        let record = Record::of(done.what, 0, self.begin, &done);
        self.records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
    }
}
