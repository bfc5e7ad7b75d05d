//! A sale of a round: published, sold during the faults, checked, and sold out afterwards.
//!
//! It is checked twice. First when all servers are back: then a "sold out" that was replied while stock is left is
//! false. Then the rest is sold to buyers without an order and to new ones, and everything is checked again: what
//! cannot be bought is stranded.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use serde::Serialize;
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

/// Time limit of one attempt.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long the tables must not change before the check.
const QUIET: Duration = Duration::from_millis(250);
/// How long they may take to.
const UNCHANGED_LIMIT: Duration = Duration::from_secs(15);
/// How long it may take until each order that was told by id is a row or a definite no, which nobody says before it is
/// certain.
const DECIDED_LIMIT: Duration = Duration::from_secs(45);
/// How long the sale of the rest may sell nothing. A lock that was left behind has run out by then.
const REST: Duration = Duration::from_secs(15);
/// Attempts to publish it, and the pause between them.
const PUBLISH_ATTEMPTS: u32 = 50;
const PUBLISH_PAUSE: Duration = Duration::from_millis(100);
/// Connections to each instance, those of all sales together.
const CONNECTIONS: usize = 48;

/// A sale that is published.
#[derive(Debug, Clone)]
pub struct Sale {
    /// Its strategy.
    pub strategy: String,
    /// What was published.
    pub stock: u32,
    /// Its buyers and their targets.
    pub workload: Workload,
}

/// A sale that was checked.
#[derive(Debug, Clone, Serialize)]
pub struct SaleResult {
    /// Its strategy.
    pub strategy: String,
    /// Its voucher.
    pub voucher_id: u64,
    /// How many were published.
    pub stock: u32,
    /// Attempts by the reply they got, those of the rest's buyers too.
    pub replies: BTreeMap<String, u64>,
    /// Orders that their buyers paid or cancelled, or wanted to.
    pub changed: usize,
    /// How many were still left when all servers were back.
    pub rest: i64,
    /// Orders whose look-up said a definite no, after which there must be no row.
    pub noes: usize,
    /// The worse of the two verdicts.
    pub verdict: SaleVerdict,
    /// What belongs to the sale besides its buyers' requests, for checking again.
    #[serde(skip)]
    pub circumstances: Circumstances,
    /// Every request and reply, for checking again.
    #[serde(skip)]
    pub outcome: Outcome,
}

impl SaleResult {
    /// Checks it once more: what was refused must not have happened later.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn check_again(&mut self, order_rows: &OrderRows) -> Result<(), Error> {
        if self.verdict.is_clean() {
            let snapshot = order_rows.read(self.voucher_id).await?;
            self.verdict = SaleVerdict::of(&self.outcome, &snapshot, self.circumstances);
        }
        Ok(())
    }
}

impl Sale {
    /// Publishes it. It is one of `of` sales at once.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Unreachable`].
    pub async fn publish(
        cluster: &TestCluster,
        number: usize,
        of: usize,
        (strategy, stock): (&str, u32),
        buyers: Arc<[Buyer]>,
    ) -> Result<Self, Error> {
        let target = &cluster.targets[number % cluster.targets.len()];
        let mut attempt = 0;
        let voucher_id = loop {
            attempt += 1;
            match publish::flash_sale(&cluster.access, target, strategy, stock).await {
                Ok(voucher_id) => break voucher_id,
                // A connection that a fault of the round before has broken costs one 503.
                Err(Error::Refused { status: 503, .. }) if attempt < PUBLISH_ATTEMPTS => {
                    sleep(PUBLISH_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        };
        let workload = Workload {
            targets: cluster.targets.clone(),
            voucher_id,
            buyers,
            timeout: TIMEOUT,
            connections: CONNECTIONS / of.max(1),
        };
        Ok(Self { strategy: strategy.to_owned(), stock, workload })
    }

    /// Waits until what is pending is decided and the tables no longer change, and checks; then sells the rest, and
    /// checks again.
    ///
    /// # Errors
    /// An [`Error`] of the set-up. Violations are no error: see [`SaleResult::verdict`].
    pub async fn check(
        self,
        cluster: &TestCluster,
        order_rows: &OrderRows,
        mut outcome: Outcome,
        circumstances: Circumstances,
    ) -> Result<SaleResult, Error> {
        let snapshot = self.wait_until_stable(cluster, order_rows, &mut outcome).await?;
        let before = SaleVerdict::of(&outcome, &snapshot, circumstances);
        let rest = snapshot.sale.stock_left;
        let snapshot = self.sell_rest(cluster, order_rows, &mut outcome, snapshot).await?;
        let mut verdict = SaleVerdict::of(&outcome, &snapshot, circumstances);
        verdict.unsold = snapshot.sale.stock_left.max(0);
        if verdict.is_clean() && !before.is_clean() {
            verdict = before;
        }
        let mut replies = BTreeMap::new();
        for record in &outcome.records {
            *replies.entry(record.observed.reply.label().to_owned()).or_default() += 1;
        }
        Ok(SaleResult {
            strategy: self.strategy,
            voucher_id: self.workload.voucher_id,
            stock: self.stock,
            replies,
            changed: outcome.changes.len(),
            rest,
            noes: outcome.noes.len(),
            verdict,
            circumstances,
            outcome,
        })
    }

    /// Waits until what is pending is decided and no unpaid order is left; returns how many are, at the limit.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub async fn wait_until_expired(
        &self,
        cluster: &TestCluster,
        order_rows: &OrderRows,
        outcome: &mut Outcome,
        limit: Duration,
    ) -> Result<usize, Error> {
        self.wait_until_decided(cluster, order_rows, outcome).await?;
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
        &self,
        cluster: &TestCluster,
        order_rows: &OrderRows,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        let scene = PendingSale {
            access: &cluster.access,
            targets: &cluster.targets,
            buyers: &self.workload.buyers,
            voucher_id: self.workload.voucher_id,
            limit: DECIDED_LIMIT,
        };
        pending::wait(scene, order_rows, &mut outcome.records).await?;
        // What was told by id otherwise may be pending as well.
        let mut told = outcome.records.clone();
        for ObservedReply { reply, .. } in told.iter_mut().map(|record| &mut record.observed) {
            if let Reply::AlreadyOrdered(Some(id)) | Reply::Unknown { id: Some(id), .. } = *reply {
                *reply = Reply::Pending(id);
            }
        }
        pending::wait(scene, order_rows, &mut told).await?;
        for ObservedReply { user_id, reply, .. } in told.iter().map(|record| &record.observed) {
            outcome.note(*user_id, reply);
        }
        Ok(())
    }

    async fn wait_until_stable(
        &self,
        cluster: &TestCluster,
        order_rows: &OrderRows,
        outcome: &mut Outcome,
    ) -> Result<Snapshot, Error> {
        self.wait_until_decided(cluster, order_rows, outcome).await?;
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
        &self,
        cluster: &TestCluster,
        order_rows: &OrderRows,
        outcome: &mut Outcome,
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
                .map(|(buyer, _)| self.workload.attempt_now(buyer, number))
                .collect();
            let bought = buyers::run(&self.workload, Instant::now(), &attempts).await?;
            outcome.extend(bought);
            number += 1;
            snapshot = self.wait_until_stable(cluster, order_rows, outcome).await?;
            if snapshot.sale.stock_left < before {
                sold = Instant::now();
            }
        }
        Ok(snapshot)
    }
}
