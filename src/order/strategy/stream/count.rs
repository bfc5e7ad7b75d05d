//! Counts a sale: sets its stock counter and its claims to what the database and the stream say, under a mark.
//!
//! A sale whose counter or claims are not of this mark is closed first, and its claims are read page by page. The count
//! itself is of one moment: while the sale's row is locked, no node commits, cancels or adds anything, not even a Java node.
//! The counter is the stock less the entries that have no order. A sale that is open is only counted, and stays open: buyers
//! who are admitted meanwhile have newer entries, and the last script counts those.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use redis::AsyncCommands;
use tokio::time::Instant;

use super::Member;
use super::replies::{Ask, Entry, Mark};
use crate::error::{Cause, Error};
use crate::keys::KEPT_SECONDS;
use crate::order::model::NewOrder;
use crate::order::store::count::OpenSale;
use crate::scripts;

/// Users in one script.
const CLAIMS: u32 = 5000;

/// How long after it was sent a call may write what was read before.
const RUNS_WITHIN: Duration = Duration::from_secs(1);

/// The entries of the stream that were not resolved when they were looked at, by sale.
pub(super) struct Pass {
    mark: Mark,
    last: String,
    pub(super) sales: HashMap<i64, Vec<(Entry, NewOrder)>>,
}

impl Member {
    /// Reads all entries, from the first.
    pub(super) async fn pass(&self, mark: Mark) -> Result<Pass, Error> {
        let mut pass = Pass {
            mark,
            last: String::new(),
            sales: HashMap::new(),
        };
        self.extend(&mut pass).await?;
        Ok(pass)
    }

    /// Reads the entries that were added since.
    async fn extend(&self, pass: &mut Pass) -> Result<(), Error> {
        loop {
            let view = self.view(Ask::Page(&pass.last)).await?;
            if view.mark != pass.mark {
                return Err(Error::Unavailable(Cause::Redis));
            }
            if pass.last.is_empty() {
                pass.last.clone_from(&pass.mark.join);
            }
            if let Some(last) = view.entries.last().filter(|_| view.has_more) {
                pass.last.clone_from(&last.id);
            }
            for entry in view.entries {
                if let Some(order) = entry.order() {
                    pass.sales
                        .entry(order.buyer.voucher_id)
                        .or_default()
                        .push((entry, order));
                }
            }
            if !view.has_more {
                return Ok(());
            }
        }
    }

    pub(super) async fn count_in_turn(
        self: Arc<Self>,
        sale: OpenSale,
        is_open: bool,
        doubtful_users: HashSet<i64>,
        pass: Arc<tokio::sync::Mutex<Pass>>,
    ) {
        let count = async {
            let counted = match self.require_unlocked(sale.voucher_id).await {
                Ok(()) => self.open(&sale, is_open, &doubtful_users, &pass).await,
                Err(error) => Err(error),
            };
            if counted.is_err() {
                self.recounts
                    .put_back([(sale.voucher_id, doubtful_users.clone())]);
            }
            counted
        };
        self.in_turn(sale.voucher_id, count).await;
    }

    /// Does `work` for a sale in its turn: a few at once, and one of those whose rows were locked. In a process that stops it
    /// is left to another instance.
    pub(super) async fn in_turn(
        &self,
        voucher_id: i64,
        work: impl Future<Output = Result<(), Error>>,
    ) {
        let lane = if self.sales.is_locked(voucher_id) {
            &self.counts_of_locked
        } else {
            &self.counts
        };
        let Some(_lane) = lane.acquire().await.ok().filter(|_| !self.is_stopped()) else {
            return;
        };
        let failed = work.await.err();
        let is_new = self.sales.end_count(voucher_id, failed.is_some());
        if let Some(error) = failed.filter(|_| is_new) {
            tracing::warn!(voucher_id, %error, "a sale is not counted; trying again");
        }
    }

    /// Of a sale whose row was locked, this row is not waited for: others like it would wait in turn.
    pub(super) async fn require_unlocked(&self, voucher_id: i64) -> Result<(), Error> {
        if self.sales.is_locked(voucher_id) {
            self.store.require_unlocked(voucher_id).await
        } else {
            Ok(())
        }
    }

    /// Counts the sale; one that is not open is closed first, and opened by the count.
    async fn open(
        &self,
        sale: &OpenSale,
        is_open: bool,
        doubtful_users: &HashSet<i64>,
        pass: &tokio::sync::Mutex<Pass>,
    ) -> Result<(), Error> {
        let mark = pass.lock().await.mark.text.clone();
        if is_open {
            return self
                .count(sale, &mark, doubtful_users, pass)
                .await
                .map(drop);
        }
        let opener = uuid::Uuid::new_v4().simple().to_string();
        let opened = match self.claim_all(sale.voucher_id, &opener).await {
            Ok(true) => self.count(sale, &opener, doubtful_users, pass).await,
            failed => failed,
        };
        if !matches!(opened, Ok(true)) {
            let mut release = self.open_script("release", sale.voucher_id);
            release.arg(opener);
            release.invoke_async::<()>(&mut self.redis.clone()).await?;
        }
        opened.map(drop)
    }

