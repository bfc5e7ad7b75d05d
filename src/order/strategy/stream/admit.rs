//! Admission: one call of `lua/stream_admit.lua` for all purchases, of whatever sales, that arrive while the call before it
//! is in flight. Sent again under the same order id after a lost reply, a purchase counts once.
//!
//! Each purchase has its own time limit: its deadline and its sale's window are checked when its call is made, and again by the
//! script, by Redis' clock. The script checks the age of the order's id as well: by the same clock, a look-up says that the
//! order does not exist.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use backon::{BackoffBuilder, ConstantBuilder};
use redis_link::Outcome;
use tokio::time::Instant;

use super::admission::{Admission, Answer, Verdict};
use super::{Member, OrderStream};
use crate::connection::coalescer::NoReply;
use crate::error::{Cause, Error};
use crate::order::deadline::until;
use crate::order::model::{Buyer, NewOrder};
use crate::scripts;
use crate::voucher::sales::Sale;

/// When replies are lost, the script is sent three times in all.
const RETRIES: ConstantBuilder = ConstantBuilder::new()
    .with_delay(Duration::from_millis(50))
    .with_max_times(2);

/// How long a purchase waits for a sale that is being counted.
const CLOSED_WAIT: Duration = Duration::from_secs(1);

/// Pause between two tries of such a purchase.
const PAUSE: Duration = Duration::from_millis(20);

impl OrderStream {
    /// Admits the buyer; returns the id under which the order will be committed.
    ///
    /// # Errors
    /// Refusals, of a purchase that made no order and will make none; [`Error::OutcomeUnknown`] with the id of one that a call
    /// may still admit, or has admitted.
    pub async fn order(&self, buyer: Buyer, sale: &Sale, deadline: Instant) -> Result<i64, Error> {
        let member = &self.0;
        let deadline = deadline.min(Instant::now() + member.store.time_limit());
        let mut purchase = PendingPurchase {
            member,
            admission: Admission {
                order: member.new_order(buyer, deadline).await?,
                window: sale.window,
                deadline,
            },
            in_doubt: false,
        };
        match purchase.admit().await {
            Err(_) if purchase.in_doubt => {
                Err(Error::OutcomeUnknown(Some(purchase.admission.order.id)))
            }
            outcome => outcome,
        }
    }
}

/// A purchase from its first call to its outcome.
struct PendingPurchase<'a> {
    member: &'a Member,
    admission: Admission,
    /// Whether a call whose reply was lost may have run, or may still run.
    in_doubt: bool,
}

