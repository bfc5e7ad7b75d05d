//! The call of the admission script (`lua/stream_admit.lua`), for all purchases that arrive while the call before it is
//! in flight. Sent again under the same order id after a lost reply, it counts once.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ConstantBuilder};

use super::names::STATUS_TTL_S;
use super::order_status::refusal;
use crate::connection::coalescer::Coalescer;
use crate::connection::redis::{RoutedConnection, was_not_run};
use crate::error::Error;
use crate::keys::ShardKeys;
use crate::order::model::{Buyer, NewOrder};
use crate::scripts;

/// When replies are lost, the script is sent three times in all.
const RETRIES: ConstantBuilder =
    ConstantBuilder::new().with_delay(Duration::from_millis(50)).with_max_times(2);

/// Buyers that one call admits at most, so that it never keeps Redis from others for long.
const BATCH: usize = 64;

/// Strings that the script returns for each.
const STRINGS: usize = 3;

/// An order, and the epoch in which its id was leased.
type Request = (NewOrder, Arc<str>);
type Answer = Result<Admission, Error>;

/// Batches the requests; see [`batcher`].
pub(super) type AdmissionBatcher = Coalescer<Request, Answer>;

/// What the script decided.
pub(super) enum Admission {
    Admitted {
        entry: String,
        epoch: String,
    },
    Refused(Error),
    /// Redis lost its data, or was started anew, since the order's id was leased.
    OtherEpoch,
    /// The sale has no stock counter that is exact.
    NoCounter,
    /// The user has a claim already.
    Claimed,
    /// Nothing is left; so many entries wait.
    SoldOut {
        waiting: u64,
    },
    /// Too many entries wait.
    Full,
}

/// Starts the batcher; `backlog` is how many entries may wait.
pub(super) fn batcher(
    redis: RoutedConnection,
    keys: Arc<ShardKeys>,
    backlog: usize,
) -> AdmissionBatcher {
    Coalescer::start(BATCH, move |requests| admit(redis.clone(), keys.clone(), backlog, requests))
}

async fn admit(
    mut redis: RoutedConnection,
    keys: Arc<ShardKeys>,
    backlog: usize,
    requests: Vec<Request>,
) -> Vec<Answer> {
    let (mut pauses, mut in_doubt) = (RETRIES.build(), false);
    loop {
        let mut script = scripts::STREAM_ADMIT.key(&keys.stream);
        script.key(&keys.epoch).key(&keys.exact_counters);
        script.arg(backlog).arg(STATUS_TTL_S).arg(i32::from(in_doubt));
        for (order, epoch) in &requests {
            let Buyer { user_id, voucher_id } = order.buyer;
            script.arg(user_id).arg(voucher_id).arg(order.id).arg(&**epoch);
        }
        let buyers = requests.iter().map(|(order, _)| order.buyer);
        keys.declare(&mut script, buyers.map(|buyer| (buyer.user_id, buyer.voucher_id)));
        match script.invoke_async::<Vec<String>>(&mut redis).await {
            Ok(reply) => {
                let mut reply = reply.chunks(STRINGS);
                return requests.iter().map(|_| parse(reply.next().unwrap_or_default())).collect();
            }
            Err(error) => {
                tracing::warn!(%error, "the admission script did not answer");
                in_doubt |= !was_not_run(&error);
            }
        }
        if !in_doubt {
            return requests.iter().map(|_| Err(Error::Unavailable("Redis"))).collect();
        }
        let Some(pause) = pauses.next() else {
            let unknown = |(order, _): &Request| Err(Error::OutcomeUnknown(Some(order.id)));
            return requests.iter().map(unknown).collect();
        };
        tokio::time::sleep(pause).await;
    }
}

fn parse(reply: &[String]) -> Answer {
    let words: Vec<&str> = reply.iter().map(String::as_str).collect();
    Ok(match words[..] {
        ["admitted", entry, epoch] => {
            Admission::Admitted { entry: entry.to_owned(), epoch: epoch.to_owned() }
        }
        ["refused", code, _] => Admission::Refused(refusal(code)),
        ["other epoch", ..] => Admission::OtherEpoch,
        ["no counter", ..] => Admission::NoCounter,
        ["claimed", ..] => Admission::Claimed,
        ["sold out", waiting, _] => {
            Admission::SoldOut { waiting: waiting.parse().unwrap_or(u64::MAX) }
        }
        ["full", ..] => Admission::Full,
        _ => return Err(Error::Internal(format!("stream_admit.lua returned {reply:?}"))),
    })
}
