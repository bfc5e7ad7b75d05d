//! The watchdog: one task that renews all held locks of a process and reports those that are lost.
//!
//! Whatever is due is sent together over the multiplexed connection, each renewal with a time limit
//! of its own, so that a key that fails or a slow answer delays no other. Each node of a cluster has
//! its own limit of renewals under way and its own queue, so that one that hangs delays none on the
//! others, however many holds it has. A failed renewal is repeated until the deadline of its hold.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::commands::lock::RenewReply;
use crate::connection::address::Address;
use crate::connection::command_connection::CommandConnection;
use crate::connection::failure::Failure;
use crate::error::LostReason;
use crate::holding::hold::{Hold, RenewalAction};
use crate::renewal::schedule::RenewalSchedule;
use crate::stats::Counters;

/// How many renewals may be under way at once on one node; more wait.
const MAX_CONCURRENT: usize = 512;

/// How many holds that are due are taken out of the schedule at once, while it is locked.
const BATCH: usize = 512;

/// Called for each loss, so that what may remain on the server is cleaned up.
pub(crate) type OnLoss = Arc<dyn Fn(&Arc<Hold>, LostReason) + Send + Sync>;

/// The renewals of one node.
struct Node {
    /// One for each renewal that may be under way.
    permits: Arc<Semaphore>,
    /// Holds that are due, in that order. Each is in the schedule too, at its deadline.
    queued: VecDeque<Arc<Hold>>,
}

impl Default for Node {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(MAX_CONCURRENT)), queued: VecDeque::new() }
    }
}

/// Renew until `stop`.
pub(crate) async fn run(
    schedule: Arc<RenewalSchedule>,
    connection: Arc<CommandConnection>,
    counters: Arc<Counters>,
    on_loss: OnLoss,
    stop: CancellationToken,
) {
    let mut renewals: JoinSet<(Arc<Hold>, Instant, Result<RenewReply, Failure>)> = JoinSet::new();
    // Those with renewals under way.
    let mut nodes: HashMap<Option<Address>, Node> = HashMap::new();
    loop {
        let now = Instant::now();
        let (due, next) = schedule.pop_due(now, BATCH);
        for hold in due {
            match hold.renewal_action(now) {
                RenewalAction::Forget => {}
                RenewalAction::CheckAt(at) => schedule.insert(&hold, at),
                RenewalAction::ReportLost(reason) => on_loss(&hold, reason),
                RenewalAction::Renew { deadline, .. } => {
                    // Whatever becomes of the renewal, the hold is checked again at its deadline.
                    schedule.insert(&hold, deadline);
                    let node = connection.backend().master_of(hold.request.name.key());
                    nodes.entry(node).or_default().queued.push_back(hold);
                }
            }
        }
        for node in nodes.values_mut() {
            while !node.queued.is_empty()
                && let Ok(permit) = node.permits.clone().try_acquire_owned()
            {
                let Some(hold) = node.queued.pop_front() else { break };
                // It may have ended in the queue, or its deadline passed, which the schedule reports.
                let RenewalAction::Renew { lease, deadline } = hold.renewal_action(now) else {
                    continue;
                };
                let connection = connection.clone();
                renewals.spawn(async move {
                    let _permit = permit;
                    let sent = Instant::now();
                    let left = deadline.saturating_duration_since(Instant::now());
                    let timeout = left.min(lease / 3);
                    let reply = connection.renew(&hold.request, lease, timeout, left).await;
                    (hold, sent, reply)
                });
            }
        }
        nodes.retain(|_, node| node.permits.available_permits() < MAX_CONCURRENT);
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
