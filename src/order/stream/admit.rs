//! Admission: one script takes stock, claim and entry together, for all who come while the one before it
//! travels. Sent again under the same order id after a lost reply, it counts once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::ConnectionManager;
use redis::{ErrorKind, RedisError};

use super::place::refusal;
use super::{EPOCH, REMEMBERED_S, STREAM, Stream, scripts};
use crate::connection::coalescer::Coalescer;
use crate::error::Error;
use crate::order::model::{Buyer, NewOrder};
use crate::voucher::sales::Sale;

/// How often the script is sent when replies are lost.
const ATTEMPTS: u32 = 3;

/// Pause before it is sent again.
const PAUSE: Duration = Duration::from_millis(50);

/// Buyers that one script admits at most, so that it never keeps Redis from others for long.
const TOGETHER: usize = 64;

/// Words that the script says of each.
const WORDS: usize = 3;

/// An order, and the epoch in which its id was leased.
type Asked = (NewOrder, Arc<str>);
type Answer = Result<Said, Error>;
/// See [`start`].
pub(super) type Trips = Coalescer<Asked, Answer>;

/// What the script said.
pub(super) enum Said {
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
            // Without an answer the trips have ended, or one has panicked: it may have been run.
            let answer = inner.admissions.request((order, epoch)).await;
            match answer.unwrap_or(Err(Error::OutcomeUnknown(Some(order.id))))? {
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

/// The trips of admissions; `backlog` is how many entries may wait.
pub(super) fn start(redis: ConnectionManager, backlog: usize) -> Trips {
    Coalescer::start(TOGETHER, move |asked| admit(redis.clone(), backlog, asked))
}

async fn admit(mut redis: ConnectionManager, backlog: usize, asked: Vec<Asked>) -> Vec<Answer> {
    let (mut attempt, mut in_doubt) = (1, false);
    loop {
        let mut script = scripts::ADMIT.key(STREAM);
        script.key(EPOCH).arg(backlog).arg(REMEMBERED_S).arg(i32::from(in_doubt));
        for (order, epoch) in &asked {
            let Buyer { user_id, voucher_id } = order.buyer;
            script.arg(user_id).arg(voucher_id).arg(order.id).arg(&**epoch);
        }
        match script.invoke_async::<Vec<String>>(&mut redis).await {
            Ok(said) => {
                let mut said = said.chunks(WORDS);
                return asked.iter().map(|_| read(said.next().unwrap_or_default())).collect();
            }
            Err(fault) => {
                tracing::warn!(%fault, "admission did not answer");
                in_doubt |= !was_not_run(&fault);
            }
        }
        if !in_doubt {
            return asked.iter().map(|_| Err(Error::Unavailable("Redis"))).collect();
        }
        if attempt >= ATTEMPTS {
            let unknown = |(order, _): &Asked| Err(Error::OutcomeUnknown(Some(order.id)));
            return asked.iter().map(unknown).collect();
        }
        attempt += 1;
        tokio::time::sleep(PAUSE).await;
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

fn read(said: &[String]) -> Answer {
    let words: Vec<&str> = said.iter().map(String::as_str).collect();
    Ok(match words[..] {
        ["admitted", entry, epoch] => {
            Said::Admitted { entry: entry.to_owned(), epoch: epoch.to_owned() }
        }
        ["refused", code, _] => Said::Refused(refusal(code)),
        ["other epoch", ..] => Said::OtherEpoch,
        ["closed", ..] => Said::Closed,
        ["claimed", ..] => Said::Claimed,
        ["sold out", waiting, _] => Said::SoldOut { waiting: waiting.parse().unwrap_or(u64::MAX) },
        ["full", ..] => Said::Full,
        _ => return Err(Error::Internal(format!("stream_admit.lua said {said:?}"))),
    })
}
