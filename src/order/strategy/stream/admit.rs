//! Admission: one call of `lua/stream_admit.lua` for all purchases, of whatever sales, that arrive while the call before it
//! is in flight. Sent again under the same order id after a lost reply, a purchase counts once.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use backon::{BackoffBuilder, ConstantBuilder};
use redis_link::Outcome;
use tokio::time::Instant;

use super::replies::Answer;
use super::{Member, OrderStream};
use crate::error::{Cause, Error};
use crate::order::deadline::until;
use crate::order::model::{Buyer, NewOrder};
use crate::scripts;
use crate::voucher::sales::Sale;

/// When replies are lost, the script is sent three times in all.
const RETRIES: ConstantBuilder = ConstantBuilder::new()
    .with_delay(Duration::from_millis(50))
    .with_max_times(2);

/// How long after it was sent a call may run, µs: a server that stood still must not admit a buyer who has been told since
/// that there is no such order.
const RUNS_WITHIN_US: i64 = 3_000_000;

/// How long a purchase waits for a sale that is being counted.
const CLOSED: Duration = Duration::from_secs(1);

/// Between two tries of such a purchase.
const PAUSE: Duration = Duration::from_millis(20);

impl OrderStream {
    /// Admits the buyer; returns the id under which the order will be committed.
    ///
    /// # Errors
    /// Refusals; [`Error::Unavailable`] while the sale is being counted; [`Error::OutcomeUnknown`] with the id where Redis
    /// went away in the middle.
    pub async fn order(&self, buyer: Buyer, sale: &Sale, deadline: Instant) -> Result<i64, Error> {
        let member = &self.0;
        let deadline = deadline.min(Instant::now() + member.timeout);
        let id = until(deadline, member.ids.next()).await??;
        let order = NewOrder {
            id,
            buyer,
            unguarded: false,
        };
        let mut in_doubt = false;
        let outcome = self.admitted(order, sale, deadline, &mut in_doubt).await;
        told(outcome, id, in_doubt)
    }

    async fn admitted(
        &self,
        order: NewOrder,
        sale: &Sale,
        deadline: Instant,
        in_doubt: &mut bool,
    ) -> Result<i64, Error> {
        let NewOrder { id, buyer, .. } = order;
        let member = &self.0;
        let closed_until = deadline.min(Instant::now() + CLOSED);
        let mut claim_asked = false;
        loop {
            // Again each time: waiting for a count takes a while.
            sale.window.require_open()?;
            // Callers that hung up hold no permit any more, so this alone bounds what waits for a script that does not answer.
            if member.admissions.waiting() >= member.config.stream_backlog {
                return Err(Error::Overloaded);
            }
            // Without an answer the batcher has ended, or a call has panicked: the script may have been run.
            let answer = member.admissions.request(order).await;
            let (answer, doubtful) = answer.unwrap_or(Err(Error::OutcomeUnknown(Some(id))))?;
            *in_doubt |= doubtful;
            match answer.split_once(' ').unwrap_or((&answer, "")) {
                ("pending", _) => {
                    member.arrived.notify_one();
                    return Ok(id);
                }
                ("sold", _) => return Err(Error::SoldOut),
                ("full", _) => return Err(Error::Overloaded),
                ("claimed", "") => {
                    let status = member.store.buyer_status(buyer).await?;
                    match status.and_then(|status| status.order_id) {
                        Some(own) if own == id => return Ok(id),
                        Some(other) => return Err(Error::AlreadyOrdered(Some(other))),
                        // A claim without an order; the next count removes it.
                        None if !claim_asked => {
                            claim_asked = true;
                            member.recounts.ask(buyer.voucher_id, Some(buyer.user_id));
                        }
                        None if Instant::now() < closed_until => {}
                        None => return Err(Error::AlreadyOrdered(None)),
                    }
                }
                ("claimed", other) => return Err(Error::AlreadyOrdered(other.parse().ok())),
                ("closed", _) => member.recounts.ask(buyer.voucher_id, None),
                ("late", _) => {}
                _ => {
                    return Err(Error::Internal(format!(
                        "stream_admit.lua returned {answer:?}"
                    )));
                }
            }
            if Instant::now() >= closed_until {
                return Err(Error::Unavailable(Cause::SaleBeingCounted));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// What the buyer is told: where an earlier call may have admitted the order, nothing that would deny it unasked.
fn told(outcome: Result<i64, Error>, id: i64, in_doubt: bool) -> Result<i64, Error> {
    match outcome {
        Err(Error::Unavailable(_) | Error::Overloaded | Error::SaleEnded) if in_doubt => {
            Err(Error::OutcomeUnknown(Some(id)))
        }
        outcome => outcome,
    }
}

impl Member {
    /// An answer for each order.
    pub(super) async fn admit(&self, orders: &[NewOrder]) -> Vec<Answer> {
        let (mut pauses, mut in_doubt) = (RETRIES.build(), false);
        loop {
            match self.call(orders).await {
                Ok(reply) => return self.answers(&reply, in_doubt),
                Err(error) => {
                    tracing::warn!(%error, "the admission script did not answer");
                    self.nodes.recheck();
                    in_doubt |= Outcome::of(&error) == Outcome::Unknown;
                }
            }
            if !in_doubt {
                return orders
                    .iter()
                    .map(|_| Err(Error::Unavailable(Cause::Redis)))
                    .collect();
            }
            let Some(pause) = pauses.next() else {
                let unknown = |order: &NewOrder| Err(Error::OutcomeUnknown(Some(order.id)));
                return orders.iter().map(unknown).collect();
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn call(&self, orders: &[NewOrder]) -> redis::RedisResult<Vec<String>> {
        let mut script = scripts::STREAM_ADMIT.key(&*self.keys.stream);
        script.key(&*self.keys.pending);
        script
            .arg(self.clock.now_us() + RUNS_WITHIN_US)
            .arg(self.config.stream_backlog);
        let (keys, mut sales) = (&self.keys, HashMap::new());
        for NewOrder { id, buyer, .. } in orders {
            let voucher = buyer.voucher_id;
            let next = sales.len() + 1;
            let sale = *sales.entry(voucher).or_insert(next);
            if sale == next {
                script
                    .key(keys.stock(voucher))
                    .key(keys.claims(voucher))
                    .key(keys.open(voucher));
            }
            script.arg(sale).arg(voucher).arg(buyer.user_id).arg(id);
        }
        script.invoke_async(&mut self.redis.clone()).await
    }

    fn answers(&self, reply: &[String], in_doubt: bool) -> Vec<Answer> {
        let [now, replies @ ..] = reply else {
            return Vec::new();
        };
        self.clock.set(now);
        let admitted = replies.iter().filter(|reply| *reply == "pending").count();
        self.stats.admitted.fetch_add(admitted as u64, Relaxed);
        replies
            .iter()
            .map(|reply| Ok((reply.clone(), in_doubt)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reply was lost, and the sale ended, or was being counted, before the script could be asked again.
    #[test]
    fn no_refusal_that_was_not_looked_up_denies_an_order_that_may_exist() {
        for refusal in [
            Error::SaleEnded,
            Error::Overloaded,
            Error::Unavailable(Cause::Redis),
        ] {
            assert!(matches!(
                told(Err(refusal.clone()), 7, true),
                Err(Error::OutcomeUnknown(Some(7)))
            ));
            assert!(!matches!(
                told(Err(refusal), 7, false),
                Err(Error::OutcomeUnknown(_))
            ));
        }
        assert!(matches!(
            told(Err(Error::SoldOut), 7, true),
            Err(Error::SoldOut)
        ));
    }
}
