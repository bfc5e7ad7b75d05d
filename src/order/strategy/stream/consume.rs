//! The consumer: reads new entries, and claims those that a consumer kept for too long. Entries of one sale are decided
//! together, several sales at the same time.
//!
//! - It never reads its own pending entries again, which would reset their idle time. An entry that is not decided is *given
//!   back*: we claim it ourselves with an idle time of nearly `--stream-min-idle-ms`, so that the next claim, by any
//!   instance, takes it within a second.
//! - While the database is away, nothing is read.
//! - A sale whose row is locked is *stuck*: it is closed, and its entries are tried beside the others, without waiting for the
//!   row.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{AsyncCommands, Value};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::decide::{ATTEMPT, Attempt};
use super::replies::{Ask, Entry, Mark, by_sale, claimed_entries, read_entries};
use super::sale_state::Turn;
use super::{GROUP, Member};
use crate::error::Error;

/// Reads whose entries may be in work at once.
const READS: usize = 2;

/// After this time a read's entries do not keep the next read waiting.
const SLOW: Duration = Duration::from_millis(250);

/// Pause after a read that found nothing; an admission by this process ends it.
const PAUSE: Duration = Duration::from_millis(50);

/// Pause after a read that found little.
const GATHER: Duration = Duration::from_millis(2);

/// Pause between two claims of entries that a consumer kept, and before entries that were given back are claimed again.
const CLAIM_EVERY: Duration = Duration::from_secs(1);

/// Pages of entries that are claimed at a time.
const PAGES: usize = 20;

