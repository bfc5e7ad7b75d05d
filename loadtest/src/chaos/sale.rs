//! A sale of a round: published, sold during the faults, checked, and sold out afterwards.
//!
//! It is checked twice. First when all servers are back: then a "sold out" that was replied while stock is left is
//! false. Then the rest is sold to buyers without an order and to new ones, and everything is checked again: what
//! cannot be bought is stranded.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use testkit::wait::poll;
use tokio::{task::JoinSet, time::Instant};

use super::{
    changes::{Answer, Attempt, Owner, TIMEOUT},
    test_cluster::TestCluster,
    verdict::{Circumstances, Outcome, SaleVerdict, unpaid},
};
use workload::{
    Error, Target,
    buyers::Buyer,
    driver::Connections,
    generator::{Purchases, Record},
    order_rows::Snapshot,
    pending::{self, PendingSale},
    publish,
    reply::Reply,
};

/// How long the tables must not change before the check.
const QUIET: Duration = Duration::from_millis(250);
/// How long they may take to.
const UNCHANGED_LIMIT: Duration = Duration::from_secs(15);
/// How long it may take until each order that was told by id is a row or a definite no, which nobody says before it is
/// certain.
const DECIDED_LIMIT: Duration = Duration::from_secs(45);
/// How long after the last fault the last order may take to expire: the limit, both ticks, and a fault's backlog.
const EXPIRY_LIMIT: Duration = Duration::from_secs(12);
/// How long the sale of the rest may sell nothing. A lock that was left behind has run out by then.
const REST: Duration = Duration::from_secs(15);
/// How long it may take to publish it, and the pause between two attempts.
const PUBLISH_LIMIT: Duration = Duration::from_secs(20);
const PUBLISH_PAUSE: Duration = Duration::from_millis(100);
/// A sale's connections to each instance.
const CONNECTIONS: usize = 24;

/// A sale of a round.
#[derive(Debug, Clone)]
pub struct Sale {
    pub strategy: String,
    pub voucher_id: u64,
    pub buyers: Arc<[Buyer]>,
    /// Every request and reply, those of the rest's buyers too.
    pub outcome: Outcome,
    /// What else was done to it.
    pub circumstances: Circumstances,
    /// How many were still left when all servers were back.
    pub rest: i64,
    /// The worse of the two verdicts.
    pub verdict: SaleVerdict,
}

/// Buyers who do something with their order; what came of it, the buyer, and the purchase's reply.
type Changing = JoinSet<(Vec<Answer>, u64, Reply)>;

impl Sale {
    /// Publishes it on an instance.
    pub async fn publish(
        cluster: &TestCluster,
        on: &Target,
        (strategy, stock): (&str, u32),
        circumstances: Circumstances,
        buyers: Arc<[Buyer]>,
    ) -> Result<Self> {
        let publishing = poll(PUBLISH_LIMIT, PUBLISH_PAUSE, async || {
            match publish::flash_sale(&cluster.access, on, strategy, stock).await {
                // A connection that a fault of the round before has broken costs one 503.
                Err(Error::Refused { status: 503, .. }) => Ok(None),
                published => published.map(Some),
            }
        });
        let voucher_id = publishing.await?;
        Ok(Self {
            strategy: strategy.to_owned(),
            voucher_id: voucher_id.context("an instance publishes no sale")?,
            buyers,
            outcome: Outcome::default(),
            circumstances: Circumstances { published: stock.into(), ..circumstances },
            rest: 0,
            verdict: SaleVerdict::default(),
        })
    }

    /// Makes `attempts`, each at its time after `begin`, and records every answer.
    ///
    /// # Errors
    /// Too few file descriptors; whatever the service does is a record.
    pub async fn buy(
        &mut self,
        cluster: &TestCluster,
        begin: Instant,
        attempts: Vec<Attempt>,
    ) -> Result<()> {
        let targets = cluster.targets.clone();
        let count = CONNECTIONS.min(attempts.len()) * targets.len();
        let mut connections = Connections::new(&targets, count, TIMEOUT)?;
        let changing: Arc<Mutex<Changing>> = Arc::default();
        let (buyers, all) = (self.buyers.clone(), changing.clone());
        let ended = move |attempt: &Attempt, record: &Record| {
            let order_id = match record.observed.reply {
                Reply::Ordered(id) | Reply::Pending(id) if !attempt.then.is_empty() => id,
                _ => return,
            };
            let (buyer, bought) = (buyers[attempt.buyer].clone(), begin + record.sent);
            let owner = Owner { targets: targets.clone(), buyer, order_id, bought };
            let (then, mut reply) = (attempt.then, record.observed.reply.clone());
            locked(&all).spawn(async move {
                if let Reply::Pending(_) = reply {
                    reply = owner.wait().await;
                }
                let ordered = matches!(reply, Reply::Ordered(_));
                let answers = if ordered { owner.ask(then).await } else { Vec::new() };
                (answers, owner.buyer.user_id, reply)
            });
        };
        let (voucher_id, buyers, begin) = (self.voucher_id, self.buyers.clone(), begin.into_std());
        let purchases = Purchases { voucher_id, buyers, attempts, begin, traced: false };
        let made = purchases.make(&mut connections, &Arc::default(), ended).await?;
        self.outcome.records.extend(made);
        let changing = std::mem::take(&mut *locked(&changing));
        for (answers, user_id, reply) in changing.join_all().await {
            self.outcome.changes.extend(answers);
            self.outcome.note(user_id, &reply);
        }
        Ok(())
    }

