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

use redis::{AsyncCommands, ScriptInvocation};
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

/// For this long after it was sent, a call may write what was read before it.
const RUNS_WITHIN: Duration = Duration::from_secs(1);

/// The entries of the stream that were not resolved when they were looked at, by sale.
pub(super) struct Unresolved {
    mark: Mark,
    /// The last entry that was looked at.
    last: String,
    pub(super) sales: HashMap<i64, Vec<(Entry, NewOrder)>>,
}

/// The same of one sale; of the mark its text.
struct UnresolvedOfSale {
    mark: String,
    last: String,
    entries: Vec<(Entry, NewOrder)>,
}

impl Member {
    /// Reads all entries, from the first.
    pub(super) async fn read_unresolved(&self, mark: Mark) -> Result<Unresolved, Error> {
        let mut unresolved = Unresolved {
            mark,
            last: String::new(),
            sales: HashMap::new(),
        };
        self.read_newer(&mut unresolved).await?;
        Ok(unresolved)
    }

    /// Reads the entries that were added since; returns those of the sale, old and new.
    async fn read_newest(
        &self,
        unresolved: &tokio::sync::Mutex<Unresolved>,
        voucher_id: i64,
    ) -> Result<UnresolvedOfSale, Error> {
        let mut unresolved = unresolved.lock().await;
        self.read_newer(&mut unresolved).await?;
        let entries = unresolved.sales.get(&voucher_id).cloned();
        Ok(UnresolvedOfSale {
            mark: unresolved.mark.text.clone(),
            last: unresolved.last.clone(),
            entries: entries.unwrap_or_default(),
        })
    }

    /// Reads the entries that were added since.
    async fn read_newer(&self, unresolved: &mut Unresolved) -> Result<(), Error> {
        loop {
            let view = self.view(Ask::Page(&unresolved.last)).await?;
            if view.mark != unresolved.mark {
                return Err(Error::Unavailable(Cause::Redis));
            }
            if unresolved.last.is_empty() {
                unresolved.last.clone_from(&unresolved.mark.join);
            }
            if view.has_more
                && let Some(last) = view.entries.last()
            {
                unresolved.last.clone_from(&last.id);
            }
            for entry in view.entries {
                if let Some(order) = entry.order() {
                    unresolved
                        .sales
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
        unresolved: Arc<tokio::sync::Mutex<Unresolved>>,
    ) {
        let count = async {
            let counted = match self.fail_if_still_locked(sale.voucher_id).await {
                Ok(()) => {
                    self.open(&sale, is_open, &doubtful_users, &unresolved)
                        .await
                }
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
        let Ok(_permit) = lane.acquire().await else {
            return;
        };
        if self.is_stopped() {
            return;
        }
        let failed = work.await.err();
        let is_new = self.sales.end_count(voucher_id, failed.is_some());
        if is_new && let Some(error) = failed {
            tracing::warn!(voucher_id, %error, "a sale is not counted; trying again");
        }
    }

    /// Fails, instead of waiting for the lock, if the row of a sale was locked at its last count and still is: other sales like
    /// it would wait in turn.
    pub(super) async fn fail_if_still_locked(&self, voucher_id: i64) -> Result<(), Error> {
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
        unresolved: &tokio::sync::Mutex<Unresolved>,
    ) -> Result<(), Error> {
        let mark = unresolved.lock().await.mark.text.clone();
        if is_open {
            return self
                .count(sale, &mark, doubtful_users, unresolved)
                .await
                .map(drop);
        }
        let opener = uuid::Uuid::new_v4().simple().to_string();
        let opened = match self.claim_all(sale.voucher_id, &opener).await {
            Ok(true) => self.count(sale, &opener, doubtful_users, unresolved).await,
            failed => failed,
        };
        if !matches!(opened, Ok(true)) {
            let mut release = self.open_script("release", sale.voucher_id);
            release.arg(opener);
            release.invoke_async::<()>(&mut self.redis.clone()).await?;
        }
        opened.map(drop)
    }

    /// Counts the sale, and opens it if its open mark is still `expected`: the mark, or the opener. Says whether it did.
    async fn count(
        &self,
        sale: &OpenSale,
        expected: &str,
        doubtful_users: &HashSet<i64>,
        unresolved: &tokio::sync::Mutex<Unresolved>,
    ) -> Result<bool, Error> {
        let voucher_id = sale.voucher_id;
        let mut transaction = self.store.begin().await?;
        let stock = transaction.lock_stock(voucher_id).await?;
        let UnresolvedOfSale {
            mark,
            last,
            entries,
        } = self.read_newest(unresolved, voucher_id).await?;
        let orders: Vec<NewOrder> = entries.iter().map(|(_, order)| *order).collect();
        let rows = transaction.rows_of(&orders).await?;
        let row_of = |order: &NewOrder| rows.get(&order.id).filter(|row| row.buyer == order.buyer);
        let returns = transaction.returns_of(voucher_id).await?;
        let mut doubtful_users: Vec<i64> = doubtful_users.iter().copied().collect();
        doubtful_users.extend(returns.values());
        let without_order = transaction
            .users_without_order(voucher_id, doubtful_users)
            .await?;
        let with_order: Vec<i64> = orders
            .iter()
            .filter(|order| row_of(order).is_some_and(|row| row.is_live))
            .map(|order| order.buyer.user_id)
            .collect();
        let undecided: Vec<_> = entries
            .iter()
            .filter(|(_, order)| row_of(order).is_none())
            .collect();

        let mut script = self.open_script("open", voucher_id);
        script
            .arg(mark)
            .arg(expected)
            .arg(sale.ends + KEPT_SECONDS)
            .arg(stock);
        script.arg(voucher_id).arg(last);
        script.arg(undecided.len());
        for (entry, _) in undecided {
            script.arg(&entry.user).arg(entry.name());
        }
        script
            .arg(with_order.len())
            .arg(with_order)
            .arg(without_order);
        let opened = self.run_to_its_end(&script).await;
        // Without an answer the row's lock may have been lost before the script ran: then the count is not of one moment.
        if let Err(error) = transaction.rollback().await {
            self.redis
                .clone()
                .del::<_, ()>(self.keys.open(voucher_id))
                .await?;
            return Err(error);
        }
        let opened = opened?;
        if opened {
            self.stats.counted.fetch_add(1, Relaxed);
            let delivered = returns.into_keys().collect();
            self.store.delete_returns(delivered).await?;
        }
        Ok(opened)
    }

    /// Runs a script that opens a sale; says whether it did. Without an answer the script may still be on its way: then this
    /// returns only once it cannot run any more, so that the sale's row stays locked until then.
    async fn run_to_its_end(&self, script: &ScriptInvocation<'_>) -> Result<bool, Error> {
        let sent = Instant::now();
        let answer = script.invoke_async::<String>(&mut self.redis.clone()).await;
        if answer.is_err() {
            tokio::time::sleep_until(sent + RUNS_WITHIN).await;
        }
        Ok(answer? == "yes")
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

    fn open_script(&self, step: &str, voucher_id: i64) -> ScriptInvocation<'static> {
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
