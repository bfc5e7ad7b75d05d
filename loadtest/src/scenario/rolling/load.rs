//! Steady purchases, each buyer once, until told to stop: as many as are answered, or so many a second, in waves. After a
//! wave most connections idle until the next, and so does what a balancer keeps open to the instances.
//!
//! A purchase counts from when it was due, so that its latency contains the wait for a free connection.

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
            let due = self.due();
            sleep_until(due).await;
            if self.done.load(Ordering::Relaxed) {
                return records;
            }
            let next = self.load.used.fetch_add(1, Ordering::Relaxed);
            let Some(buyer) = self.load.buyers.get(next) else { return records };
            call.set_token(&buyer.token);
            let reply = Reply::of(&connection.send(&call).await);
            records.push(Record {
                observed: ObservedReply { user_id: buyer.user_id, attempt: 0, reply },
                target: 0,
                sent: due.saturating_duration_since(self.begin),
                latency: due.elapsed(),
                trace: None,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use tokio::{net::TcpListener, sync::mpsc, time::sleep};
    use workload::sessions;

    use super::*;

    /// Three are due at the begin, on one connection: the last of them waits for both others.
    #[tokio::test]
    async fn a_purchase_counts_from_when_it_was_due() {
        const ANSWER_TIME: Duration = Duration::from_millis(40);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (answering, mut answered) = mpsc::unbounded_channel();
        let slow = async move || {
            sleep(ANSWER_TIME).await;
            answering.send(()).unwrap();
        };
        let serving = axum::serve(listener, Router::new().fallback(slow));
        tokio::spawn(async move { serving.await.unwrap() });
        let load = Load::new(target, 1, sessions::buyers(1, 3).unwrap().into());
        let all_answered = async {
            for _ in 0..3 {
                answered.recv().await.unwrap();
            }
        };
        let ((), records) = load.run(1, Some(1.0), all_answered).await.unwrap();
        let latencies: Vec<_> = records.iter().map(|record| record.latency).collect();
        assert_eq!(latencies.len(), 3);
        for (earlier, latency) in (1..).zip(&latencies) {
            assert!(*latency >= earlier * ANSWER_TIME, "{latencies:?}");
        }
    }
}