impl PendingPurchase<'_> {
    async fn admit(&mut self) -> Result<i64, Error> {
        let member = self.member;
        let deadline = self.admission.deadline;
        let closed_until = deadline.min(Instant::now() + CLOSED_WAIT);
        let mut count_requested = false;
        loop {
            let NewOrder { id, buyer, .. } = self.admission.order;
            // This also bounds the requests that wait for a script that does not answer: callers that have gone hold no permit.
            if member.admissions.waiting() >= member.config.stream_backlog {
                return Err(Error::Overloaded);
            }
            match self.ask().await? {
                Verdict::Pending => {
                    member.arrived.notify_one();
                    return Ok(id);
                }
                Verdict::SoldOut => return Err(Error::SoldOut),
                Verdict::Full => return Err(Error::Overloaded),
                Verdict::ClaimedBy(other) => return Err(Error::AlreadyOrdered(Some(other))),
                Verdict::Claimed => {
                    let status = until(deadline, member.store.buyer_status(buyer)).await??;
                    match status.and_then(|status| status.order_id) {
                        Some(existing) if existing == id => return Ok(id),
                        Some(existing) => return Err(Error::AlreadyOrdered(Some(existing))),
                        // A claim without an order; the next count removes it.
                        None if !count_requested => {
                            count_requested = true;
                            member.recounts.ask(buyer.voucher_id, Some(buyer.user_id));
                        }
                        None if Instant::now() < closed_until => {}
                        None => return Err(Error::AlreadyOrdered(None)),
                    }
                }
                Verdict::Closed => member.recounts.ask(buyer.voucher_id, None),
                // Too late for this id; perhaps not for a new one.
                Verdict::Late if !self.in_doubt => {
                    self.admission.order = member.new_order(buyer, deadline).await?;
                }
                Verdict::Late => {}
            }
            if Instant::now() >= closed_until {
                return Err(Error::Unavailable(Cause::SaleBeingCounted));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits for the answer of one call, which this purchase shares with others.
    async fn ask(&mut self) -> Result<Verdict, Error> {
        let Admission { deadline, .. } = self.admission;
        let answer = self
            .member
            .admissions
            .request_until(self.admission, deadline);
        match answer.await {
            Ok(answer) => {
                self.in_doubt |= answer.in_doubt;
                answer.verdict
            }
            Err(NoReply::NotSent) => Err(Error::Unavailable(Cause::PurchaseDeadline)),
            // The call has panicked: the script may have been run.
            Err(NoReply::Lost) => {
                self.in_doubt = true;
                Err(Error::OutcomeUnknown(None))
            }
        }
    }
}

impl Member {
    /// An order for this buyer under a fresh id, whose second is not before Redis' clock.
    async fn new_order(&self, buyer: Buyer, deadline: Instant) -> Result<NewOrder, Error> {
        let not_before = self.store.zone.seconds_at(self.clock.now_us());
        let id = until(deadline, self.ids.next_not_before(not_before)).await??;
        Ok(NewOrder {
            id,
            buyer,
            unguarded: false,
        })
    }

    /// An answer for each purchase.
    pub(super) async fn admit(&self, queued: &[Admission]) -> Vec<Answer> {
        let checked: Vec<Result<(), Error>> =
            queued.iter().map(Admission::require_in_time).collect();
        let sent: Vec<Admission> = queued
            .iter()
            .zip(&checked)
            .filter(|(_, checked)| checked.is_ok())
            .map(|(admission, _)| *admission)
            .collect();
        let mut answers = self.admit_all(&sent).await.into_iter();
        checked
            .into_iter()
            .map(|checked| match checked {
                Ok(()) => answers.next().unwrap_or_else(Answer::unknown),
                Err(error) => Answer::refusal(error),
            })
            .collect()
    }

    async fn admit_all(&self, admissions: &[Admission]) -> Vec<Answer> {
        if admissions.is_empty() {
            return Vec::new();
        }
        let mut pauses = RETRIES.build();
        let mut in_doubt = false;
        loop {
            match self.call(admissions).await {
                Ok(reply) => return self.answers(&reply, in_doubt),
                Err(error) => {
                    tracing::warn!(%error, "the admission script did not answer");
                    self.nodes.recheck();
                    in_doubt |= Outcome::of(&error) == Outcome::Unknown;
                }
            }
            if !in_doubt {
                return admissions
                    .iter()
                    .map(|_| Answer::refusal(Error::Unavailable(Cause::Redis)))
                    .collect();
            }
            let Some(pause) = pauses.next() else {
                return admissions.iter().map(|_| Answer::unknown()).collect();
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn call(&self, admissions: &[Admission]) -> redis::RedisResult<Vec<String>> {
        let mut script = scripts::STREAM_ADMIT.key(&*self.keys.stream);
        script.key(&*self.keys.pending);
        script.arg(self.config.stream_backlog);
        let now_us = self.clock.now_us();
        let keys = &self.keys;
        let mut sale_numbers = HashMap::new();
        for admission in admissions {
            let NewOrder { id, buyer, .. } = admission.order;
            let voucher = buyer.voucher_id;
            let next_number = sale_numbers.len() + 1;
            let sale_number = *sale_numbers.entry(voucher).or_insert(next_number);
            if sale_number == next_number {
                script
                    .key(keys.stock(voucher))
                    .key(keys.claims(voucher))
                    .key(keys.open(voucher));
            }
            let runs_until = now_us + admission.runs_within().as_micros() as i64;
            script
                .arg(sale_number)
                .arg(voucher)
                .arg(buyer.user_id)
                .arg(id)
                .arg(runs_until.min(self.grace_ends_us(id) - 1));
        }
        script.invoke_async(&mut self.redis.clone()).await
    }

    fn answers(&self, reply: &[String], in_doubt: bool) -> Vec<Answer> {
        let [now, replies @ ..] = reply else {
            return Vec::new();
        };
        if let Ok(now_us) = now.parse() {
            self.clock.set(now_us);
        }
        let admitted = replies.iter().filter(|reply| *reply == "pending").count();
        self.stats.admitted.fetch_add(admitted as u64, Relaxed);
        replies
            .iter()
            .map(|reply| Answer {
                verdict: Verdict::parse(reply),
                in_doubt,
            })
            .collect()
    }
}
