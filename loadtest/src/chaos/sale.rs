//! A sale of a round: published, sold during the faults, checked, and sold out afterwards.
//!
//! It is checked twice. First when all servers are back: then a "sold out" that was replied while stock is left is
//! false. Then the rest is sold to buyers without an order and to new ones, and everything is checked again: what
//! cannot be bought is stranded.

use std::{
    collections::HashSet,
    sync::{Arc, mpsc},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use chrono::Utc;
use testkit::wait::poll;
use tokio::time::Instant;

use super::{
    changes::{Answer, Attempt, Owner, TIMEOUT, What},
    test_cluster::TestCluster,
    verdict::{Outcome, SaleVerdict, unpaid},
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
/// How long it may take until the tables no longer change.
const UNCHANGED_LIMIT: Duration = Duration::from_secs(15);
/// How long it may take until each order whose id was told is a row or a definite no. The service says no only when that is
/// certain, which takes a while.
const DECIDED_LIMIT: Duration = Duration::from_secs(45);
/// How long after the last fault the last order may take to expire: the limit, both ticks, and a fault's backlog.
const EXPIRY_LIMIT: Duration = Duration::from_secs(12);
/// How long the sale of the rest may sell nothing. A lock that was left behind has run out by then.
const REST: Duration = Duration::from_secs(15);
/// How long it may take to publish a sale.
const PUBLISH_LIMIT: Duration = Duration::from_secs(20);
/// The pause between two attempts to publish it.
const PUBLISH_PAUSE: Duration = Duration::from_millis(100);
/// A sale's connections to each instance.
const CONNECTIONS: usize = 32;

/// A sale of a round.
#[derive(Debug, Clone)]
pub struct Sale<'a> {
    cluster: &'a TestCluster,
    pub strategy: &'static str,
    pub voucher_id: u64,
    pub buyers: Arc<[Buyer]>,
    /// What was done to it, also by those who bought the rest.
    pub outcome: Outcome,
    /// The first verdict that is not clean, or else the last.
    pub verdict: SaleVerdict,
}

impl<'a> Sale<'a> {
    /// Publishes a sale on an instance. `outcome` is what is known beforehand of its outcome.
    pub async fn publish(
        cluster: &'a TestCluster,
        target: &Target,
        (strategy, stock): (&'static str, u32),
        outcome: Outcome,
        buyers: Arc<[Buyer]>,
    ) -> Result<Self> {
        let publishing = poll(PUBLISH_LIMIT, PUBLISH_PAUSE, async || {
            match publish::flash_sale(&cluster.access, target, strategy, stock).await {
                // A connection that a fault of the round before has broken costs one 503.
                Err(Error::Refused { status: 503, .. }) => Ok(None),
                published => published.map(Some),
            }
        });
        let voucher_id = publishing.await?;
        Ok(Self {
            cluster,
            strategy,
            voucher_id: voucher_id.context("an instance publishes no sale")?,
            buyers,
            outcome: Outcome {
                published: stock.into(),
                ..outcome
            },
            verdict: SaleVerdict::default(),
        })
    }

    /// Makes `attempts`, each at its time after `begin`, and records every answer.
    ///
    /// # Errors
    /// Too few file descriptors; whatever the service does is a record.
    pub async fn buy(&mut self, begin: Instant, attempts: Vec<Attempt>) -> Result<()> {
        let targets = self.cluster.targets.clone();
        let count = CONNECTIONS.min(attempts.len()) * targets.len();
        let mut connections = Connections::new(&targets, count, TIMEOUT)?;
        let (changing, changes) = mpsc::channel();
        let buyers = self.buyers.clone();
        let ended = move |attempt: &Attempt, record: &Record| {
            let order_id = match record.observed.reply {
                Reply::Ordered(id) | Reply::Pending(id) if !attempt.then.is_empty() => id,
                // The order is looked up at once, while the call that makes it may still be on its way.
                Reply::Unknown { id: Some(id), .. } => id,
                _ => return,
            };
            let owner = Owner {
                targets: targets.clone(),
                buyer: buyers[attempt.buyer].clone(),
                order_id,
                bought: begin + record.sent,
            };
            let reply = record.observed.reply.clone();
            let change = tokio::spawn(change_order(owner, reply, attempt.then));
            // The receiver is below; it is gone only if this function was dropped.
            changing.send(change).ok();
        };
        let purchases = Purchases {
            voucher_id: self.voucher_id,
            other_voucher_id: None,
            buyers: self.buyers.clone(),
            attempts,
            begin: begin.into_std(),
            traced: false,
        };
        let made = purchases
            .make(&mut connections, &Arc::default(), ended)
            .await?;
        self.outcome.records.extend(made);
        for change in changes.try_iter() {
            let (answers, user_id, reply) = change.await?;
            self.outcome.changes.extend(answers);
            if let Reply::Withdrawn { id, .. } = reply {
                self.outcome.noes.insert((user_id, id));
            }
        }
        Ok(())
    }

    /// Checks the sale once more: what was refused must not have happened later.
    pub async fn check_again(&mut self) -> Result<()> {
        let snapshot = self.cluster.order_rows.read(self.voucher_id).await?;
        self.judge(&snapshot);
        Ok(())
    }

    fn judge(&mut self, snapshot: &Snapshot) {
        if self.verdict.is_clean() {
            self.verdict = SaleVerdict::judge(&self.outcome, snapshot);
        }
    }

    /// Waits until pending orders are decided and the tables no longer change, and checks; then sells the rest, and
    /// checks again.
    ///
    /// # Errors
    /// Those of the set-up. Violations are no error: see [`Sale::verdict`].
    pub async fn check(&mut self) -> Result<()> {
        let snapshot = self.wait_until_stable().await?;
        self.judge(&snapshot);
        let snapshot = self.sell_rest(snapshot).await?;
        self.judge(&snapshot);
        self.verdict.stranded = snapshot.sale.stock_left.max(0);
        Ok(())
    }

    /// Waits until pending orders are decided and every unpaid order whose time has come has expired. Notes how many have not
    /// at the limit. An order that a clock has dated in the future is not waited for: its time has not come.
    pub async fn wait_until_expired(&mut self) -> Result<()> {
        self.wait_until_decided().await?;
        let expired = poll(EXPIRY_LIMIT, QUIET, async || {
            let snapshot = self.cluster.order_rows.read(self.voucher_id).await?;
            let now = Utc::now().with_timezone(&self.cluster.access.time_zone);
            let overdue =
                unpaid(&snapshot.rows).filter(|row| row.local_time() <= now.naive_local());
            self.outcome.unexpired = overdue.count() as i64;
            anyhow::Ok((self.outcome.unexpired == 0).then_some(()))
        });
        expired.await.map(drop)
    }

    /// Waits until every order whose id was told is a row or a definite no.
    pub async fn wait_until_decided(&mut self) -> Result<()> {
        let pending_sale = PendingSale {
            access: &self.cluster.access,
            targets: &self.cluster.targets,
            buyers: &self.buyers,
            voucher_id: self.voucher_id,
            limit: DECIDED_LIMIT + self.outcome.ids_ahead,
        };
        // An order whose id came with another reply may be pending as well.
        let mut look_ups = self.outcome.records.clone();
        for look_up in &mut look_ups {
            let reply = &mut look_up.observed.reply;
            if let Reply::AlreadyOrdered(Some(id)) | Reply::Unknown { id: Some(id), .. } = *reply {
                *reply = Reply::Pending(id);
            }
        }
        pending::wait(pending_sale, &self.cluster.order_rows, &mut look_ups).await?;
        let Outcome { records, noes, .. } = &mut self.outcome;
        for (record, look_up) in records.iter_mut().zip(look_ups) {
            let looked_up = look_up.observed;
            if let Reply::Withdrawn { id, .. } = looked_up.reply {
                noes.insert((looked_up.user_id, id));
            }
            if let Reply::Pending(_) = record.observed.reply {
                record.observed.reply = looked_up.reply;
            }
        }
        Ok(())
    }

    async fn wait_until_stable(&mut self) -> Result<Snapshot> {
        self.wait_until_decided().await?;
        let rows = &self.cluster.order_rows;
        let sale = self.voucher_id..=self.voucher_id;
        let waiting = rows.wait_until_unchanged(sale, 0, QUIET, UNCHANGED_LIMIT);
        let (mut sales, are_unchanged) = waiting.await?;
        ensure!(
            are_unchanged,
            "the tables still change {UNCHANGED_LIMIT:?} after the sale"
        );
        Ok(sales.swap_remove(0))
    }

    /// Sells what is left to buyers without an order and to new buyers, until nothing is left, or nothing was sold for
    /// [`REST`]. There is no limit for the whole: on a busy machine a sale is slow, and vouchers are not stranded for that.
    async fn sell_rest(&mut self, mut snapshot: Snapshot) -> Result<Snapshot> {
        let mut sold = Instant::now();
        let mut attempt = 3;
        while snapshot.sale.stock_left > 0 && sold.elapsed() < REST {
            let stock_before = snapshot.sale.stock_left;
            let owners: HashSet<u64> = snapshot.rows.iter().map(|row| row.user_id).collect();
            let count = usize::try_from(stock_before).unwrap_or(0);
            let buyers = self.buyers.iter().enumerate();
            let attempts = buyers
                .filter(|(_, buyer)| !owners.contains(&buyer.user_id))
                // More buyers than vouchers: some may have to wait for a lock that a killed instance left behind.
                .take(count + count / 4 + 8)
                .map(|(buyer, _)| Attempt {
                    buyer,
                    attempt,
                    due: None,
                    then: &[],
                })
                .collect();
            self.buy(Instant::now(), attempts).await?;
            attempt += 1;
            snapshot = self.wait_until_stable().await?;
            if snapshot.sale.stock_left < stock_before {
                sold = Instant::now();
            }
        }
        Ok(snapshot)
    }
}

/// Sends what the owner of an order asks for, once the order exists; returns the answers, the owner's user id, and the last
/// reply about the order.
async fn change_order(
    owner: Owner,
    mut reply: Reply,
    then: &'static [What],
) -> (Vec<Answer>, u64, Reply) {
    if !matches!(reply, Reply::Ordered(_)) {
        reply = owner.wait().await;
    }
    let answers = if matches!(reply, Reply::Ordered(_)) {
        owner.ask(then).await
    } else {
        Vec::new()
    };
    (answers, owner.buyer.user_id, reply)
}
