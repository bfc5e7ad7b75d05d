//! A sale of a round: published, sold during the faults, checked, and sold out afterwards.
//!
//! It is checked twice. First when all servers are back: then a "sold out" that was replied while stock is left is
//! false. Then the rest is sold to buyers without an order and to new ones, and everything is checked again: what
//! cannot be bought is stranded.

use std::{collections::HashSet, sync::Arc, time::Duration};

use testkit::wait::poll;
use tokio::time::{Instant, sleep};

use super::{
    buyers::{self, Attempt, Outcome, Workload},
    test_cluster::TestCluster,
    verdict::{Circumstances, SaleVerdict, unpaid},
};
use workload::{
    Error,
    buyers::Buyer,
    checker::ObservedReply,
    order_rows::{OrderRows, Snapshot},
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
/// How long the sale of the rest may sell nothing. A lock that was left behind has run out by then.
const REST: Duration = Duration::from_secs(15);
/// How long it may take to publish it, and the pause between two attempts.
const PUBLISH_LIMIT: Duration = Duration::from_secs(20);
const PUBLISH_PAUSE: Duration = Duration::from_millis(100);
/// Connections to each instance, those of all sales together.
const CONNECTIONS: usize = 48;

/// A sale of a round.
#[derive(Debug, Clone)]
pub struct Sale {
    pub strategy: String,
    /// What was published.
    pub stock: u32,
    /// Its buyers and their targets.
    pub workload: Workload,
    /// Every request and reply, those of the rest's buyers too.
    pub outcome: Outcome,
    /// What else was done to it.
    pub circumstances: Circumstances,
    /// How many were still left when all servers were back.
    pub rest: i64,
    /// The worse of the two verdicts.
    pub verdict: SaleVerdict,
}

impl Sale {
    /// Publishes it. It is one of `of` sales at once.
    pub async fn publish(
        cluster: &TestCluster,
        number: usize,
        of: usize,
        (strategy, stock): (&str, u32),
        buyers: Arc<[Buyer]>,
    ) -> Result<Self, Error> {
        let target = &cluster.targets[number % cluster.targets.len()];
        let publishing = poll(PUBLISH_LIMIT, PUBLISH_PAUSE, async || {
            match publish::flash_sale(&cluster.access, target, strategy, stock).await {
                // A connection that a fault of the round before has broken costs one 503.
                Err(Error::Refused { status: 503, .. }) => Ok(None),
                published => published.map(Some),
            }
        });
        let late = || Error::server("seckill", format!("no sale within {PUBLISH_LIMIT:?}"));
        let voucher_id = publishing.await?.ok_or_else(late)?;
        let workload = Workload {
            targets: cluster.targets.clone(),
            voucher_id,
            buyers,
            connections: CONNECTIONS / of.max(1),
        };
        Ok(Self {
            strategy: strategy.to_owned(),
            stock,
            workload,
            outcome: Outcome::default(),
            circumstances: Circumstances::default(),
            rest: 0,
            verdict: SaleVerdict::default(),
        })
    }

    /// Makes these attempts, each at its time after `begin`.
    pub async fn buy(&mut self, begin: Instant, attempts: &[Attempt]) -> Result<(), Error> {
        self.outcome.extend(buyers::run(&self.workload, begin, attempts).await?);
        Ok(())
    }

    /// Checks it once more: what was refused must not have happened later.
    pub async fn check_again(&mut self, order_rows: &OrderRows) -> Result<(), Error> {
        if self.verdict.is_clean() {
            let snapshot = order_rows.read(self.workload.voucher_id).await?;
            self.verdict = self.judge(&snapshot);
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
    /// An [`Error`] of the set-up. Violations are no error: see [`Sale::verdict`].
    pub async fn check(
        &mut self,
        cluster: &TestCluster,
        order_rows: &OrderRows,
    ) -> Result<(), Error> {
        let snapshot = self.wait_until_stable(cluster, order_rows).await?;
        let before = self.judge(&snapshot);
        self.rest = snapshot.sale.stock_left;
        let snapshot = self.sell_rest(cluster, order_rows, snapshot).await?;
        self.verdict = self.judge(&snapshot);
        self.verdict.unsold = snapshot.sale.stock_left.max(0);
        if self.verdict.is_clean() && !before.is_clean() {
            self.verdict = before;
        }
        Ok(())
    }

    /// Waits until what is pending is decided and no unpaid order is left; returns how many are, at the limit.
    pub async fn wait_until_expired(
        &mut self,
        cluster: &TestCluster,
        order_rows: &OrderRows,
        limit: Duration,
    ) -> Result<usize, Error> {
        self.wait_until_decided(cluster, order_rows).await?;
        let begin = Instant::now();
        loop {
            let left = unpaid(&order_rows.read(self.workload.voucher_id).await?.rows);
            if left == 0 || begin.elapsed() >= limit {
                return Ok(left);
            }
            sleep(QUIET).await;
        }
    }

    /// Waits until every order that was told by id is a row or a definite no.
    async fn wait_until_decided(
        &mut self,
        cluster: &TestCluster,
        order_rows: &OrderRows,
    ) -> Result<(), Error> {
        let scene = PendingSale {
            access: &cluster.access,
            targets: &cluster.targets,
            buyers: &self.workload.buyers,
            voucher_id: self.workload.voucher_id,
            limit: DECIDED_LIMIT,
        };
        // What was told by id otherwise may be pending as well.
        let mut told = self.outcome.records.clone();
        for ObservedReply { reply, .. } in told.iter_mut().map(|record| &mut record.observed) {
            if let Reply::AlreadyOrdered(Some(id)) | Reply::Unknown { id: Some(id), .. } = *reply {
                *reply = Reply::Pending(id);
            }
        }
        pending::wait(scene, order_rows, &mut told).await?;
        for (record, told) in self.outcome.records.iter_mut().zip(told) {
            let ObservedReply { user_id, reply, .. } = told.observed;
            if let Reply::Withdrawn { id, .. } = &reply {
                self.outcome.noes.insert((user_id, *id));
            }
            if let Reply::Pending(_) = record.observed.reply {
                record.observed.reply = reply;
            }
        }
        Ok(())
    }

    async fn wait_until_stable(
        &mut self,
        cluster: &TestCluster,
        order_rows: &OrderRows,
    ) -> Result<Snapshot, Error> {
        self.wait_until_decided(cluster, order_rows).await?;
        let id = self.workload.voucher_id;
        let (snapshot, still) = order_rows.wait_until_unchanged(id, QUIET, UNCHANGED_LIMIT).await?;
        if still {
            return Ok(snapshot);
        }
        let reason = format!("still change {UNCHANGED_LIMIT:?} after the sale");
        Err(Error::server("the tables", reason))
    }

    /// Sells what is left, to buyers without an order and to new buyers, until nothing is or nobody can buy any more: a busy
    /// machine sells slowly, and what is slow is not stranded.
    async fn sell_rest(
        &mut self,
        cluster: &TestCluster,
        order_rows: &OrderRows,
        mut snapshot: Snapshot,
    ) -> Result<Snapshot, Error> {
        let mut sold = Instant::now();
        let mut number = 3;
        while snapshot.sale.stock_left > 0 && sold.elapsed() < REST {
            let before = snapshot.sale.stock_left;
            let have: HashSet<u64> = snapshot.rows.iter().map(|row| row.user_id).collect();
            let left = usize::try_from(snapshot.sale.stock_left).unwrap_or(0);
            let without = |(_, buyer): &(usize, &Buyer)| !have.contains(&buyer.user_id);
            let attempts: Vec<Attempt> = self
                .workload
                .buyers
                .iter()
                .enumerate()
                .filter(without)
                // Some may have to wait for a lock that a killed instance left behind: others buy instead.
                .take(left + left / 4 + 8)
                .map(|(buyer, _)| buyers::attempt_now(buyer, number))
                .collect();
            self.buy(Instant::now(), &attempts).await?;
            number += 1;
            snapshot = self.wait_until_stable(cluster, order_rows).await?;
            if snapshot.sale.stock_left < before {
                sold = Instant::now();
            }
        }
        Ok(snapshot)
    }
}
