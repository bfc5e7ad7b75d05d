//! Purchases without end: many connections, each buyer once in each sale, sales published ahead.

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

use super::{BurstOptions, Buyers};
use crate::reads::pace::due;
use workload::{
    Error,
    checker::Asked,
    http::{Call, Connection},
    publish,
    reply::Reply,
};

/// Sales that are ready before they are needed.
const AHEAD: usize = 8;
/// Connections being opened at once, so that no listener's backlog overflows.
const OPENING: usize = 128;

/// One finished attempt.
#[derive(Debug)]
pub(super) struct Shot {
    /// What it was told.
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
pub(super) struct Pump {
    options: BurstOptions,
    shared: Arc<Shared>,
    links: Vec<Connection>,
    asked: Vec<Vec<Asked>>,
}

struct Shared {
    buyers: Buyers,
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

impl Pump {
    /// Opens the connections.
    pub async fn open(
        options: &BurstOptions,
        buyers: Buyers,
        connections: usize,
    ) -> Result<Self, Error> {
        if buyers.is_empty() || options.targets.is_empty() {
            return Err(Error::Usage("at least one buyer and one target are needed".to_owned()));
        }
        let targets = options.targets.iter().cycle().take(connections);
        let mut waiting: Vec<_> =
            targets.map(|target| Connection::new(target.clone(), options.timeout)).collect();
        let mut links = Vec::with_capacity(connections);
        while !waiting.is_empty() {
            let mut opening = JoinSet::new();
            for mut link in waiting.drain(waiting.len().saturating_sub(OPENING)..) {
                opening.spawn(async move {
                    let opened = link.open().await;
                    (link, opened)
                });
            }
            while let Some(joined) = opening.join_next().await {
                let (link, opened) = joined?;
                opened.map_err(|error| Error::Unreachable {
                    url: options.targets[0].to_string(),
                    what: "a connection",
                    reason: error.to_string(),
                })?;
                links.push(link);
            }
        }
        let shared = Shared { buyers, sales: RwLock::default(), used: AtomicU64::new(0) };
        Ok(Self { options: options.clone(), shared: shared.into(), links, asked: Vec::new() })
    }

    /// Buys on `connections` of them, each as soon as it has its last answer.
    pub async fn closed(
        &mut self,
        connections: usize,
        duration: Duration,
    ) -> Result<Vec<Shot>, Error> {
        self.pump(connections, None, duration).await
    }

    /// Buys `rate` times a second, on all of them.
    pub async fn open_loop(&mut self, rate: f64, duration: Duration) -> Result<Vec<Shot>, Error> {
        self.pump(self.links.len(), Some(rate), duration).await
    }

    async fn pump(
        &mut self,
        connections: usize,
        rate: Option<f64>,
        duration: Duration,
    ) -> Result<Vec<Shot>, Error> {
        self.publish().await?;
        let begin = Instant::now();
        let plan = Plan { begin, end: begin + duration, rate, made: Arc::default() };
        let mut working = JoinSet::new();
        for link in self.links.drain(..connections.min(self.links.len())).collect::<Vec<_>>() {
            working.spawn(work(link, self.shared.clone(), plan.clone()));
        }
        let mut shots = Vec::new();
        loop {
            tokio::select! {
                joined = working.join_next() => {
                    let Some(joined) = joined else { break };
                    let (link, mut more) = joined?;
                    self.links.push(link);
                    shots.append(&mut more);
                }
                () = sleep(Duration::from_millis(20)) => self.publish().await?,
            }
        }
        for shot in &shots {
            if self.asked.len() <= shot.sale {
                self.asked.resize(shot.sale + 1, Vec::new());
            }
            let reply = shot.reply.clone();
            self.asked[shot.sale].push(Asked { user_id: shot.user_id, attempt: 0, reply });
        }
        Ok(shots)
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
    pub fn end(self) -> (Vec<u64>, Vec<Vec<Asked>>) {
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

async fn work(mut link: Connection, shared: Arc<Shared>, plan: Plan) -> (Connection, Vec<Shot>) {
    let mut shots = Vec::new();
    let mut call = Call::post("");
    while let Some(due) = plan.next() {
        if due > Instant::now() {
            sleep_until(TokioInstant::from_std(due)).await;
        }
        let (sale, voucher, buyer) = shared.next().await;
        let buyer = &shared.buyers[buyer];
        call.path = format!("/voucher-order/seckill/{voucher}");
        call.set_token(&buyer.token);
        let answer = link.send(&call).await;
        let reply = Reply::of(&answer);
        let retry_after = answer.is_ok_and(|answer| answer.has_retry_after());
        let ended = Instant::now();
        shots.push(Shot {
            reply,
            retry_after,
            ended: ended.saturating_duration_since(plan.begin),
            latency: ended.saturating_duration_since(due),
            sale,
            user_id: buyer.user_id,
        });
    }
    (link, shots)
}