    /// Counts the sale, and opens it where its mark is still what it `was`; says whether it did.
    async fn count(
        &self,
        sale: &OpenSale,
        was: &str,
        doubtful_users: &HashSet<i64>,
        pass: &tokio::sync::Mutex<Pass>,
    ) -> Result<bool, Error> {
        let voucher_id = sale.voucher_id;
        let mut locked = self.store.begin().await?;
        let stock = locked.lock_stock(voucher_id).await?;
        let (mark, entries, last) = {
            let mut pass = pass.lock().await;
            self.extend(&mut pass).await?;
            let entries = pass.sales.get(&voucher_id).cloned().unwrap_or_default();
            (pass.mark.text.clone(), entries, pass.last.clone())
        };
        let orders: Vec<NewOrder> = entries.iter().map(|(_, order)| *order).collect();
        let rows = locked.rows_of(&orders).await?;
        let row_of = |order: &NewOrder| {
            rows.get(&order.id)
                .filter(|(buyer, _)| *buyer == order.buyer)
        };
        let returns = locked.returns_of(voucher_id).await?;
        let mut without_order: Vec<i64> = doubtful_users.iter().copied().collect();
        without_order.extend(returns.iter().map(|order| order.user_id));
        let buyers = locked.buyers_among(voucher_id, &without_order).await?;
        without_order.retain(|user| !buyers.contains(user));

        let mut script = self.open_script("open", voucher_id);
        script
            .arg(mark)
            .arg(was)
            .arg(sale.ends + KEPT_SECONDS)
            .arg(stock);
        script.arg(voucher_id).arg(last);
        let undecided: Vec<_> = entries
            .iter()
            .filter(|(_, order)| row_of(order).is_none())
            .collect();
        script.arg(undecided.len());
        for (entry, _) in undecided {
            script.arg(&entry.user).arg(entry.name());
        }
        let active = orders
            .iter()
            .filter(|order| row_of(order).is_some_and(|(_, active)| *active));
        let active: Vec<i64> = active.map(|order| order.buyer.user_id).collect();
        script.arg(active.len()).arg(active).arg(without_order);
        let sent = Instant::now();
        let opened = script.invoke_async::<String>(&mut self.redis.clone()).await;
        if opened.is_err() {
            // It may be on its way still: the row stays locked until it cannot run any more.
            tokio::time::sleep_until(sent + RUNS_WITHIN).await;
        }
        // Without an answer the row's lock may have been lost before the script ran: then the count is not of one moment.
        if let Err(error) = locked.rollback().await {
            self.redis
                .clone()
                .del::<_, ()>(self.keys.open(voucher_id))
                .await?;
            return Err(error);
        }
        let opened = opened? == "yes";
        if opened {
            self.stats.counted.fetch_add(1, Relaxed);
            let delivered = returns.iter().map(|order| order.order_id);
            self.store.delete_returns(delivered.collect()).await?;
        }
        Ok(opened)
    }

    /// Closes the sale and writes the claims of all who have an order; says whether it is still ours to open.
    async fn claim_all(&self, voucher_id: i64, opener: &str) -> Result<bool, Error> {
        let mut close = self.open_script("close", voucher_id);
        close.arg(opener);
        if close
            .invoke_async::<String>(&mut self.redis.clone())
            .await?
            != "yes"
        {
            return Ok(false);
        }
        let mut after = 0;
        loop {
            let users = self.store.buyers_after(voucher_id, after, CLAIMS).await?;
            let Some(last) = users.last() else {
                return Ok(true);
            };
            after = *last;
            let mut claim = self.open_script("claim", voucher_id);
            claim.arg(opener).arg(&users);
            if claim
                .invoke_async::<String>(&mut self.redis.clone())
                .await?
                != "yes"
            {
                return Ok(false);
            }
        }
    }

    fn open_script(&self, step: &str, voucher_id: i64) -> redis::ScriptInvocation<'static> {
        let keys = &self.keys;
        let mut script = scripts::STREAM_OPEN.prepare_invoke();
        script.key(&*keys.stream).key(&*keys.pending);
        script
            .key(keys.stock(voucher_id))
            .key(keys.claims(voucher_id))
            .key(keys.open(voucher_id));
        let runs_until_us = self.clock.now_us() + RUNS_WITHIN.as_micros() as i64;
        script.arg(step).arg(runs_until_us);
        script
    }
}
