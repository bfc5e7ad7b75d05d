//! The watchdog: one task that renews all held locks of a process and reports those that are lost.
//!
//! All renewals that are due are sent together over the multiplexed connection. Each has a time limit
//! of its own, so that a failure or a slow answer delays no other renewal. Each node of a cluster has
//! its own limit of renewals under way and its own queue: a node that hangs delays no renewal on the
//! others, however many holds it has. A failed renewal is repeated until the deadline of its hold.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::commands::lock::RenewReply;
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::state::hold::{Hold, RenewalAction};
use crate::state::node_limits::NodeLimits;
use crate::state::shared::Shared;
use crate::tasks::reconcile::end_lost_hold;

/// How many renewals may be under way at once on one node; more wait.
const MAX_CONCURRENT: usize = 512;

/// How many holds that are due are taken out of the schedule at once, while it is locked.
const BATCH: usize = 512;

/// A renewal that was sent, and its result.
struct Renewal {
    hold: Arc<Hold>,
    sent: Instant,
    lease: Duration,
    reply: Result<RenewReply, Failure>,
}

/// Renew until the tasks have to end.
pub(crate) async fn run(shared: Arc<Shared>) {
    let schedule = &shared.renewals;
    let mut renewals: JoinSet<Option<Renewal>> = JoinSet::new();
    let limits = Arc::new(NodeLimits::new(MAX_CONCURRENT));
    loop {
        let now = Instant::now();
        let (due_holds, next_check) = schedule.pop_due(now, BATCH);
        for hold in due_holds {
            match hold.renewal_action(now) {
                RenewalAction::Forget => {}
                RenewalAction::CheckAt(check_at) => schedule.insert(&hold, check_at),
                RenewalAction::ReportLost(reason) => end_lost_hold(&shared, &hold, reason),
                RenewalAction::Renew { deadline, .. } => {
                    // Whatever becomes of the renewal, the hold is checked again at its deadline.
                    schedule.insert(&hold, deadline);
                    let shared = shared.clone();
                    let limits = limits.clone();
                    renewals.spawn(async move { renew(&shared.connection, &limits, hold).await });
                }
            }
        }
        tokio::select! {
            Some(end) = renewals.join_next(), if !renewals.is_empty() => match end {
                // The hold ended before it was its turn.
                Ok(None) => {}
                Ok(Some(renewal)) => apply(&shared, renewal),
                Err(error) => tracing::error!(%error, "a lock renewal ended early"),
            },
            () = sleep_until_check(next_check) => {}
            () = schedule.earlier() => {}
            () = shared.stop.cancelled() => return,
        }
    }
}

/// Sleep until the next hold has to be checked; for ever when none is scheduled.
async fn sleep_until_check(next_check: Option<Instant>) {
    match next_check {
        Some(check_at) => tokio::time::sleep_until(check_at).await,
        None => std::future::pending().await,
    }
}

/// Wait for a permit of the hold's node, then renew the hold. `None` if by then it has ended, or its
/// deadline has passed, which the next check reports.
async fn renew(
    connection: &CommandConnection,
    limits: &NodeLimits,
    hold: Arc<Hold>,
) -> Option<Renewal> {
    let node = connection.redis().serving(hold.request.name.key());
    let _permit = limits.permit(node).await;
    let sent = Instant::now();
    let RenewalAction::Renew { lease, deadline } = hold.renewal_action(sent) else {
        return None;
    };
    let remaining_lease = deadline.saturating_duration_since(sent);
    let timeout = remaining_lease.min(lease / 3);
    let reply = connection
        .renew(&hold.request, lease, timeout, remaining_lease)
        .await;
    Some(Renewal {
        hold,
        sent,
        lease,
        reply,
    })
}

fn apply(shared: &Arc<Shared>, renewal: Renewal) {
    let Renewal {
        hold,
        sent,
        lease,
        reply,
    } = renewal;
    let counters = shared.counters.for_kind(hold.request.kind);
    let check_at = match reply {
        Ok(RenewReply::Renewed) => {
            counters.renewed.add();
            hold.confirmed(sent, lease)
        }
        Ok(RenewReply::Shortened(remaining_lease)) => {
            counters.renewed.add();
            tracing::warn!(
                lock = ?hold.request.name,
                left = ?remaining_lease,
                "another client shortens the leases of this lock's readers; going by what is left"
            );
            hold.shortened(sent, remaining_lease)
        }
        Ok(RenewReply::Lost(reason)) => return end_lost_hold(shared, &hold, reason),
        Err(failure) => {
            counters.renewals_failed.add();
            if hold.is_live() {
                tracing::warn!(lock = ?hold.request.name, error = ?failure, "lock renewal failed; retrying");
            }
            let pause = (lease / 30).clamp(Duration::from_millis(5), Duration::from_secs(1));
            Some((Instant::now() + pause).min(hold.deadline()))
        }
    };
    if let Some(check_at) = check_at {
        shared.renewals.insert(&hold, check_at);
    }
}
