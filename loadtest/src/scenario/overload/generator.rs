//! The load generator of an overload: many connections, each buyer once in each sale, sales published ahead.

use std::{
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    task::JoinSet,
    time::{Instant as TokioInstant, sleep, sleep_until},
};

use crate::{
    links::{self, Link},
    reads::schedule::due,
};
use workload::{
    Error, burst::BurstOptions, buyers::Buyer, checker::ObservedReply, http::Call, publish,
    reply::Reply,
};

/// Sales that are ready before they are needed.
const AHEAD: usize = 8;

/// One finished attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    /// The reply.
    pub reply: Reply,
    /// Whether the answer said when to come back.
    pub retry_after: bool,
    /// When the answer was there, from the begin of the load.
    pub ended: Duration,
    /// From when it was due.
    pub latency: Duration,
    sale: usize,
    user_id: u64,
}

/// The connections and what has been used up.
pub(super) struct Generator {
    options: BurstOptions,
    shared: Arc<Shared>,
    links: Vec<Link>,
    asked: Vec<Vec<ObservedReply>>,
}

struct Shared {
    buyers: Arc<[Buyer]>,
    /// Vouchers, in the order in which they are used.
    sales: RwLock<Vec<u64>>,
    /// Attempts handed out: each is a buyer's only one in its sale.
    used: AtomicU64,
}

impl Shared {
    /// The next attempt, as index of its sale, voucher and index of its buyer.
    async fn next(&self) -> (usize, u64, usize) {
        let number = self.used.fetch_add(1, Ordering::Relaxed) as usize;
        let (sale, buyer) = (number / self.buyers.len(), number % self.buyers.len());
        loop {
            let known = self.sales().get(sale).copied();
            match known {
                Some(voucher) => return (sale, voucher, buyer),
                // Publishing is behind; latency goes on counting.
                None => sleep(Duration::from_millis(5)).await,
            }
        }
    }

    fn sales(&self) -> std::sync::RwLockReadGuard<'_, Vec<u64>> {
        self.sales.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generator {
    /// Opens the connections.
    pub async fn open(
        options: &BurstOptions,
        buyers: Arc<[Buyer]>,
        connections: usize,
    ) -> Result<Self, Error> {
        if buyers.is_empty() {
            return Err(Error::Usage("at least one buyer is needed".to_owned()));
        }
        let links = links::open(&options.targets, connections, options.timeout).await?;
        let shared = Shared { buyers, sales: RwLock::default(), used: AtomicU64::new(0) };
        Ok(Self { options: options.clone(), shared: shared.into(), links, asked: Vec::new() })
    }

    /// Buys on `connections` of them, each as soon as it has its last answer.
    pub async fn closed(
        &mut self,
        connections: usize,
        duration: Duration,
    ) -> Result<Vec<Attempt>, Error> {
        self.run(connections, None, duration).await
    }

    /// Buys `rate` times a second, on all of them.
    pub async fn open_loop(
        &mut self,
        rate: f64,
        duration: Duration,
    ) -> Result<Vec<Attempt>, Error> {
        self.run(self.links.len(), Some(rate), duration).await
    }

    async fn run(
        &mut self,
        connections: usize,
        rate: Option<f64>,
        duration: Duration,
    ) -> Result<Vec<Attempt>, Error> {
        self.publish().await?;
        let begin = Instant::now();
        let plan = Plan { begin, end: begin + duration, rate, made: Arc::default() };
        let mut working = JoinSet::new();
        for link in self.links.drain(..connections.min(self.links.len())).collect::<Vec<_>>() {
            working.spawn(work(link, self.shared.clone(), plan.clone()));
        }
        let mut attempts = Vec::new();
        loop {
            tokio::select! {
                joined = working.join_next() => {
                    let Some(joined) = joined else { break };
                    let (link, mut more) = joined?;
                    self.links.push(link);
                    attempts.append(&mut more);
                }
                () = sleep(Duration::from_millis(20)) => self.publish().await?,
            }
        }
        for attempt in &attempts {
            if self.asked.len() <= attempt.sale {
                self.asked.resize(attempt.sale + 1, Vec::new());
            }
            let reply = attempt.reply.clone();
            self.asked[attempt.sale].push(ObservedReply {
                user_id: attempt.user_id,
                attempt: 0,
                reply,
            });
        }
        Ok(attempts)
    }

    /// Has sales ready, each with enough for all.
    async fn publish(&self) -> Result<(), Error> {
        let used = self.shared.used.load(Ordering::Relaxed) as usize / self.shared.buyers.len();
        let (access, strategy) = (&self.options.access, &self.options.strategy);
        let stock = u32::try_from(self.shared.buyers.len()).unwrap_or(u32::MAX);
        while self.shared.sales().len() < used + AHEAD {
            let target = &self.options.targets[0];
            let voucher = publish::flash_sale(access, target, strategy, stock).await?;
            self.shared.sales.write().unwrap_or_else(PoisonError::into_inner).push(voucher);
        }
        Ok(())
    }

    /// The vouchers, and what was asked of each.
    pub fn end(self) -> (Vec<u64>, Vec<Vec<ObservedReply>>) {
        (self.shared.sales().clone(), self.asked)
    }
}

#[derive(Clone)]
struct Plan {
    begin: Instant,
    end: Instant,
    rate: Option<f64>,
    made: Arc<AtomicU64>,
}

impl Plan {
    /// When the next attempt is due; `None` when there is none any more.
    fn next(&self) -> Option<Instant> {
        let now = Instant::now();
        let due = match self.rate {
            Some(rate) => due(self.begin, self.made.fetch_add(1, Ordering::Relaxed), rate),
            None => now,
        };
        // What could not be sent in time is not sent afterwards.
        (due < self.end && now < self.end).then_some(due)
    }
}

async fn work(mut link: Link, shared: Arc<Shared>, plan: Plan) -> (Link, Vec<Attempt>) {
    let mut attempts = Vec::new();
    let mut call = Call::post("");
    while let Some(due) = plan.next() {
        if due > Instant::now() {
            sleep_until(TokioInstant::from_std(due)).await;
        }
        let (sale, voucher, buyer) = shared.next().await;
        let buyer = &shared.buyers[buyer];
        call.path = format!("/voucher-order/seckill/{voucher}");
        call.set_token(&buyer.token);
        let answer = link.connection.send(&call).await;
        let reply = Reply::of(&answer);
        let retry_after = answer.is_ok_and(|answer| answer.has_retry_after());
        let ended = Instant::now();
        attempts.push(Attempt {
            reply,
            retry_after,
            ended: ended.saturating_duration_since(plan.begin),
            latency: ended.saturating_duration_since(due),
            sale,
            user_id: buyer.user_id,
        });
    }
    (link, attempts)
}