impl Member {
    /// Consumes until the process stops, then finishes what was begun.
    pub(super) async fn consume(self: Arc<Self>) {
        let reads = Arc::new(Semaphore::new(READS));
        let mut claim_due = Instant::now();
        let mut claim_from = "0-0".to_owned();
        let mut pages = 0;
        let mut failing = false;
        let mut mark = None;
        while !self.is_stopped() {
            let Some(Ok(slot)) = self
                .stop
                .run_until_cancelled(reads.clone().acquire_owned())
                .await
            else {
                break;
            };
            let begun = Instant::now();
            let is_claim = begun >= claim_due;
            let read = async {
                let current_mark = match (&mark, is_claim) {
                    (Some(mark), false) => Arc::clone(mark),
                    _ => Arc::new(self.view(Ask::Tidy("")).await?.mark),
                };
                if is_claim {
                    let (next_page, entries) = self.claim_idle(&claim_from).await?;
                    Ok::<_, Error>((current_mark, next_page, entries))
                } else {
                    Ok((current_mark, String::new(), self.read_new().await?))
                }
            };
            let (current_mark, next_page, entries) = match read.await {
                Ok(read) => read,
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, "the stream is not read; trying again");
                    }
                    failing = true;
                    mark = None;
                    self.nodes.recheck();
                    self.sleep(PAUSE).await;
                    continue;
                }
            };
            failing = false;
            mark = Some(current_mark.clone());
            if is_claim {
                pages += 1;
                if next_page == "0-0" || pages == PAGES {
                    pages = 0;
                    claim_due = begun + CLAIM_EVERY;
                    self.sales.forget_old();
                }
                claim_from = next_page;
                self.stats.claimed.fetch_add(entries.len() as u64, Relaxed);
            }
            let count = entries.len();
            if count > 0 {
                let work = self.clone().work(entries, current_mark, begun, slot);
                self.tasks.spawn(work);
            }
            if is_claim {
                continue;
            }
            if count == 0 {
                let _arrived = tokio::time::timeout(PAUSE, self.arrived.notified()).await;
            } else if count < self.config.stream_batch / 4 {
                self.sleep(GATHER).await;
            }
            self.wait_for_database().await;
        }
    }

    async fn read_new(&self) -> Result<Vec<Entry>, Error> {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP")
            .arg(GROUP)
            .arg(&self.consumer)
            .arg("COUNT")
            .arg(self.config.stream_batch);
        read.arg("STREAMS").arg(&*self.keys.stream).arg(">");
        let reply: Value = read.query_async(&mut self.redis.clone()).await?;
        Ok(read_entries(&reply))
    }

    /// Claims a page of what was kept for too long; says where the next one begins.
    async fn claim_idle(&self, from: &str) -> Result<(String, Vec<Entry>), Error> {
        let mut claim = redis::cmd("XAUTOCLAIM");
        claim.arg(&*self.keys.stream).arg(GROUP).arg(&self.consumer);
        claim
            .arg(self.config.stream_min_idle.as_millis() as u64)
            .arg(from);
        claim.arg("COUNT").arg(self.config.stream_batch);
        let reply: Value = claim.query_async(&mut self.redis.clone()).await?;
        Ok(claimed_entries(&reply))
    }

    /// Decides what one read brought. `slot` is given up at the end, or when it takes long.
    async fn work(
        self: Arc<Self>,
        entries: Vec<Entry>,
        mark: Arc<Mark>,
        begun: Instant,
        slot: tokio::sync::OwnedSemaphorePermit,
    ) {
        let attempts = by_sale(entries)
            .into_iter()
            .map(|(sale, entries)| self.attempt(sale, entries, &mark, begun));
        let mut attempts = Box::pin(join_all(attempts));
        if tokio::time::timeout(SLOW, &mut attempts).await.is_err() {
            drop(slot);
            attempts.await;
        }
    }

    async fn attempt(&self, sale: i64, entries: Vec<Entry>, mark: &Mark, begun: Instant) {
        let (lane, is_stuck) = match self.sales.turn(sale, ATTEMPT) {
            Turn::Usual => (&self.transactions, false),
            Turn::Stuck => (&self.transactions_of_stuck, true),
            Turn::Later => return self.give_back(&entries).await,
        };
        let permit = lane.acquire().await;
        if begun.elapsed() > ATTEMPT / 2 {
            // Too little of the attempt's time is left.
            return self.give_back(&entries).await;
        }
        let unlocked = if is_stuck {
            self.store.require_unlocked(sale).await
        } else {
            Ok(())
        };
        let Attempt { undone, error, .. } = match unlocked {
            Ok(()) => self.decide(entries, mark, begun).await,
            Err(error) => Attempt::failed(entries, error),
        };
        drop(permit);
        match error {
            None => self.sales.decided(sale),
            Some(error) => {
                if matches!(error, Error::Unavailable(_) | Error::OutcomeUnknown(_)) {
                    self.database_failed.store(true, Relaxed);
                }
                if self.sales.not_decided(sale, CLAIM_EVERY) {
                    tracing::warn!(voucher_id = sale, %error, "a sale's entries are not decided; trying again");
                }
                // The sale is closed, as buyers who are admitted now would only wait.
                if matches!(error, Error::Conflict)
                    && let Err(error) = self.redis.clone().del::<_, ()>(self.keys.open(sale)).await
                {
                    tracing::debug!(%error, "a sale whose row is locked stays open");
                }
            }
        }
        self.give_back(&undone).await;
    }

    /// Leaves entries to the next claim of any instance, in about [`CLAIM_EVERY`]. If this fails, they are claimed after the idle
    /// limit.
    async fn give_back(&self, entries: &[Entry]) {
        let ids: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
        let idle = self.config.stream_min_idle.saturating_sub(CLAIM_EVERY);
        if let Err(error) = self.set_idle(&ids, idle).await {
            tracing::debug!(%error, "entries are not given back");
        }
    }

    /// Takes entries over, and sets for how long they have been idle, by Redis' clock.
    pub(super) async fn set_idle(&self, ids: &[&str], idle: Duration) -> Result<(), Error> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut claim = redis::cmd("XCLAIM");
        claim
            .arg(&*self.keys.stream)
            .arg(GROUP)
            .arg(&self.consumer)
            .arg(0)
            .arg(ids);
        claim.arg("IDLE").arg(idle.as_millis() as u64).arg("JUSTID");
        claim.exec_async(&mut self.redis.clone()).await?;
        Ok(())
    }

    /// After an attempt that the database failed: waits until it answers.
    async fn wait_for_database(&self) {
        if !self.database_failed.swap(false, Relaxed) {
            return;
        }
        let mut is_away = false;
        while !self.is_stopped() && self.store.find(0).await.is_err() {
            if !is_away {
                tracing::warn!("the database does not answer; nothing is read until it does");
            }
            is_away = true;
            self.sleep(CLAIM_EVERY).await;
        }
        if is_away {
            tracing::warn!("the database answers again");
            self.sales.forget_all();
        }
    }
}
