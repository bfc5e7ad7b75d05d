//! Admission: one script takes stock, claim and entry together. Sent again under the same order id after a
//! lost reply, it counts once.

use std::time::{Duration, Instant};

use redis::{ErrorKind, RedisError};

use super::place::{self, refusal};
use super::{EPOCH, Inner, REMEMBERED_S, STREAM, Stream, gate, scripts};
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};
use crate::voucher::sales::Sale;

/// How often the script is sent when replies are lost.
const ATTEMPTS: u32 = 3;

/// Pause before it is sent again.
const PAUSE: Duration = Duration::from_millis(50);

/// What the script said.
enum Said {
    Admitted {
        entry: String,
        epoch: String,
    },
    Refused(Error),
    /// Redis lost its data, or was started anew, since the order's id was leased.
    OtherEpoch,
    /// There is no gate.
    Closed,
    /// The user has a claim already.
    Claimed,
    /// Nothing is left; so many entries wait.
    SoldOut {
        waiting: u64,
    },
    /// Too many entries wait.
    Full,
}

impl Stream {
    /// Takes a place for the buyer; returns the id under which the order will be committed.
    ///
    /// # Errors
    /// Refusals; [`Error::Unavailable`] while the gate cannot be built; [`Error::OutcomeUnknown`] with the
    /// id where Redis went away in the middle.
    pub async fn order(&self, buyer: Buyer, sale: &Sale) -> Result<i64, Error> {
        let inner = &self.0;
        let deadline = Instant::now() + inner.limits.timeout;
        let mut claim_dropped = false;
        let mut drawn = Vec::with_capacity(1);
        loop {
            // Again each time: waiting for a gate takes a while.
            sale.window.require_open()?;
            // The epoch first: an id that is drawn after it was leased in it.
            let epoch = inner.epoch();
            let order = NewOrder { id: inner.ids.next().await?, buyer, unguarded: false };
            drawn.push(order.id);
            match inner.admit(&order, &epoch).await? {
                Said::Admitted { entry, epoch } => {
                    inner.outstanding.keep(order, epoch, &entry);
                    inner.stats.admitted.add(1);
                    return Ok(order.id);
                }
                Said::Refused(refusal) => return Err(refusal),
                Said::Full => return Err(Error::Overloaded),
                Said::Claimed => match inner.claim(buyer).await? {
                    // A reply was lost, and meanwhile the order was committed, or Redis was restarted.
                    Some(id) if drawn.contains(&id) => return Ok(id),
                    // Neither pending nor committed: a claim that was to be dropped and is not.
                    None if !claim_dropped => {
                        inner.drop_claim(buyer).await?;
                        claim_dropped = true;
                    }
                    claim => return Err(Error::AlreadyOrdered(claim)),
                },
                Said::SoldOut { waiting } => {
                    let stranded =
                        waiting == 0 && !sale.sold_out && inner.is_stranded(buyer).await?;
                    if !stranded {
                        return Err(Error::SoldOut);
                    }
                    inner.close_gate(buyer.voucher_id).await?;
                }
                Said::OtherEpoch if Instant::now() < deadline => {
                    inner.look.notify_one();
                    tokio::time::sleep(PAUSE).await;
                }
                Said::Closed if Instant::now() < deadline => {
                    inner.open_gate(buyer.voucher_id).await?
                }
                Said::OtherEpoch | Said::Closed => {
                    return Err(Error::Unavailable("the sale's gate"));
                }
            }
        }
    }
}

impl Inner {
    async fn admit(&self, order: &NewOrder, epoch: &str) -> Result<Said, Error> {
        let Buyer { user_id, voucher_id } = order.buyer;
        let mut script = scripts::ADMIT.key(gate::stock_key(voucher_id));
        script
            .key(gate::claims_key(voucher_id))
            .key(STREAM)
            .key(place::key(user_id))
            .key(EPOCH)
            .arg(user_id)
            .arg(voucher_id)
            .arg(order.id)
            .arg(self.limits.backlog)
            .arg(REMEMBERED_S)
            .arg(epoch);
        let (mut attempt, mut in_doubt) = (1, false);
        loop {
            match script.invoke_async::<Vec<String>>(&mut self.redis.clone()).await {
                Ok(said) => return read(&said),
                Err(fault) => {
                    tracing::warn!(%fault, "admission did not answer");
                    in_doubt |= !was_not_run(&fault);
                    if !in_doubt {
                        return Err(Error::Unavailable("Redis"));
                    }
                }
            }
            if attempt >= ATTEMPTS {
                return Err(Error::OutcomeUnknown(Some(order.id)));
            }
            attempt += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Whether a script whose call failed like this certainly did nothing: it was never sent, or the server
/// said no before its first write.
fn was_not_run(fault: &RedisError) -> bool {
    fault.is_connection_refusal()
        || matches!(
            fault.kind(),
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed
        )
}

fn read(said: &[String]) -> Result<Said, Error> {
    let words: Vec<&str> = said.iter().map(String::as_str).collect();
    Ok(match words[..] {
        ["admitted", entry, epoch] => {
            Said::Admitted { entry: entry.to_owned(), epoch: epoch.to_owned() }
        }
        ["refused", code] => Said::Refused(refusal(code)),
        ["other epoch"] => Said::OtherEpoch,
        ["closed"] => Said::Closed,
        ["claimed"] => Said::Claimed,
        ["sold out", waiting] => Said::SoldOut { waiting: waiting.parse().unwrap_or(u64::MAX) },
        ["full"] => Said::Full,
        _ => return Err(Error::Internal(format!("stream_admit.lua said {said:?}"))),
    })
}
