//! The watchdog: one task that renews all held locks of a process and reports those that are lost.
//!
//! Whatever is due is sent together over the multiplexed connection, each renewal with a time limit
//! of its own, so that a key that fails or a slow answer delays no other. A failed renewal is
//! repeated until the deadline of its hold.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::commands::lock::RenewReply;
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::error::LostReason;
use crate::holding::hold::{Hold, RenewalAction};
use crate::renewal::schedule::RenewalSchedule;
use crate::stats::Counters;

/// How many renewals may be under way at once; more wait.
const MAX_CONCURRENT: usize = 512;

/// Called for each loss, so that what may remain on the server is cleaned up.
pub(crate) type OnLoss = Arc<dyn Fn(&Arc<Hold>, LostReason) + Send + Sync>;

/// Renew until `stop`.
pub(crate) async fn run(
    schedule: Arc<RenewalSchedule>,
    connection: Arc<CommandConnection>,
    counters: Arc<Counters>,
    on_loss: OnLoss,
    stop: CancellationToken,
) {
    let mut renewals: JoinSet<(Arc<Hold>, Instant, Result<RenewReply, Failure>)> = JoinSet::new();
    loop {
        let now = Instant::now();
        let (due, next) = schedule.pop_due(now, MAX_CONCURRENT.saturating_sub(renewals.len()));
        for hold in due {
            match hold.renewal_action(now) {
                RenewalAction::Forget => {}
                RenewalAction::CheckAt(at) => schedule.insert(&hold, at),
                RenewalAction::ReportLost(reason) => on_loss(&hold, reason),
                RenewalAction::Renew { lease, deadline } => {
                    // Whatever becomes of the renewal, the hold is checked again at its deadline.
                    schedule.insert(&hold, deadline);
                    let connection = connection.clone();
                    renewals.spawn(async move {
                        let sent = Instant::now();
                        let left = deadline.saturating_duration_since(sent);
                        let timeout = left.min(lease / 3);
                        let reply = connection.renew(&hold.request, lease, timeout, left).await;
                        (hold, sent, reply)
                    });
                }
            }
        }
        let clock = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(end) = renewals.join_next(), if !renewals.is_empty() => match end {
                Ok((hold, sent, reply)) => {
                    let counters = counters.of(hold.request.kind);
                    match &reply {
                        Ok(RenewReply::Renewed | RenewReply::Shortened(_)) => counters.renewed(),
                        // Counted as a loss.
                        Ok(RenewReply::Missing | RenewReply::HeldByOther) => {}
                        Err(_) => counters.renewal_failed(),
                    }
                    apply(&schedule, &on_loss, &hold, sent, reply);
                }
                Err(error) => tracing::error!(%error, "a lock renewal ended early"),
            },
            () = clock => {}
            () = schedule.earlier() => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Apply the reply to one renewal.
fn apply(
    schedule: &RenewalSchedule,
    on_loss: &OnLoss,
    hold: &Arc<Hold>,
    sent: Instant,
    reply: Result<RenewReply, Failure>,
) {
    let failure = match reply {
        Ok(RenewReply::Renewed) => {
            if let Some(at) = hold.confirmed(sent) {
                schedule.insert(hold, at);
            }
            return;
        }
        Ok(RenewReply::Shortened(left)) => {
            tracing::warn!(
                lock = ?hold.request.name,
                ?left,
                "another client shortens the leases of this lock's readers; going by what is left"
            );
            if let Some(at) = hold.shortened(sent, left) {
                schedule.insert(hold, at);
            }
            return;
        }
        Ok(RenewReply::Missing) => return on_loss(hold, LostReason::Expired),
        Ok(RenewReply::HeldByOther) => return on_loss(hold, LostReason::Taken),
        Err(failure) => failure,
    };
    match hold.renewal_action(Instant::now()) {
        RenewalAction::Forget => {}
        RenewalAction::ReportLost(reason) => on_loss(hold, reason),
        RenewalAction::CheckAt(at) => schedule.insert(hold, at),
        RenewalAction::Renew { lease, deadline } => {
            tracing::warn!(lock = ?hold.request.name, error = ?failure, "lock renewal failed; retrying");
            let pause = (lease / 30).clamp(Duration::from_millis(5), Duration::from_secs(1));
            schedule.insert(hold, (Instant::now() + pause).min(deadline));
        }
    }
}