    /// Checks it once more: what was refused must not have happened later.
    pub async fn check_again(&mut self, cluster: &TestCluster) -> Result<()> {
        if self.verdict.is_clean() {
            self.verdict = self.judge(&cluster.order_rows.read(self.voucher_id).await?);
        }
        Ok(())
    }

    fn judge(&self, snapshot: &Snapshot) -> SaleVerdict {
        SaleVerdict::of(&self.outcome, snapshot, self.circumstances)
    }

    /// Waits until what is pending is decided and the tables no longer change, and checks; then sells the rest, and
    /// checks again.
    ///
    /// # Errors
    /// Those of the set-up. Violations are no error: see [`Sale::verdict`].
    pub async fn check(&mut self, cluster: &TestCluster) -> Result<()> {
        let snapshot = self.wait_until_stable(cluster).await?;
        let before = self.judge(&snapshot);
        self.rest = snapshot.sale.stock_left;
        let snapshot = self.sell_rest(cluster, snapshot).await?;
        self.verdict = self.judge(&snapshot);
        self.verdict.stranded = snapshot.sale.stock_left.max(0);
        if self.verdict.is_clean() && !before.is_clean() {
            self.verdict = before;
        }
        Ok(())
    }

    /// Waits until what is pending is decided and no unpaid order is left; notes how many are, at the limit.
    pub async fn wait_until_expired(&mut self, cluster: &TestCluster) -> Result<()> {
        self.wait_until_decided(cluster).await?;
        let expired = poll(EXPIRY_LIMIT, QUIET, async || {
            let snapshot = cluster.order_rows.read(self.voucher_id).await?;
            self.circumstances.unexpired = unpaid(&snapshot.rows).count();
            anyhow::Ok((self.circumstances.unexpired == 0).then_some(()))
        });
        expired.await.map(drop)
    }

    /// Waits until every order that was told by id is a row or a definite no.
    async fn wait_until_decided(&mut self, cluster: &TestCluster) -> Result<()> {
        let scene = PendingSale {
            access: &cluster.access,
            targets: &cluster.targets,
            buyers: &self.buyers,
            voucher_id: self.voucher_id,
            limit: DECIDED_LIMIT,
        };
        // What was told by id otherwise may be pending as well.
        let mut told = self.outcome.records.clone();
        for reply in told.iter_mut().map(|record| &mut record.observed.reply) {
            if let Reply::AlreadyOrdered(Some(id)) | Reply::Unknown { id: Some(id), .. } = *reply {
                *reply = Reply::Pending(id);
            }
        }
        pending::wait(scene, &cluster.order_rows, &mut told).await?;
        for (at, told) in told.into_iter().enumerate() {
            self.outcome.note(told.observed.user_id, &told.observed.reply);
            let reply = &mut self.outcome.records[at].observed.reply;
            if let Reply::Pending(_) = reply {
                *reply = told.observed.reply;
            }
        }
        Ok(())
    }

    async fn wait_until_stable(&mut self, cluster: &TestCluster) -> Result<Snapshot> {
        self.wait_until_decided(cluster).await?;
        let (rows, sale) = (&cluster.order_rows, self.voucher_id..=self.voucher_id);
        let waiting = rows.wait_until_unchanged(sale, 0, QUIET, UNCHANGED_LIMIT);
        let (mut sales, still) = waiting.await?;
        ensure!(still, "the tables still change {UNCHANGED_LIMIT:?} after the sale");
        Ok(sales.swap_remove(0))
    }

    /// Sells what is left, to buyers without an order and to new buyers, until nothing is or nobody can buy any more: a busy
    /// machine sells slowly, and what is slow is not stranded.
    async fn sell_rest(
        &mut self,
        cluster: &TestCluster,
        mut snapshot: Snapshot,
    ) -> Result<Snapshot> {
        let mut sold = Instant::now();
        let mut attempt = 3;
        while snapshot.sale.stock_left > 0 && sold.elapsed() < REST {
            let before = snapshot.sale.stock_left;
            let have: HashSet<u64> = snapshot.rows.iter().map(|row| row.user_id).collect();
            let left = usize::try_from(before).unwrap_or(0);
            let buyers = self.buyers.iter().enumerate();
            let attempts = buyers
                .filter(|(_, buyer)| !have.contains(&buyer.user_id))
                // Some may have to wait for a lock that a killed instance left behind: others buy instead.
                .take(left + left / 4 + 8)
                .map(|(buyer, _)| Attempt { buyer, attempt, due: None, then: &[] })
                .collect();
            self.buy(cluster, Instant::now(), attempts).await?;
            attempt += 1;
            snapshot = self.wait_until_stable(cluster).await?;
            if snapshot.sale.stock_left < before {
                sold = Instant::now();
            }
        }
        Ok(snapshot)
    }
}

fn locked(changing: &Mutex<Changing>) -> MutexGuard<'_, Changing> {
    changing.lock().unwrap_or_else(PoisonError::into_inner)
}
