//! Steady purchases, each buyer once, until told to stop: as many as are answered, or so many a second, in waves. After a
//! wave most connections idle until the next, and so does what a balancer keeps open to the instances.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};
use workload::{
    Error, Target,
    buyers::Buyer,
    checker::ObservedReply,
    generator::Record,
    http::{Call, Connection},
    reply::Reply,
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
#[derive(Debug)]
struct Run {
    load: Arc<Load>,
    begin: Instant,
    rate: Option<f64>,
    made: AtomicUsize,
    done: AtomicBool,
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
    /// [`Error::Task`]; whatever the service does is a record.
    pub async fn run<T>(
        self: &Arc<Self>,
        connections: usize,
        rate: Option<f64>,
        during: impl Future<Output = T>,
    ) -> Result<(T, Vec<Record>), Error> {
        let run = Arc::new(Run {
            load: self.clone(),
            begin: Instant::now(),
            rate,
            made: AtomicUsize::new(0),
            done: AtomicBool::new(false),
        });
        let mut workers = JoinSet::new();
        for _ in 0..connections {
            workers.spawn(run.clone().work());
        }
        let value = during.await;
        run.done.store(true, Ordering::Relaxed);
        let mut records = Vec::new();
        while let Some(joined) = workers.join_next().await {
            records.extend(joined?);
        }
        Ok((value, records))
    }
}

impl Run {
    fn due(&self) -> Instant {
        let Some(rate) = self.rate else { return Instant::now() };
        let wave = self.made.fetch_add(1, Ordering::Relaxed) / WAVE * WAVE;
        self.begin + Duration::from_secs_f64(wave as f64 / rate.max(1e-3))
    }

    async fn work(self: Arc<Self>) -> Vec<Record> {
        let mut connection = Connection::new(self.load.target.clone(), TIMEOUT);
        let mut call = Call::post(format!("/voucher-order/seckill/{}", self.load.voucher_id));
        let mut records = Vec::new();
        loop {
            sleep_until(self.due()).await;
            if self.done.load(Ordering::Relaxed) {
                return records;
            }
            let next = self.load.used.fetch_add(1, Ordering::Relaxed);
            let Some(buyer) = self.load.buyers.get(next) else { return records };
            call.set_token(&buyer.token);
            let sent = Instant::now();
            let reply = Reply::of(&connection.send(&call).await);
            records.push(Record {
                observed: ObservedReply { user_id: buyer.user_id, attempt: 0, reply },
                target: 0,
                sent: sent.saturating_duration_since(self.begin),
                latency: sent.elapsed(),
                trace: None,
            });
        }
    }
}
